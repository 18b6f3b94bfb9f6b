"""`python -m grader release DIR`: makes or updates the students' repository."""

from __future__ import annotations

import argparse
import datetime
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from grader import __version__
from grader.base import stdout
from grader.base.text import clean, plural, styled, wrap
from grader.commands.options import UsageError
from grader.commands.release import ledger
from grader.commands.release.contents import build, opened_early
from grader.commands.release.ledger import BESIDE, Action, Ledger, Released, shown
from grader.judge import scoring
from grader.judge.set_check import check_set
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import ROOT, load_problem, problem_ids, problems_named

_MOST = 6
_INDENT = "              "


def render(released: Released, *, width: int = 80, color: bool = False) -> str:
    """Return the report on a release that was written."""
    return styled(_rows(released, width), width, color=color)


def _rows(released: Released, width: int) -> Iterator[str]:
    after, before, plan = released.after, released.before, released.plan
    problems = [load_problem(id) for id in after.problems]
    required = sum(p.total_points for p in problems if not p.bonus)
    bonus = sum(p.total_points for p in problems if p.bonus)
    points = f"{required} points" + (f" and {bonus} bonus" if bonus else "")
    head = f"{clean(released.folder, 200)}: version {after.version}, {', '.join(after.problems)}"
    yield from wrap(f"{head}, {points}", width)
    yield from _row("later", [", ".join(released.later)] if released.later else [], width)
    if before is None:
        yield from _row("written", [plural(len(plan.of(Action.ADDED)), "file")], width)
    else:
        yield from _changes(released, width)
    if released.opened:
        some = ", ".join(f"{name}.py ({id})" for name, id in released.opened.items())
        said = f"holds what these problems ask for: {some}; hand out in stages to keep it back"
        yield from _row("opened", [said], width)
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
        yield from _row(group, [path for path in changed if _group(path) == group], width)
    if beside:
        text = "the stub has changed; the file itself is untouched"
        yield from _row("beside", [f"{', '.join(map(clean, beside))}: {text}"], width)
    removed, kept = plan.of(Action.REMOVED), plan.of(Action.KEPT)
    yield from _row("removed", removed, width)
    if kept:
        yield from _row("kept", [*kept, "changed here since"], width)
    if plan.outdated:
        text = "differ from this version's; move them away and run again to have those"
        yield from _row("", [*plan.outdated, text], width)
    if not (plan.writes or removed) and before == released.after:
        yield from _row("unchanged", ["nothing has changed for students"], width)


# By pattern, the group of a file in the report; the first that matches its path counts.
_GROUPS = {
    r"solutions/": "answers",
    r"problems/given/": "given",
    r"docs/|.*\.md$": "handouts",
    r"(grader|reference)/": "judge",
    r"problems/(.*/)?(Makefile|one\.mk)$": "set-up",
    r"problems/(.*/)?(test_[^/]*|problem\.toml)$": "tests",
    r"problems/": "stubs",
    r"": "set-up",
}


def _group(path: str) -> str:
    return next(group for pattern, group in _GROUPS.items() if re.match(pattern, path))


def _row(label: str, items: Iterable[str], width: int) -> list[str]:
    """Return a label and the first items, wrapped; no line where there are no items."""
    items = [clean(item, 400) for item in items]
    shown_items = items if len(items) <= _MOST else [*items[:_MOST], f"{len(items) - _MOST} more"]
    first = f"  {label}"
    text = ", ".join(shown_items)
    return wrap(text, width, f"{first:<{len(_INDENT)}}", _INDENT) if items else []


HELP = "make the students' repository, or update it"
OPTIONS = {
    "DIR": "the students' repository",
    "--problems p01,p02": "hand out these, beside those that DIR has (default: those that it has,"
    " or all)",
    "--answers-after DATE": "hand out the answers of these problems from then on, with a later run"
    " of `release`; ISO date, with a time or at the end of the day",
}


def run(options: argparse.Namespace) -> int:
    """Write the release into DIR, show the changes for students; return 0."""
    folder, wanted = options.dir, options.problems
    problems = None if wanted is None else problems_named(wanted, "--problems")
    _expect_checkout()
    before = _expect_place(folder)
    now = datetime.datetime.now(datetime.UTC)
    old = before or Ledger(version=__version__, date=now.date(), problems=())
    chosen = problems or old.problems or problem_ids()
    stage = tuple(sorted({*old.problems, *chosen}))
    gone = [id for id in stage if id not in problem_ids()]
    if gone:
        raise UsageError(f"DIR: got a release with {gone[0]}, which this checkout does not have")
    over_at = old.answers_after
    if options.answers_after is not None:
        over_at = ledger.with_date(old, chosen, ledger.read_date(options.answers_after), now)
    answers = ledger.over(stage, old, over_at, now)
    check_set(stage)
    files = build(ROOT, stage, answers, problem_ids())
    stubs = {f"problems/{p.id}/{p.file}" for p in map(load_problem, stage)}
    made = ledger.plan(folder, files, stubs, old)
    which = {"problems": stage, "answers_after": over_at, "answers": answers}
    after = Ledger(version=__version__, date=now.date(), **which)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        after = ledger.carry_out(folder, made, old, after)
    except OSError as error:
        place = error.filename or folder
        raise EnvironmentFault(
            f"DIR: cannot write {place}: {error.strerror}; run it again, what was written counts"
        ) from None
    later = tuple(id for id in problem_ids() if id not in stage)
    opened = {name: id for name, id in opened_early(files).items() if id not in old.problems}
    stdout.show(render, Released(str(folder), before, after, made, later, opened))
    return scoring.EXIT_FULL_MARKS


def _expect_checkout() -> None:
    """Refuse to release from a release: it lacks the answers to compare with and to hand out."""
    if (ROOT / ledger.NAME).exists() or not (ROOT / "solutions").is_dir():
        raise UsageError(
            f"release: got {ROOT}, which is a release itself; run it in the course's checkout"
        )


def _expect_place(folder: Path) -> Ledger | None:
    """Return the ledger of the release in a folder; None if the folder is empty or missing."""
    real = Path(os.path.realpath(folder))
    if real == ROOT or ROOT in real.parents:
        raise UsageError(f"DIR: got {folder}, inside this checkout; expected a folder outside")
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        raise UsageError(f"DIR: got {folder}, which is not a folder; expected a folder")
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise UsageError(f"DIR: {folder} cannot be read: {error.strerror}") from None
    found = ledger.read(folder, __version__)
    if found is None and names - {".git"}:
        raise UsageError(
            f"DIR: got {folder}, which is not empty and has no {ledger.NAME};"
            " expected an empty folder or an earlier release"
        )
    return found
