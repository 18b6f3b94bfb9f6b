"""Shows that no verdict depends on the seed: `python -m tests.seeds`.

Every wrong kernel of tests/mutants must be rejected in each of its checks, by a wide margin, and
every right answer, unusual or not, accepted in all, under each of a number of fresh seeds.
`--kind names` looks at the causes that are named and at what a mistake costs.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from grader.spec.problem import problem_ids
from tests import trials
from tests.forked import in_pool
from tests.trials import Trial

KINDS = ("mutants", "unusual", "answers")
SLOW_KINDS = ("names",)
_SMALLEST = 10


def tasks(kinds: Iterable[str], problems: Iterable[str], seeds: Iterable[str]) -> list[tuple]:
    """What there is to judge, (kind, id, seed); what takes long comes first."""
    wanted = set(problems)
    kinds, seeds = set(kinds), list(seeds)
    ids: list[tuple[str, str]] = []
    for kind in ("answers", "unusual"):
        if kind in kinds:
            ids += [(kind, id) for id, (p, _) in trials.right_answers(kind).items() if p in wanted]
    for kind in ("mutants", *SLOW_KINDS):
        if kind in kinds:
            ids += [(kind, id) for id in trials.wrong_kernels(wanted)]
    ids.sort(key=lambda task: (task[0] in ("mutants", "names"), task[1][:3] < "p08"))
    return [(kind, id, seed) for kind, id in ids for seed in seeds]


def judge_one(kind: str, id: str, seed: str) -> Trial:
    """Judge one source under one seed."""
    if kind in ("answers", "unusual"):
        return trials.acceptance(kind, id, seed)
    mutant = trials.wrong_kernels(problem_ids())[id]
    return (trials.named if kind == "names" else trials.rejection)(mutant, seed)


def _judged(todo: list[tuple], jobs: int) -> Iterator[Trial]:
    """Judge all of `todo` in a pool of processes."""
    for task, found in in_pool(judge_one, todo, jobs):
        if isinstance(found, Exception):
            found = Trial(*task, (f"{type(found).__name__}: {found}",))
        yield found


def smallest_margins(found: Iterable[Trial]) -> dict[str, float]:
    """The smallest margin of each wrong kernel over all seeds, the smallest first."""
    margins: dict[str, float] = {}
    for trial in found:
        if trial.kind == "mutants" and trial.margin is not None:
            margins[trial.id] = min(trial.margin, margins.get(trial.id, math.inf))
    return dict(sorted(margins.items(), key=lambda item: item[1]))


def tables(found: list[Trial]) -> Iterator[Table]:
    """What came out, as tables: each wrong kernel's margin, the kinds, the smallest margins."""
    margins = smallest_margins(found)
    if margins:
        each = Table("wrong kernel", "smallest margin", title="Margins (error / allowed)")
        for id in sorted(margins):
            each.add_row(id, _shown(margins[id]))
        yield each
    summary = Table("kind", "problem", "sources", "judged", "not as expected", title="Verdicts")
    groups: dict[tuple[str, str], list[Trial]] = collections.defaultdict(list)
    for trial in found:
        groups[(trial.kind, trial.id[:3])].append(trial)
    for (kind, problem), group in sorted(groups.items()):
        sources = len({trial.id for trial in group})
        bad = sum(bool(trial.complaints) for trial in group)
        summary.add_row(kind, problem, str(sources), str(len(group)), str(bad or "none"))
    yield summary
    if margins:
        smallest = Table("wrong kernel", "margin", title=f"The {_SMALLEST} smallest margins")
        for id in list(margins)[:_SMALLEST]:
            smallest.add_row(id, _shown(margins[id]))
        yield smallest
    bad = [trial for trial in found if trial.complaints]
    if bad:
        violations = Table("kind", "source", "seed", "what", title="Not as expected")
        for trial in sorted(bad, key=lambda trial: (trial.kind, trial.id, trial.seed)):
            violations.add_row(trial.kind, trial.id, trial.seed, "\n".join(trial.complaints))
        yield violations


def _shown(margin: float) -> str:
    return f"{margin:,.0f}" if math.isfinite(margin) and margin >= 10 else f"{margin:.2g}"


def _record(seeds: list[str], found: list[Trial]) -> dict:
    def plain(number: float | None) -> float | str | None:
        return number if number is None or math.isfinite(number) else str(number)

    return {
        "seeds": seeds,
        "smallest_margins": {id: plain(m) for id, m in smallest_margins(found).items()},
        "trials": [
            {**vars(trial), "margin": plain(trial.margin)}
            for trial in sorted(found, key=lambda trial: (trial.kind, trial.id, trial.seed))
        ],
    }


def _options(argv: list[str] | None) -> argparse.Namespace:
    def several(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if not set(chosen) <= set(known):
            raise argparse.ArgumentTypeError(f"got {text}, expected {what}: {', '.join(known)}")
        return chosen

    parser = argparse.ArgumentParser(prog="python -m tests.seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many, default 20")
    parser.add_argument("--seed", help="begin with this one (hex), to repeat a run")
    parser.add_argument(
        "--problems", default=problem_ids(), type=lambda t: several(t, problem_ids(), "problems")
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--kind",
        default=KINDS,
        type=lambda t: several(t, (*KINDS, *SLOW_KINDS), "kinds"),
        help=f"default {','.join(KINDS)}; slower: {', '.join(SLOW_KINDS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Judge all, print tables, and return 1 when anything is not as expected."""
    options = _options(argv)
    first = int(options.seed, 16) if options.seed else secrets.randbits(32)
    seeds = [f"{first + n:x}" for n in range(options.seeds)]
    todo = tasks(options.kind, options.problems, seeds)
    console = Console()
    console.print(f"{len(todo)} trials under {len(seeds)} seeds, from {seeds[0]} on")
    found: list[Trial] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("judging", total=len(todo))
        for trial in _judged(todo, options.jobs):
            found.append(trial)
            progress.advance(bar)
            if trial.complaints:
                progress.print(f"{trial.id} {trial.seed}: {'; '.join(trial.complaints)}")
    for table in tables(found):
        console.print(table)
    if options.json:
        options.json.write_text(json.dumps(_record(seeds, found), indent=1), encoding="utf-8")
    return int(any(trial.complaints for trial in found))


if __name__ == "__main__":
    sys.exit(main())
