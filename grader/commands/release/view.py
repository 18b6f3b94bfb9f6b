"""What `grader release` prints: what has changed for students, in groups, and what was kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from grader.base.text import clean, plural, styled, wrap
from grader.commands.release.ledger import shown
from grader.commands.release.writing import BESIDE, Action, Released
from grader.spec.problem import load_problem

_MOST = 6
_INDENT = "              "


def render(released: Released, *, width: int = 80, color: bool = False) -> str:
    """Return the report on a release that was written."""
    return styled(((row, "") for row in _rows(released, width)), width, color=color)


def _rows(released: Released, width: int) -> Iterator[str]:
    after, before, plan = released.after, released.before, released.plan
    problems = [load_problem(id) for id in after.problems]
    required = sum(p.total_points for p in problems if not p.bonus)
    bonus = sum(p.total_points for p in problems if p.bonus)
    points = f"{required} points" + (f" and {bonus} bonus" if bonus else "")
    head = f"{clean(released.folder, 200)}: version {after.version}, {', '.join(after.problems)}"
    yield from wrap(f"{head}, {points}", width)
    if released.later:
        yield from _row("later", [", ".join(released.later)], width)
    if before is None:
        yield from _row("written", [plural(len(plan.of(Action.ADDED)), "file")], width)
    else:
        yield from _changes(released, width)
    answers = [id for id in after.answers if before is None or id not in before.answers]
    if answers:
        yield from _row("answers", [f"of {', '.join(answers)}: handed out now"], width)
    waiting: dict[str, list[str]] = {}
    for id, moment in after.answers_after.items():
        if id not in after.answers:
            waiting.setdefault(shown(moment), []).append(id)
    for moment, ids in waiting.items():
        text = f"of {', '.join(sorted(ids))}: not before {moment}; run release again then"
        yield from _row("answers", [text], width)


def _changes(released: Released, width: int) -> Iterator[str]:
    plan, before = released.plan, released.before
    beside = [path for path in plan.of(Action.ADDED, Action.UPDATED) if path.endswith(BESIDE)]
    changed = [path for path in plan.of(Action.ADDED, Action.UPDATED) if path not in beside]
    for group in ("handouts", "stubs", "tests", "given", "judge", "answers", "set-up"):
        paths = [path for path in changed if _group(path) == group]
        if paths:
            yield from _row(group, paths, width)
    if beside:
        text = (
            f"{', '.join(map(clean, beside))}: the stub has changed; the file itself is untouched"
        )
        yield from _row("beside", [text], width)
    removed, kept = plan.of(Action.REMOVED), plan.of(Action.KEPT)
    if removed:
        yield from _row("removed", removed, width)
    if kept:
        yield from _row("kept", [*kept, "changed here since"], width)
    if plan.outdated:
        text = "differ from this version's; move them away and run again to have those"
        yield from _row("", [*plan.outdated, text], width)
    if not (plan.writes or removed) and before == released.after:
        yield from _row("unchanged", ["nothing has changed for students"], width)


def _group(path: str) -> str:
    """Return which part of a course a file is."""
    if path.startswith("solutions/"):
        return "answers"
    if path.startswith("problems/given/"):
        return "given"
    if path.startswith("docs/") or path.endswith(".md"):
        return "handouts"
    if path.startswith(("grader/", "reference/")):
        return "judge"
    if path.startswith("problems/"):
        name = path.rpartition("/")[2]
        if name in ("Makefile", "one.mk"):
            return "set-up"
        return "tests" if name.startswith("test_") or name == "problem.toml" else "stubs"
    return "set-up"


def _row(label: str, items: Iterable[str], width: int) -> list[str]:
    """Return a label and the first of these items, wrapped."""
    items = [clean(item, 400) for item in items]
    shown_items = items if len(items) <= _MOST else [*items[:_MOST], f"{len(items) - _MOST} more"]
    first = f"  {label}"
    return wrap(", ".join(shown_items), width, f"{first:<{len(_INDENT)}}", _INDENT)
