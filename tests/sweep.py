"""All that takes hours, by one command: `make sweep`, or `make sweep PARTS=golden,hostile`.

Each part is a command of its own; the time behind it is that on two idle cores.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests import shares

PARTS = {
    # every source of the corpora in all checks: compared with the record and with what is expected
    "golden": ("tests.golden", "diff"),  # 5 hours
    # the same verdicts under twenty seeds
    "seeds": ("tests.seeds",),  # 3 hours
    # random slips in the model answers: does the judge name the step and the line?
    "slips": ("tests.slips", "--seed", shares.SHARE),  # 40 minutes
    # what `make test` judges a share of, whole; the part `seeds` is what test_seeds.py draws from
    "corpora": ("pytest", "-q", *(name for name in shares.users() if "seeds" not in name)),
    "hostile": ("tests.hostile", "--slow"),
    # faults in the judge's defences; mutants of the code that decides
    "planted": ("tests.planted",),
    "mutants": ("mutmut", "run"),
    "limits": ("pytest", "-q", "benchmarks/tests"),  # 3 minutes
}  # fmt: skip


# Of the mutants that mutmut makes of the code that decides, so many tests catch at the least; the
# rest changes texts or nothing.
_CAUGHT = 0.8


def _few_survive() -> bool:
    """Say how many mutants of the last run a test caught; return whether these are enough."""
    subprocess.run([sys.executable, "-m", "mutmut", "export-cicd-stats"], check=True)
    stats = json.loads(Path("mutants/mutmut-cicd-stats.json").read_text("utf-8"))
    caught = stats["total"] - stats["survived"] - stats["no_tests"]
    print(f"{caught} of {stats['total']} mutants caught, expected {_CAUGHT:.0%} or more")
    return caught >= _CAUGHT * stats["total"]


def main(argv: list[str] | None = None) -> int:
    """Run the parts one after another, all of them whatever fails; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("parts", nargs="?", help=f"default {','.join(PARTS)}")
    options = parser.parse_args(argv)
    chosen = options.parts.split(",") if options.parts else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"got {', '.join(sorted(unknown))}, expected of {', '.join(PARTS)}")
    lines = []
    for part in chosen:
        print(f"== {part}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", *PARTS[part]]
        code = subprocess.run(command, env=os.environ | {"SHARE": "all"}, check=False).returncode
        if part == "mutants" and not code:
            code = int(not _few_survive())
        minutes = (time.monotonic() - start) / 60.0
        lines.append(
            (part, code, f"{part:8} {'failed' if code else 'ok':6} {minutes:6.1f} minutes")
        )
    print("", *(line for *_, line in lines), sep="\n")
    return int(any(code for _, code, _ in lines))


if __name__ == "__main__":
    sys.exit(main())
