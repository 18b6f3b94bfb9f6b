"""Records that every export is tested with: all right, all kinds of wrong, and hostile texts."""

import functools
import io
import tempfile
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.judge import scoring
from grader.judge.progress import Progress
from grader.judge.request import Request
from grader.spec.grade_record import GradeRecord
from tests import test_render_terminal as terminal
from tests.harness import model_answer
from tests.records import CPU, H200, SEED, graded

# What Markdown, HTML, XML, JSON and the commands of GitHub's Actions take for their own.
EVIL = (
    "<script>alert(1)</script>|`x` ``` ![i](https://e.x/i.png) [l](javascript:0) \x1b[31m]]>\ufffe"
    '\n```\n# head\n| a | b |\n::error::x %0A::add-mask::y\r\n##[error]z, "q" \\\' &amp; \x00\x08'
    "\u202e www.e.x @all $x$ <!-- ---\n\n- - 1. " + "\ud800" + "`" * 40
)
NAMES = (
    "full marks on the CPU",
    "a known mistake",
    "an exception with output",
    "not implemented",
    "against the source policy",
    "a fault of the judge",
    "measured on a GPU",
    "interrupted",
    "mixed",
    "nothing",
)


@functools.cache
def record(name: str) -> GradeRecord:
    """Return one of the records of `NAMES`, made when it is first asked for."""
    if name == "nothing":
        return terminal.with_problems(record("a known mistake"))
    if name == "mixed":
        gpu, fault = record("measured on a GPU"), record("a fault of the judge")
        (mistake,) = record("a known mistake").problems
        problems = (mistake, fault.problems[1], *gpu.problems[2:])
        return terminal.with_problems(gpu, *problems, duration_s=12.5)
    with tempfile.TemporaryDirectory() as folder:
        if name == "interrupted":
            request = Request(Path(folder), "answers", ("p02", "p08"), CPU, SEED)
            return Grader(request, Progress(Console(file=io.StringIO()))).record(unfinished=True)
        if name == "measured on a GPU":
            answers = {problem_id: model_answer(problem_id) for problem_id in terminal.MEASURED}
            given = {"measured": terminal.MEASURED, "work": terminal.COUNTED}
            return graded(Path(folder), answers, environment=H200, **given)
        return graded(Path(folder), terminal.ANSWERS[name])


def evil(monkeypatch, text: str = EVIL) -> GradeRecord:
    """Return a record of which every text that a submission may reach is `text`, and more."""
    monkeypatch.setattr(terminal, "HOSTILE", text)
    whole = record("measured on a GPU")
    environment = whole.environment.model_copy(update={"device_name": text, "notes": (text,)})
    broken = terminal.hostile(whole.problems[1])
    checks = [check.model_copy(update={"duration_s": float("nan")}) for check in broken.checks]
    broken = broken.model_copy(update={"checks": tuple(checks), "message": checks[0].message})
    totals, bonus = scoring.total([broken])
    update = {"problems": (broken,), "totals": totals, "bonus": bonus, "submission": text}
    return whole.model_copy(update=update | {"environment": environment, "seed": text})
