"""tools/stability.py: what it counts and says of records; a stand-in for `grade` writes them."""

import json
import subprocess

import pytest

from grader.judge import scoring
from grader.spec.grade_record import (
    ComponentResult,
    GradeRecord,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
)
from tests.environments import H200
from tests.records import SEED
from tools import stability


def record(*problems, interrupted=False):
    """A record of problems (id, earned, available[, speed-up]), as JSON."""
    found = []
    for id, earned, available, *speedup in problems:
        points = Points(earned=earned, available=available, possible=10.0)
        figures = SpeedFigures(speedup=speedup[0]) if speedup else None
        speed = ComponentResult(verdict=Verdict.PASS, points=points, figures=figures)
        found.append(
            ProblemResult(
                id=id,
                title=id,
                bonus=False,
                verdict=Verdict.PASS,
                points=points,
                components={"speed": speed},
            )
        )
    totals, bonus = scoring.total(found)
    return GradeRecord(
        mode="local",
        environment=H200,
        seed=SEED,
        submission="answers",
        problems=tuple(found),
        totals=totals,
        bonus=bonus,
        interrupted=interrupted,
    ).to_json()


STEADY = [record(("p02", 9.5 + d, 10, 3.6 + d)) for d in (0, 0.5, 0.4)]
SHAKY = [record(("p02", e, 10, 2.0), ("p03", 4, 10)) for e in (8.9, 10.0, 9.5)]
# In the second grading the machine was busy: speed was not measured and cost nobody points.
BUSY = [record(("p02", *points)) for points in ((10, 10, 3.6), (7, 7), (10, 10, 3.5))]
A_POINT = [record(("p02", earned, 10)) for earned in (8.7, 9.7)]  # but for binary fractions
NOTHING = [record(("p02", 0, 0))] * 2


@pytest.mark.parametrize(
    ("records", "code", "said"),
    [
        (STEADY, 0, "3/3 gradings  of 10 points  points 9.5 9.9 10  speed-up 3.6 4 4.1\n"),
        (SHAKY, 1, "points differ by more than 1: p02\n"),
        (BUSY, 0, "p02  2/3 gradings  of 10 points  points 10 10 10  speed-up 3.5 3.55 3.6\n"),
        (A_POINT, 0, "differ by no more than 1 in any problem\n"),
        (NOTHING, 0, "p02  0/2 gradings  of 0 points\n"),
    ],
)
def test_records_are_compared(tmp_path, capsys, records, code, said):
    paths = [tmp_path / f"{number}.json" for number in range(len(records))]
    for path, text in zip(paths, records, strict=True):
        path.write_text(text)
    assert stability.main([*map(str, paths)]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ([0, 0, 0], 0, "p02  3/3 gradings"),
        ([0, 1, 130], 130, "2 of 3 gradings were done; one ended with exit code 130\n"),
        ([2], 2, "0 of 3 gradings were done; one ended with exit code 2\n"),
        ([0, 3, 0], 3, "one ended with exit code 3\n"),
    ],
)
def test_gradings_are_started_and_their_ends_are_told(
    tmp_path, monkeypatch, capsys, ends, code, said
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stability.signal, "signal", lambda *_: None)
    asked = []

    def run(command, **_):
        asked.append(command[3:])
        end = ends[len(asked) - 1]
        if end != 2:
            with open(command[-1], "w") as file:
                file.write(STEADY[0])
        return subprocess.CompletedProcess(command, end)

    monkeypatch.setattr(stability.subprocess, "run", run)
    assert stability.main(["3", "--only", "p02"]) == code
    assert said in capsys.readouterr().out and len(asked) == len(ends)
    assert asked[0] == ["grade", "--only", "p02", "--json", ".cache/stability/1.json"]
    kept = len(ends) - (code in (130, 2))
    assert all(json.loads((stability.FOLDER / f"{n + 1}.json").read_text()) for n in range(kept))


def test_without_words_it_says_how_it_is_used(capsys):
    assert stability.main([]) == stability.main(["1"]) == 2
    assert stability.main(["--help"]) == 0 and "tools/stability.py 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "No such file"), ("{", "no JSON object"), ("[1]", "no JSON"), ("{}", "no problems")],
)
def test_a_file_that_is_no_record_is_named(tmp_path, capsys, text, why):
    path = tmp_path / "record.json"
    if text is not None:
        path.write_text(text)
    assert stability.main([str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out and f"{path}: " in err and why in err and "expected a record" in err
