"""Shows that no verdict depends on the seed: `python -m tests.seeds`.

Every wrong kernel of tests/mutants must be rejected in each of its checks, by a wide margin, and
every right answer, unusual or not, accepted in all, under each of a number of fresh seeds.
`--kind names` looks at the causes that are named and at what a mistake costs.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.progress import track

from grader.spec.problem import problem_ids
from tests import trials
from tests.forked import in_pool

KINDS = ("answers", "unusual", "mutants", "names")  # the last is slow, and judged on request


def tasks(kinds: Iterable[str], problems: Iterable[str], seeds: Iterable[str]) -> list[tuple]:
    """What there is to judge, (kind, id, seed); what takes long comes first."""
    wanted, seeds = set(problems), list(seeds)
    ids: list[tuple[str, str]] = []
    for kind in kinds:
        if kind in ("answers", "unusual"):
            ids += [(kind, id) for id, (p, _) in trials.right_answers(kind).items() if p in wanted]
        else:
            ids += [(kind, id) for id in trials.wrong_kernels(wanted)]
    ids.sort(key=lambda task: (task[0] in ("mutants", "names"), task[1][:3] < "p08"))
    return [(kind, id, seed) for kind, id in ids for seed in seeds]


def judge_one(kind: str, id: str, seed: str) -> list[str]:
    """Judge one source under one seed; return what is not as it must be."""
    if kind in ("answers", "unusual"):
        return trials.acceptance(kind, id, seed)
    mutant = trials.wrong_kernels(problem_ids())[id]
    return (trials.named if kind == "names" else trials.rejection)(mutant, seed)


def main(argv: list[str] | None = None) -> int:
    """Judge all, say what is not as expected, and return 1 if anything is not."""
    parser = argparse.ArgumentParser(prog="python -m tests.seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many, default 20")
    parser.add_argument("--seed", help="begin with this one (hex), to repeat a run")
    parser.add_argument("--problems", nargs="+", default=problem_ids(), choices=problem_ids())
    parser.add_argument("--kind", nargs="+", default=KINDS[:3], choices=KINDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    first = int(options.seed, 16) if options.seed else secrets.randbits(32)
    todo = tasks(options.kind, options.problems, [f"{first + n:x}" for n in range(options.seeds)])
    console, wrong = Console(), 0
    console.print(f"{len(todo)} trials under {options.seeds} seeds, from {first:x} on")
    done = in_pool(judge_one, todo, options.jobs)
    for (_, id, seed), found in track(done, "judging", total=len(todo), console=console):
        if isinstance(found, Exception):
            found = [f"{type(found).__name__}: {found}"]
        if found:
            wrong += 1
            console.print(f"{id} {seed}: {'; '.join(found)}", markup=False, soft_wrap=True)
    console.print(f"{wrong} of {len(todo)} are not as expected")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
