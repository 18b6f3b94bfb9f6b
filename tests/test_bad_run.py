"""One graded run of a submission in which every problem fails in its own way, and Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.manifest import ROOT, load_problem

SEED = "5eed"
HEAD = "import os, sys, time, ctypes, torch, triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def kernel(q_ptr, SIZE: tl.constexpr):
    ids = tl.arange(0, SIZE)
    tl.no_such_function(ids)

"""

# What stands above the entry point, its body, and the problem's verdict, line and headline.
FAULTS = {
    "p01": ("", "raise KeyError('x' * 3000)", "error", 4, "KeyError: 'xxxx"),
    "p04": ("def broken(:\n", "pass", "error", 3, "syntax error: invalid syntax"),
    "p05": ("import no_such\n", "pass", "error", 3, "cannot be imported: ModuleNotFoundError"),
    "p06": ("", "os._exit(0)", "crash", None, "the process exited with code 0"),
    "p07": (KERNEL, "kernel[(1,)](q, SIZE=8)", "error", 7, "has no attribute 'no_such_function'"),
    "p08": ("", "ctypes.string_at(0)", "crash", 4, "died with SIGSEGV"),
    "p09": ("", "raise NotImplementedError('p09 step 2')", "not-implemented", 4, "p09 step 2"),
}


def write(folder, problem_id, head, body):
    problem = load_problem(problem_id)
    text = f"{HEAD}{head}def {problem.signature}:\n    {body}\n"
    if body.startswith("raise NotImpl"):  # not provable from the text: found out at run time
        text = text.replace(body, "for _ in range(3):\n        " + body + "\n    return q")
    path = folder / problem_id / problem.file
    path.parent.mkdir(parents=True)
    path.write_text(text)


def copy_answer(folder, problem_id):
    file = load_problem(problem_id).file
    path = folder / problem_id / file
    path.parent.mkdir(parents=True)
    path.write_bytes((ROOT / "solutions" / problem_id / file).read_bytes())


def command(folder, *options):
    arguments = [sys.executable, "-m", "grader", "grade", "--submission", str(folder)]
    return [*arguments, "--device", "cpu", "--seed", SEED, *options]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("submission")
    copy_answer(folder, "p02")
    for problem_id, (head, body, *_) in FAULTS.items():
        write(folder, problem_id, head, body)
    path = folder / "record.json"
    done = subprocess.run(
        command(folder, "--json", str(path)), cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done, json.loads(path.read_text())


def problem_of(record, problem_id):
    (found,) = [p for p in record["problems"] if p["id"] == problem_id]
    return found


def message_of(problem):
    messages = [problem["message"], *(check["message"] for check in problem["checks"])]
    return next(m for m in messages if m)


@pytest.mark.parametrize("problem_id", FAULTS)
def test_each_fault_is_one_verdict_with_the_students_line(run, problem_id):
    *_, verdict, line, headline = FAULTS[problem_id]
    if problem_id == "p09":
        line += 1
    problem = problem_of(run[1], problem_id)
    message = message_of(problem)
    assert problem["verdict"] == verdict
    assert headline in message["headline"] and len(message["headline"]) <= 600
    file = load_problem(problem_id).file
    assert message["where"].endswith(file + (f" line {line}" if line else ""))
    assert problem["points"]["earned"] == 0
    worse = {c["verdict"] for c in problem["checks"]} - {verdict, "skipped", "fail"}
    assert not worse


def test_the_neighbours_are_graded_and_keep_their_points(run):
    done, record = run
    assert done.returncode == 1
    assert [p["id"] for p in record["problems"]] == [f"p{n:02}" for n in range(1, 10)]
    good, missing = problem_of(record, "p02"), problem_of(record, "p03")
    assert good["verdict"] == "pass"
    assert good["points"]["earned"] == good["points"]["available"] == 6
    assert missing["verdict"] == "error"
    expected = "file not found: expected p03/noncausal_attention.py in the submission"
    assert missing["message"]["headline"] == expected
    assert record["interrupted"] is False


def test_record_and_report_agree(run):
    done, record = run
    for part, bonus in (("totals", False), ("bonus", True)):
        for name in ("earned", "available", "possible"):
            points = [p["points"][name] for p in record["problems"] if p["bonus"] is bonus]
            assert record[part][name] == sum(points)
    totals = record["totals"]
    assert totals["possible"] == 100 and record["bonus"]["possible"] == 50
    assert f"required {totals['earned']} / {totals['available']} available here" in done.stdout
    for problem in record["problems"]:
        points = problem["points"]
        (row,) = re.findall(rf"^{problem['id']} .*$", done.stdout, re.M)
        assert row.endswith(f" {points['earned']}/{points['available']}")
        assert problem["verdict"].split("-")[0] in row


def test_nothing_of_the_machine_is_shown(run):
    done, record = run
    for text in (done.stdout, json.dumps(record["problems"])):
        assert "/submission-" not in text and "grader/worker.py" not in text
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len(json.dumps(record)) < 300_000


def stopped(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_ctrl_c_keeps_what_was_earned_and_leaves_no_process(tmp_path):
    copy_answer(tmp_path, "p02")
    pids = tmp_path / "pids"
    hang = (
        "child = os.fork()\n    if child == 0:\n        os.setsid()\n        time.sleep(90)\n"
        f"    open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child}}\\n')\n    time.sleep(90)"
    )
    write(tmp_path, "p03", "", hang)
    path, log = tmp_path / "record.json", tmp_path / "log"
    with log.open("w") as stderr:
        grader = subprocess.Popen(
            command(tmp_path, "--only", "p02,p03,p04", "--jobs", "2", "--json", str(path)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        begun = lambda: pids.exists() and pids.read_text().endswith("\n")  # noqa: E731
        assert wait_for(lambda: "p02  pass" in log.read_text() and begun(), 60.0)
        grader.send_signal(signal.SIGINT)
        output, _ = grader.communicate(timeout=30)
    finally:
        grader.kill()
    assert grader.returncode == 130
    record = json.loads(path.read_text())
    assert record["interrupted"] is True
    assert problem_of(record, "p02")["points"]["earned"] == 6
    assert problem_of(record, "p03")["verdict"] in ("skipped", "not-measured", "timeout")
    assert problem_of(record, "p03")["points"]["earned"] == 0
    assert "file not found" in problem_of(record, "p04")["message"]["headline"]
    assert "p02 Weighted row sum" in output and "interrupted" in output
    assert all(wait_for(lambda p=pid: stopped(int(p)), 5.0) for pid in pids.read_text().split())
    assert not [n for n in os.listdir(tmp_path) if n.startswith("record.json") and n != path.name]
