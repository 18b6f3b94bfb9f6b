"""`python -m grader` as a process: outputs that are gone, signals, what lies around, who sees."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.isolate import usage
from grader.spec.grade_record import GradeRecord, Verdict
from grader.spec.problem import ROOT
from tests.harness import PROMPT_S, alive, model_answer, until
from tests.records import write_answers
from tests.shares import drawn

ENTRY = "    rows, cols = x.shape\n"
# The grader of this checkout, wherever it is started.
HERE = os.environ | {"PYTHONPATH": str(ROOT)}
REFUSED = "def weighted_row_sum(x):\n    return x\n"


@pytest.fixture
def answers(tmp_path):
    """A folder with the given source as p02, with letters that ASCII has not."""

    def write(text):
        folder = tmp_path / "réponses 答"
        write_answers(folder, {"p02": text})
        return folder

    return write


def command(folder, *options):
    arguments = [sys.executable, "-m", "grader", "grade", "--submission", str(folder)]
    return [*arguments, "--device", "cpu", "--only", "p02", *map(str, options)]


def start(arguments, **how):
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, **{"cwd": ROOT} | piped | how)


def finish(process, timeout=PROMPT_S):
    out, err = process.communicate(timeout=timeout)
    assert "Traceback" not in (err or ""), err
    return process.returncode, out, err


def test_without_a_standard_output_the_exit_code_tells_what_lint_found(tmp_path):
    write_answers(tmp_path, {"p02": "import os\nos.abort()\n"})
    arguments = [sys.executable, "-m", "grader", "lint", str(tmp_path)]
    code, _, err = finish(start(arguments, stdout=None, preexec_fn=lambda: os.close(1)))
    assert (code, err) == (1, "")


STREAMS = {
    "closed": lambda: os.close(1),
    "closed, and so are errors": lambda: (os.close(1), os.close(2)),
    "all closed": lambda: (os.close(0), os.close(1), os.close(2)),
    "full": lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1),
    "read-only": lambda: os.dup2(os.open("/dev/null", os.O_RDONLY), 1),
}


@pytest.mark.parametrize("stream", drawn(STREAMS, 2))
def test_a_standard_output_that_is_gone_loses_neither_record_nor_exit_code(
    answers, tmp_path, stream
):
    path = tmp_path / "record.json"
    arguments = command(answers(REFUSED), "--json", path)
    how = {"stdout": subprocess.DEVNULL, "preexec_fn": STREAMS[stream]}
    code, _, _ = finish(start(arguments, **how))
    assert code == 1
    assert GradeRecord.model_validate_json(path.read_text()).problems[0].verdict is Verdict.ERROR


def test_a_reader_that_went_away_is_no_fault(answers, tmp_path):
    path = tmp_path / "record.json"
    read, write = os.pipe()
    os.close(read)
    process = start(command(answers(REFUSED), "--json", path), stdout=write)
    os.close(write)
    code, _, err = finish(process)
    assert code == 1 and path.exists()
    assert "BrokenPipe" not in err and "Exception ignored" not in err


@pytest.mark.parametrize("encoding", drawn(["ascii", "latin-1", "utf-16", "utf-8"], 2))
def test_letters_that_the_output_has_not_become_question_marks(answers, tmp_path, encoding):
    path = tmp_path / "record.json"
    env = HERE | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    arguments = command(answers(REFUSED).name, "--json", path)
    done = start(arguments, cwd=tmp_path, env=env, text=False)
    out, err = done.communicate()
    assert done.returncode == 1, err.decode(encoding, "replace")
    report = out.decode(encoding)
    shown = {"ascii": "r?ponses ?", "latin-1": "réponses ?"}.get(encoding, "réponses 答")
    assert f"submission {shown}\n" in report and "wrong signature" in report
    assert json.loads(path.read_text("utf-8"))["submission"] == "réponses 答"


def test_nothing_that_lies_in_the_current_folder_is_imported(answers, tmp_path):
    folder = answers(REFUSED)
    mark = tmp_path / "mark"
    for name in "rich pydantic packaging pytest torch tomllib reference json".split():
        text = f"open({str(mark)!r}, 'w').write({name!r})\nraise SystemExit('mine')\n"
        (folder / f"{name}.py").write_text(text)
        (folder / "p02" / f"{name}.py").write_text(text)
    for name in ("sitecustomize", "usercustomize", "conftest"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write({name!r})\n")
    for current in (folder, folder / "p02"):
        code, out, _ = finish(start(command(folder), cwd=current, env=HERE))
        assert not mark.exists(), mark.read_text()
        assert code == 1 and "wrong signature" in out


def seen_by_others(pid):
    """What any process of this user can read of `pid` and all that it started."""
    texts = []
    for process in (pid, *usage.descendants(pid)):
        for name in ("cmdline", "environ", "comm"):
            try:
                texts.append(Path(f"/proc/{process}/{name}").read_bytes())
            except OSError:
                continue
    return texts


def endless(mark):
    loop = f"    open({str(mark)!r}, 'w').close()\n    while rows:\n        pass\n"
    return model_answer("p02").replace(ENTRY, ENTRY + loop)


@pytest.mark.parametrize(
    ("number", "ignored"),  # Ctrl-C is ignored at the start
    drawn([(signal.SIGINT, True), (signal.SIGTERM, False)], 2),
)
def test_a_signal_ends_the_run_with_a_record_and_leaves_no_process(
    answers, tmp_path, number, ignored
):
    """Nor did any process show the seed, or a file of it, while the submission ran."""
    path, mark = tmp_path / "record.json", tmp_path / "mark"
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    process = start(
        command(answers(endless(mark)), "--json", path, "--no-policy"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    seen, running = set(), False
    while not running and process.poll() is None:
        running = mark.exists()
        seen.update(seen_by_others(process.pid))
        seen.update(file.read_bytes() for file in tmp_path.glob("grader-*/*.json"))
        time.sleep(0.05)
    started = usage.descendants(process.pid)
    process.send_signal(number)
    begin = time.monotonic()
    code, out, _ = finish(process)
    assert time.monotonic() - begin < PROMPT_S
    assert code == 130 and len(started) >= 2
    assert "interrupted: what was not run has the verdict skipped" in out
    record = GradeRecord.model_validate_json(path.read_text())
    assert record.interrupted and f"seed {record.seed}" in out
    assert not {c.verdict for c in record.problems[0].checks} & {Verdict.INTERNAL, Verdict.CRASH}
    assert not any(map(alive, started))
    assert any(b"fork_server.py" in text for text in seen)
    assert not [text for text in seen if record.seed.encode() in text]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("grader-")] == []


def test_a_judge_that_is_killed_leaves_the_record_of_what_was_done_and_no_process(tmp_path):
    path, folder = tmp_path / "record.json", tmp_path / "answers"
    line = "    check_attention("
    loop = model_answer("p03").replace(line, f"    while True:\n        pass\n{line}")
    assert loop != model_answer("p03")
    write_answers(folder, {"p02": REFUSED, "p03": loop})
    arguments = command(folder, "--json", path, "--jobs", 2)
    arguments[arguments.index("p02")] = "p02,p03"
    process = start(arguments, stdout=None, stderr=subprocess.DEVNULL)
    # Four processes: the submission runs.
    until(lambda: path.exists() and len(usage.descendants(process.pid)) >= 4, 90.0)
    started = usage.descendants(process.pid)
    process.kill()
    process.wait()
    record = GradeRecord.model_validate_json(path.read_text())
    first, second = record.problems
    assert record.interrupted and first.verdict is Verdict.ERROR
    assert {check.verdict for check in second.checks} == {Verdict.SKIPPED}
    assert len(started) >= 4 and until(lambda: not any(map(alive, started)))
    for pid in started:  # this process may be the one that adopts orphans
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
