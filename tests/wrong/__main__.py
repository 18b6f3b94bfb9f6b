"""Prints what is said of each mistake: `python -m tests.wrong [--checks] [words of its id]`."""

from __future__ import annotations

import argparse
import time

from grader.spec.problem import load_problem
from tests.forked import forked_workers
from tests.harness import judge
from tests.wrong import WRONG


def main(argv: list[str] | None = None) -> int:
    """Judge those whose ids contain one of the words; 1 if one has a name it may not have."""
    parser = argparse.ArgumentParser(prog="python -m tests.wrong", description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--checks", action="store_true", help="in the checks of `make test` alone")
    options = parser.parse_args(argv)
    bad = 0
    with forked_workers():
        for wrong in WRONG:
            if options.words and not any(word in wrong.id for word in options.words):
                continue
            began = time.monotonic()
            if options.checks and not wrong.checks:
                continue
            checks = wrong.checks if options.checks else None
            judged = judge(wrong.source(), load_problem(wrong.problem), checks=checks)
            spent = time.monotonic() - began
            named = judged.named
            right = named <= set(wrong.causes) and bool(named) == bool(wrong.causes)
            bad += not right
            failed = ",".join(dict.fromkeys(check for check, _ in judged.wrong))
            print(f"{'ok ' if right else 'BAD'} {spent:4.1f} s  {wrong.id}: {failed or 'PASSES'}")
            for cause in judged.findings.causes:
                d = cause.diagnosis
                step = f" step {cause.step}" if cause.step else ""
                print(f"      {d.id}{step} ({len(cause.cases)}/{len(judged.wrong)}): {d.title}")
            if not judged.findings.causes and judged.wrong:
                message = next(iter(judged.wrong.values())).message
                print(f"      -- {message.headline if message else '?'}")
            if not right:
                print(f"      may be: {' '.join(wrong.causes) or 'nothing'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
