"""`python -m tests.hostile [--slow] [--gpu] [WORD]`: grade hostile submissions, print verdicts."""

import argparse
import sys
import tempfile
from pathlib import Path

from grader.base.scratch import remove_tree
from tests.hostile.catalogue import CATALOGUE
from tests.hostile.court import Run, grade, packed


def main() -> int:
    """Grade what is asked for; return 1 if something was not held."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only entries with this in their name")
    parser.add_argument("--slow", action="store_true", help="the slow ones as well")
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU, and no others")
    options = parser.parse_args()
    entries = [
        entry
        for entry in CATALOGUE
        if entry.gpu == options.gpu
        and (options.slow or not entry.slow)
        and any(options.word in name for name in (entry.name, *(t.name for t in entry.tricks)))
    ]
    faults = 0
    for together in packed(entries):
        folder = Path(tempfile.mkdtemp(prefix="hostile-"))
        try:
            run = grade(together, folder)
        finally:
            remove_tree(folder)
        faults += len(run.faults)
        _show(run)
    print(f"{len(entries)} files, {faults} faults")
    return 1 if faults else 0


def _show(run: Run) -> None:
    print(f"\nrun of {run.seconds:.0f} s, {', '.join(run.honest)} honest")
    for problem_id, entry in run.entries.items() if run.record else ():
        result = run.problem(problem_id)
        points = f"{result.points.earned:4.1f} of {result.points.available:4.1f}"
        print(f"  {result.verdict:16}{points} points  {result.duration_s:5.1f} s  {entry.name}")
        checks = {check.id: check for check in result.checks}
        for trick in entry.tricks:
            check = checks[trick.check]
            told = check.message.headline[:70] if check.message else ""
            print(f"    {check.verdict:15} {trick.name:40} {told}")
    for fault in run.faults:
        print(f"  FAULT  {fault}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
