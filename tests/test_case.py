"""Detective cases: each is what its table says, and the command that asks for them."""

import ast
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from grader.commands.case import command
from grader.commands.case.cases import Case, cases_of
from grader.commands.case.opened import FOLDER, SEED, Seal, open_case
from grader.judge.sealed import SEAL, unnamed
from grader.spec.causes import entries
from grader.spec.environment import probe
from grader.spec.grade_record import (
    CheckResult,
    Diagnosis,
    GradeRecord,
    Message,
    Points,
    ProblemResult,
    Verdict,
)
from grader.spec.problem import ROOT, ManifestError, load_problem, problem_ids
from tests import forked
from tests.harness import PROMPT_S, judge, model_answer
from tests.shares import drawn, of_all

CASES = {case.id: case for id in problem_ids() for case in cases_of(id)}
SLOW = [case for case in CASES.values() if not case.fails]

_quick = forked.quick


def test_there_are_thirty_two_or_more_of_each_problem_and_three_are_slow():
    assert len(CASES) == 30 and len(SLOW) == 3
    assert all(len(cases_of(id)) >= 2 for id in problem_ids())
    assert len({case.source for case in CASES.values()}) == 30


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_offers_causes_that_can_occur_and_has_one_bug(case):
    causes = [case.cause, *case.others]
    assert sorted(case.options.values()) == sorted(set(causes))
    if case.fails:
        assert [c for c in causes if case.problem.id not in entries()[c].problems] == []
        assert {check.id for check in case.problem.checks} >= {*case.fails}
    else:
        assert entries().keys().isdisjoint(causes)
    lines = len(case.text().splitlines())
    wrong, feeding = case.wrong_lines(), case.feeding_lines()
    ast.parse(case.text())
    assert 1 <= len(wrong) <= 2 and wrong | feeding <= {*range(1, lines + 1)}
    assert len(feeding) <= lines / 10 and not wrong & feeding


# One of them per version; `make sweep` judges all. A slow one is right.
@pytest.mark.parametrize("case", drawn(CASES.values(), 30, of_all), ids=lambda case: case.id)
def test_the_judge_finds_the_bug_and_nothing_else(case):
    judged = judge(case.text(), case.problem, seed=SEED)
    failed = [check.id for check in judged.checks if check.verdict is not Verdict.PASS]
    counted = [id for id in failed if judged.of(id).verdict is not Verdict.SKIPPED]
    assert sorted(counted) == sorted(case.fails) and bool(failed) == bool(case.fails)
    for check in case.fails[:1]:
        assert judged.of(check).diagnosis.id.partition("-")[2] == case.cause
    assert judged.named.isdisjoint(case.others)


@pytest.mark.parametrize(("id", "spills"), drawn([("p05-4", True), ("p05", False)], 2))
def test_the_case_of_spills_spills_and_the_answer_does_not(id, spills):
    source = CASES[id].text() if spills else model_answer(id)
    compiled = judge(source, load_problem("p05"), checks=["compiles"], seed=SEED)
    spilled = [kernel.kernel.stack_bytes for kernel in compiled.of("compiles").kernels]
    assert spilled and all((one > 0) == spills for one in spilled)


def test_figures_of_the_slow_cases_are_those_that_were_counted_and_recorded():
    def moved_per_used(block_m, block_n, stride_m, stride_n):
        addresses = 2 * np.add.outer(np.arange(block_m) * stride_m, np.arange(block_n) * stride_n)
        return 32 * len(np.unique(addresses // 32)) / (2 * block_m * block_n)

    assert "16 times the bytes of x" in " ".join(CASES["p02-4"].figures.split())
    assert '"BLOCK_M": 1, "BLOCK_N": 1024' in CASES["p02-4"].text()
    assert moved_per_used(1, 1024, 1, 4096) == 16 and moved_per_used(1, 1024, 4096, 1) == 1
    assert moved_per_used(128, 64, 1, 4096) == 1
    page = " ".join((ROOT / "docs" / "making-it-fast.md").read_text("utf-8").split())
    assert (
        "16,16,16,1024,128, with 128 MiB of K and V: 0.312 ms without L2 groups, 0.203 ms" in page
    )
    assert "head_dim 128, with 128 MiB of K and V" in CASES["p04-4"].figures
    assert "0.312 ms, the answer 0.203 ms" in CASES["p04-4"].figures


def result_of(case):
    """What the judge says of a case, names and all."""
    diagnosis = Diagnosis(id="P00-NAME", title="a name", note="a note", help="some help")
    told = {"first": "out[0]   got 1   expected 2", "line": 35, "step": 1, "help": "look there"}
    checks = [
        CheckResult(
            id=check.id,
            title=check.id,
            verdict=Verdict.FAIL if check.id in case.fails else Verdict.PASS,
            step=1,
            diagnosis=diagnosis if check.id in case.fails else None,
            message=Message(headline="out is wrong", **told) if check.id in case.fails else None,
        )
        for check in case.problem.checks
    ]
    return ProblemResult(
        id=case.problem.id, title="", bonus=False, verdict=Verdict.FAIL, points=Points(),
        components={}, checks=tuple(checks), next_step="make explain ID=P00-NAME",
    )  # fmt: skip


def of_case(case):
    record = GradeRecord(
        mode="local", environment=probe("cpu"), seed=SEED, submission="", totals=Points(),
        bonus=Points(), problems=(result_of(case),),
    )  # fmt: skip
    return unnamed(record).problems[0]


def test_the_report_on_a_case_names_neither_bug_nor_place():
    said = of_case(CASES["p06-1"]).model_dump_json()
    assert "got 1   expected 2" in said and "make case P=p06" in said
    assert not any(word in said for word in ("NAME", "a name", "a note", "help here", "look there"))
    assert '"line":35' not in said and '"step":1' not in said


@pytest.fixture
def case(grader, monkeypatch, tmp_path):
    """Run `grader case` in an empty folder, with lines or exceptions on standard input."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    tested = lambda folder, id, seed: of_case(CASES[folder.name])  # noqa: E731
    monkeypatch.setattr(command, "tested", tested)

    def run(lines, *options, own="solutions"):
        typed = io.StringIO(lines.replace("^C", ""))
        if "^C" in lines:
            end = typed.readline
            typed.readline = lambda: end() or (_ for _ in ()).throw(KeyboardInterrupt)
        monkeypatch.setattr(sys, "stdin", typed)
        code, out, err = grader("case", *options, "--submission", ROOT / own)
        assert all(len(line) <= 80 for line in out.splitlines())
        return code, " ".join(out.split()), " ".join(err.split())

    return run


def letter(case, right=True):
    return next(key for key, cause in case.options.items() if (cause == case.cause) is right)


@pytest.mark.parametrize("id", CASES)
def test_a_case_is_asked_and_explained(case, id):
    known = CASES[id]
    line = min(known.wrong_lines())
    code, out, _ = case(f"0\nx\n1\nline {line}\nzz\n{letter(known)}\n", "--case", id)
    assert code == 0 and (FOLDER / id / known.problem.id / known.problem.file).is_file()
    assert "got '0', expected a line from 1 to" in out and "not there: line 1: " in out
    assert f"right: line {line}: " in out and "got 'zz', expected one of a, b, c" in out
    assert f"right: line {line}" in out and known.source in out and f"{id}: right" in out
    assert f"make grade SUBMISSION=cases/{id} P={id[:3]} SEED={SEED} MAP=1" in out
    assert " ".join(known.explanation.split()) in out


def test_the_next_one_is_one_that_is_not_solved(case):
    first, second, third = cases_of("p03")
    answered = f"{min(first.wrong_lines())}\n{letter(first)}\n"
    assert (
        "p03-1: right; 1 of 3 solved. Next: make case P=p03" in case(answered, "--only", "p03")[1]
    )
    answered = f"{min(second.wrong_lines())}\n{letter(second, right=False)}\n"
    assert "p03-2: wrong; 1 of 3 solved" in case(answered, "--only", "p03")[1]
    assert "p03-3: skipped; 1 of 3 solved" in case("?\n", "--only", "p03")[1]
    assert "Case p03-2" in case("q\n", "--only", "p03")[1]
    assert "Case p03-1" in case("q\n", "--only", "p03", "--restart")[1]
    for known in (first, second, third):
        case(f"{min(known.wrong_lines())}\n{letter(known)}\n", "--case", known.id)
    assert (
        "All 3 are solved. Again: RESTART=1 with: make case P=p03" in case("", "--only", "p03")[1]
    )


def test_a_line_that_feeds_the_bug_is_right(case):
    line = min(CASES["p06-1"].feeding_lines())
    out = case(f"{line}\n", "--case", "p06-1")[1]
    assert f"right: line {line}, on which the one with the bug depends:" in out


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [("", 0, "Stopped. Go on: make case"), ("q\n", 0, "Stopped."), ("^C", 130, "Interrupted.")],
)
def test_what_is_not_answered_comes_again(case, lines, code, said):
    found, out, _ = case(lines, "--only", "p01")
    assert found == code and said in out and "Case p01-1" in out
    assert "Case p01-1" in case("q\n", "--only", "p01")[1]


def test_an_answer_of_a_problem_that_is_not_finished_is_shown_on_request_alone(case):
    code, out, _ = case("n\n", "--only", "p04", own="problems")
    assert code == 0 and not FOLDER.exists()
    assert "p04-1 shows an answer of p04, which you have not finished." in out
    assert case("", "--only", "p04", own="problems")[0] == 0 and not FOLDER.exists()
    assert "Case p04-1" in case("y\nq\n", "--only", "p04", own="problems")[1]
    assert "not finished" not in case("q\n", "--only", "p04", own="problems")[1]  # it is open


BAD = {
    "unknown": (lambda seal: None, ["--case", "p06-99"], "got 'p06-99', expected one of p01-1, "),
    "older": (
        lambda seal: seal.write_text(
            Seal(case="p01-1", version="0.1.0", sha256="").model_dump_json()
        ),
        [],
        "got a case of version 0.1.0, whose bug may be another one in ",
    ),
    "damaged": (lambda seal: seal.write_text("{"), [], "got a case.json that cannot be read"),
    "a folder of the user's": (lambda seal: None, [], "got something that make case has not put"),
}


@pytest.mark.parametrize(("make", "options", "said"), BAD.values(), ids=BAD)
def test_a_case_that_cannot_be_opened_is_a_sentence(case, make, options, said):
    folder = FOLDER / "p01-1"
    folder.mkdir(parents=True)
    make(folder / SEAL)
    code, _, err = case("", *options)
    assert code == 2 and said in err
    assert options or "move it away or remove it, then run make case CASE=p01-1" in err


def test_without_answers_there_are_no_cases(case, monkeypatch, tmp_path):
    monkeypatch.setattr("grader.commands.case.cases.ROOT", tmp_path)
    code, _, err = case("", "--only", "p04")
    assert code == 2 and "got no case of p04; the cases of a problem show its answer" in err
    (tmp_path / "solutions" / "p04").mkdir(parents=True)
    (tmp_path / "solutions" / "p04" / "cases.toml").write_text("[p04-1]\nstory = 3\n")
    code, _, err = case("", "--only", "p04")
    assert code == 2 and "cases.toml: story: got 3, expected" in err


def test_an_edit_that_no_longer_fits_is_said(monkeypatch):
    monkeypatch.setattr(Case, "answer", lambda self: "nothing")
    with pytest.raises(
        ManifestError, match=r"p01-1: got 0 times .* copy solutions/p01 from the release"
    ):
        CASES["p01-1"].text()


def test_in_a_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = CASES["p02-2"]
    open_case(known, lambda folder: of_case(known))
    words = ["-m", "grader", "case", "--case", known.id, "--submission", ROOT / "solutions"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with subprocess.Popen([sys.executable, *words], env=environment, **streams) as running:
        shown = b""

        def until(text, in_silence=lambda: None):
            nonlocal shown
            end = time.monotonic() + PROMPT_S
            while text not in shown and time.monotonic() < end:
                if select.select([ours], [], [], 1)[0]:
                    shown += os.read(ours, 4096)
                else:
                    in_silence()
            assert text in shown, shown

        try:
            until(b"the line of the bug: ")
            os.write(ours, f"{min(known.wrong_lines())}\n".encode())
            until(b"your letter: ")
            # Python does not act on a signal between the prompt's write and the read.
            until(b"Interrupted. Go on: make case", lambda: running.send_signal(signal.SIGINT))
        except BaseException:
            running.kill()
            raise
    assert running.returncode == 130 and b"right: line" in shown
