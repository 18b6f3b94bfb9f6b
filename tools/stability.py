"""How points and speed-ups of one submission vary over several gradings.

    python tools/stability.py 5 --submission solutions   grades five times, each with a fresh seed
    python tools/stability.py .cache/stability/*.json    compares records that `grade --json` wrote

After the number come options of `grade`. Ctrl-C keeps the gradings that are done. A grading in
which a part of a problem could not be measured (a busy machine) does not count for that problem.
Exit code: 0 no problem's points differ by more than one, 1 some do, 2 usage, 3 a fault of the
judge, 4 nothing could be measured, 130 interrupted.
"""

import json
import signal
import statistics
import subprocess
import sys
from pathlib import Path

STABLE_POINTS = 1.0
FOLDER = Path(".cache", "stability")
_ROUNDING = 1e-6


def main(words):
    """Grade as often as the first word says, or read the records whose paths the words are."""
    if not words or words[0].startswith("-") or words[0] in ("0", "1"):
        print(__doc__)
        return 0 if words[:1] in (["-h"], ["--help"]) else 2
    wanted, codes = len(words), set()
    if words[0].isdigit():
        wanted = int(words[0])
        words, codes = graded(wanted, words[1:])
    try:
        records = [record_in(Path(word)) for word in words]
    except ValueError as error:
        print(f"stability: {error}", file=sys.stderr)
        return 2
    shaky = []
    for row in rows([record for record in records if not record["interrupted"]]):
        print(line(*row, wanted))
        shaky += [row[0]] if row[-1] > STABLE_POINTS + _ROUNDING else []
    if shaky:
        print(f"points differ by more than {STABLE_POINTS:g}: {', '.join(shaky)}")
    elif records:
        print(f"points differ by no more than {STABLE_POINTS:g} in any problem")
    for code in (130, 2, 3, 4):
        if code in codes:
            print(f"{len(records)} of {wanted} gradings were done; one ended with exit code {code}")
            return code
    return 1 if shaky else 0


def record_in(path):
    """Read a record; raise ValueError if the file cannot be read or is no record."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if {"problems", "interrupted"} <= record.keys():
            return record
        why = "it has no problems"
    except OSError as error:
        why = error.strerror
    except (ValueError, AttributeError):
        why = "it is no JSON object"
    raise ValueError(f"{path}: {why}; expected a record that `make grade JSON={path}` wrote")


def graded(count, options):
    """Grade `count` times; return the records' paths, and the exit codes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # `grade` handles Ctrl-C, and exits with 130
    FOLDER.mkdir(parents=True, exist_ok=True)
    paths, codes = [], set()
    for number in range(1, count + 1):
        print(f"grading {number} of {count}", file=sys.stderr, flush=True)
        path = FOLDER / f"{number}.json"
        path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "grader", "grade", *options, "--json", str(path)]
        codes.add(subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode)
        if not path.exists() or 130 in codes:
            break
        paths.append(path)
    return paths, codes


def rows(records):
    """Give id, available points, points and speed-ups by run, and range of points per problem."""
    found = {}
    for record in records:
        for problem in record["problems"]:
            found.setdefault(problem["id"], []).append(problem)
    for id, runs in found.items():
        most = max(run["points"]["available"] for run in runs)
        whole = [run for run in runs if run["points"]["available"] >= most - _ROUNDING and most > 0]
        points = [run["points"]["earned"] for run in whole]
        figures = [(run["components"].get("speed") or {}).get("figures") or {} for run in runs]
        speedups = [figure["speedup"] for figure in figures if figure.get("speedup")]
        yield id, most, points, speedups, max(points, default=0) - min(points, default=0)


def line(id, most, points, speedups, _, wanted):
    """Return a line with minimum, median and maximum of points and speed-ups."""
    text = f"{id}  {len(points)}/{wanted} gradings  of {most:g} points"
    for what, values in (("points", points), ("speed-up", speedups)):
        if values:
            numbers = (min(values), statistics.median(values), max(values))
            text += f"  {what} " + " ".join(f"{number:.4g}" for number in numbers)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
