"""What `grader submit` prints: a line per problem, why a file is refused, archive and receipt."""

from __future__ import annotations

from collections.abc import Iterator

from grader.base.text import byte_size, clean, fit, plural, styled, wrap
from grader.commands.lint.view import lines_of
from grader.commands.submit.packing import Packed, PackedAnswer, State

_STYLES = {State.READY: "green", State.REFUSED: "red"}


def render(packed: Packed, *, width: int = 80, color: bool = False) -> str:
    """Return the report on a submission that was, or was not, packed."""
    rows = [row for answer in packed.answers for row in _problem(answer, width)]
    rows += [("-" * width, ""), *((row, "") for row in _summary(packed, width))]
    return styled(rows, width, color=color)


def _problem(answer: PackedAnswer, width: int) -> Iterator[tuple[str, str]]:
    words = answer.state.value
    source = answer.source
    if answer.state is State.READY and source is not None and source.next_step:
        words += f", step {source.next_step} is not done"
    title = fit(f"{answer.problem.id} {answer.problem.title}", 52)
    yield f"{title}  {words}", _STYLES.get(answer.state, "")
    if answer.state is State.REFUSED and source is not None:
        for row, style in lines_of(source, width - 4):
            yield f"    {row}", style


def _summary(packed: Packed, width: int) -> Iterator[str]:
    states = [answer.state for answer in packed.answers]
    counts = [(state, states.count(state)) for state in State if state in states]
    yield ", ".join(f"{count} {state.value}" for state, count in counts)
    refused = states.count(State.REFUSED)
    if packed.archive is None:
        text = "nothing was written: no answer in it would be graded"
        yield from wrap(f"{text}; solve a problem, then run `make submit` again", width)
        return
    if refused:
        text = (
            "what is refused earns nothing as it is, although it is in the archive where it can be"
        )
        yield from wrap(f"{text} read", width)
    size, files = byte_size(packed.num_bytes), plural(packed.num_files, "file")
    yield from wrap(f"wrote   {clean(packed.archive)} ({files}, {size}): upload it", width)
    yield f"receipt {packed.code}"
