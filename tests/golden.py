"""Everything the judge decides, in one file: `python -m tests.golden diff`, `... write`.

A line of tests/golden.txt for each stub, model answer, unusual answer, mutant, mistake and text
that the source policy refuses: its points for correctness, and per check that does not pass the
verdict, the cause, the step and the line. `diff` judges them again and prints what has changed;
`write` makes the file anew. Both say what is not as its corpus expects of a source: the causes that
may be named, the points that are left. A source takes 6 CPU seconds (p05) to 25 (p09): all of them
some five hours on 2 cores, and `--share 24`, every 24th, a quarter of an hour.
"""

import argparse
import collections
import difflib
import functools
import os
import sys
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from grader.source.submission import examine
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests import trials
from tests.forked import in_pool
from tests.harness import Judged, judge, whole_answer
from tests.hostile.catalogue import CATALOGUE
from tests.wrong import WRONG

FILE = Path(__file__).with_suffix(".txt")
_HOSTILE_PROBLEM = "p04"  # in which a text is read that may be sent in for any


class Recorded(NamedTuple):
    """A source, whether the source policy holds for it, and what may be wrong with its judging."""

    problem: str
    source: str | bytes
    policy: bool = True
    complaints: Callable[[Judged], list[str]] | None = None  # None: it is read, and not run


@functools.cache
def sources() -> dict[str, Recorded]:
    """Return what is judged, by id: problem, kind, name."""
    found: dict[str, Recorded] = {}
    for id in problem_ids():
        stub = ROOT / "problems" / id / load_problem(id).file
        found[f"{id} stub"] = Recorded(id, stub.read_bytes())
    for kind, name in (("answers", "answer"), ("unusual", "unusual")):
        for id, (problem, source) in trials.right_answers(kind).items():
            found[f"{problem} {name} {id}"] = Recorded(problem, source, True, trials.rejected)
    for mutant in trials.wrong_kernels(problem_ids()).values():
        source = mutant.applied_to(whole_answer(mutant.problem))
        look = functools.partial(trials.of_mutant, mutant)
        recorded = Recorded(mutant.problem, source, mutant.keeps_policy, look)
        found[f"{mutant.problem} mutant {mutant.id}"] = recorded
    for wrong in WRONG:
        recorded = Recorded(
            wrong.problem, wrong.source(), True, functools.partial(trials.untrue, wrong)
        )
        found[f"{wrong.problem} mistake {wrong.id}"] = recorded
    for entry in CATALOGUE:
        if entry.policy and entry.make is None:
            problem = entry.problem or _HOSTILE_PROBLEM
            source = entry.source
            if isinstance(source, str):
                source = source.replace("ENTRY", load_problem(problem).entry)
                source = source.encode("utf-8", "surrogatepass")
            found[f"{problem} hostile {entry.name}"] = Recorded(problem, source)
    return found


def decided(id: str) -> tuple[str, list[str]]:
    """Judge one source; return its line of the file, and what is not as expected."""
    problem_id, source, policy, complaints = sources()[id]
    problem = load_problem(problem_id)
    if complaints is not None:
        assert isinstance(source, str)
        judged = judge(source, problem, policy=policy)
        return f"{id} | {_of_checks(judged)}", complaints(judged)
    assert isinstance(source, bytes)
    read = examine(problem, source)
    message = f" line {read.message.line}: {read.message.headline}" if read.message else ""
    return f"{id} | {read.verdict or 'is run'}{message}", []


def _of_checks(judged: Judged) -> str:
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for check in judged.checks:
        if check.share < 1.0:
            words = [str(check.verdict), f"{check.share:.2f}"[1:] if check.share else ""]
            words.append(check.diagnosis.id if check.diagnosis else "")
            words.append(f"step {check.step}" if check.step else "")
            line = check.message.line if check.message else None
            words.append(f"line {line}" if line else "")
            groups[" ".join(filter(None, words))].append(check.id)
    points = judged.correctness.points
    parts = [f"{points.earned:g}/{points.possible:g}"]
    parts += [f"{what}: {' '.join(checks)}" for what, checks in groups.items()]
    return " | ".join(parts)


def judge_all(ids: Iterable[str], jobs: int, console: Console) -> tuple[dict[str, str], list[str]]:
    """Judge these sources, what takes long first; return lines by id, and what is not expected."""
    todo = [(id,) for id in sorted(ids, key=lambda id: id.partition(" ")[0], reverse=True)]
    found: dict[str, str] = {}
    complaints: list[str] = []
    done = in_pool(decided, todo, jobs)
    for (id,), result in track(done, "judging", total=len(todo), console=console):
        if isinstance(result, Exception):
            result = f"{id} | {type(result).__name__}: {result}", []
        found[id], wrong = result
        complaints += [f"{id}: {complaint}" for complaint in wrong]
    return found, complaints


def main(argv: list[str] | None = None) -> int:
    """Write the file, or print how it differs from what is decided now; 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("command", choices=("diff", "write"))
    parser.add_argument("words", nargs="*", help="only ids that contain one of these")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="one source in N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    known = {line.partition(" | ")[0]: line for line in FILE.read_text("utf-8").splitlines()} if (
        FILE.exists()
    ) else {}  # fmt: skip
    ids = [
        id
        for id in {**sources(), **(known if options.command == "diff" else {})}
        if zlib.crc32(id.encode()) % options.share == 0
        and (not options.words or any(word in id for word in options.words))
    ]
    there = [id for id in ids if id in sources()]
    found, complaints = judge_all(there, options.jobs, Console(stderr=True))
    print(*complaints, f"{len(complaints)} not as expected", sep="\n")
    if options.command == "write":
        lines = {**{id: line for id, line in known.items() if id in sources()}, **found}
        FILE.write_text("".join(f"{lines[id]}\n" for id in sorted(lines)), encoding="utf-8")
        return int(bool(complaints))
    before = [known[id] for id in sorted(ids) if id in known]
    now = [found[id] for id in sorted(found) if id in known]
    changed = [
        line
        for line in difflib.unified_diff(before, now, lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    print(*changed, f"{len(now)} compared, {len(changed)} lines differ", sep="\n")
    if len(found) > len(now):
        print(f"{len(found) - len(now)} judged that are not on record: `write` adds them")
    return int(bool(changed or complaints))


if __name__ == "__main__":
    sys.exit(main())
