"""`grader submit`: what it says of each file, the archive that it writes, what it refuses."""

import json
import os
import shutil
import subprocess
import zipfile

import pytest

from grader import __version__
from grader.commands.submit import command
from grader.source.intake import receipt
from grader.source.intake.archives import read
from grader.source.submission import MAX_SOURCE_BYTES
from grader.spec.problem import PROBLEMS, ROOT, load_problem, problem_ids
from tests.harness import model_answer
from tests.records import write_answers

P02, P04 = "p02/weighted_row_sum.py", "p04/causal_attention.py"
REFUSED = "import os\n\n\ndef weighted_row_sum(x, w):\n    return os.system('id')\n"


@pytest.fixture
def submit(grader, tmp_path, monkeypatch):
    """Run `grader submit` in an empty folder; return exit code, stdout and stderr."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def start(folder, *options):
        code, out, err = grader("submit", "--submission", folder, *options)
        assert all(len(line) <= 80 for line in out.splitlines())
        return code, out, err

    return start


@pytest.fixture
def answers(tmp_path):
    folder = tmp_path / "answers"
    write_answers(folder, {"p02": model_answer("p02"), "p04": model_answer("p04")})
    return folder


def row(out, problem_id):
    return next(line for line in out.splitlines() if line.startswith(problem_id))[54:]


def test_the_archive_holds_the_answers_and_their_receipt(submit, answers, tmp_path):
    code, out, _ = submit(answers)
    assert code == 0
    archive = tmp_path / "work" / "submission.zip"
    found = read(archive)
    assert found.notes == ()
    assert {name: data.decode() for name, data in found.files.items()} == {
        P02: model_answer("p02"),
        P04: model_answer("p04"),
    }
    with zipfile.ZipFile(archive) as packed:
        assert packed.namelist() == [P02, P04, "receipt.json"]
        for info in packed.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert (info.create_system, info.external_attr >> 16) == (3, 0o100644)
            assert info.compress_type == zipfile.ZIP_STORED  # zlib's versions differ
        made = receipt.read_receipt(packed.read("receipt.json"))
    assert made.version == __version__
    assert made.code == receipt.code(found.files)
    assert f"receipt {receipt.code(found.files)}\n" in out
    assert "wrote   submission.zip (2 files, " in out
    assert (row(out, "p02"), row(out, "p03")) == ("ready", "missing")


def test_the_same_answers_make_the_same_bytes(submit, answers, tmp_path):
    submit(answers, "--output", "a.zip")
    os.utime(answers / P02, (1, 1))
    submit(answers, "--output", "b.zip")
    work = tmp_path / "work"
    assert (work / "a.zip").read_bytes() == (work / "b.zip").read_bytes()


def test_a_refused_file_is_said_with_line_and_rule_and_packed(submit, answers, tmp_path):
    (answers / P02).write_text(REFUSED)
    code, out, _ = submit(answers)
    assert code == 1
    assert row(out, "p02") == "refused"
    assert f"    {P02}:1: import: " in out
    assert "what is refused earns nothing" in out
    assert list(read(tmp_path / "work" / "submission.zip").files) == [P02, P04]


def test_what_cannot_be_read_is_refused_and_left_out(submit, answers, tmp_path):
    (answers / P02).unlink()
    (answers / P02).symlink_to(answers / P04)
    (answers / "p01").mkdir()
    (answers / "p01" / "flash_attention.py").write_text("#" * (MAX_SOURCE_BYTES + 1))
    code, out, _ = submit(answers)
    assert code == 1
    said = " ".join(out.split())
    assert f"{P02} is a link, expected a regular file" in said
    assert "is too long, expected at most 128 KiB" in said
    assert list(read(tmp_path / "work" / "submission.zip").files) == [P04]


def test_an_untouched_stub_is_not_started(submit, answers, tmp_path):
    for problem in map(load_problem, ("p01", "p03")):
        (answers / problem.id).mkdir(exist_ok=True)
        stub = (PROBLEMS / problem.id / problem.file).read_text()
        (answers / problem.id / problem.file).write_text(stub)
    code, out, _ = submit(answers)
    assert code == 0
    assert row(out, "p01") == row(out, "p03") == "not started"
    assert "2 ready, 2 not started, 5 missing" in out


def test_a_stub_with_its_first_step_done_is_ready(submit, tmp_path):
    from tests.steps import after

    write_answers(tmp_path / "s", {"p03": after(load_problem("p03"), 1)})
    code, out, _ = submit(tmp_path / "s")
    assert (code, row(out, "p03")) == (0, "ready, step 2 is not done")


def test_nothing_to_grade_writes_nothing(submit, tmp_path):
    folder = tmp_path / "stubs"
    for problem in map(load_problem, problem_ids()):
        (folder / problem.id).mkdir(parents=True)
        shutil.copy(PROBLEMS / problem.id / problem.file, folder / problem.id)
    (folder / P02).write_text(REFUSED)
    code, out, _ = submit(folder)
    assert code == 1
    assert "nothing was written" in out
    assert os.listdir(tmp_path / "work") == []


USAGE = {
    "no folder": (["/no/such"], "which is not a folder"),
    "nothing in it": (["EMPTY"], "which holds no answer; expected files such as p01/"),
    "no such parent": (["ANSWERS", "--output", "no/such/x.zip"], "no such folder"),
    "a folder": (["ANSWERS", "--output", "."], "expected a file's name"),
}


@pytest.mark.parametrize("words, said", USAGE.values(), ids=USAGE)
def test_usage(submit, answers, tmp_path, words, said):
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": tmp_path / "empty", "ANSWERS": answers}
    code, out, err = submit(*(places.get(word, word) for word in words))
    assert (code, out) == (2, "")
    assert said in err


def other_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thesis.txt", "years of work")
        archive.writestr("receipt.json", json.dumps({"paid": True}))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text("notes"),
        other_zip,
        lambda path: path.symlink_to("/etc/hostname"),
        lambda path: path.symlink_to("nowhere"),
    ],
)
def test_what_is_not_ours_is_never_overwritten(submit, answers, tmp_path, make):
    path = tmp_path / "work" / "submission.zip"
    make(path)
    before = os.readlink(path) if path.is_symlink() else path.read_bytes()
    code, _, err = submit(answers)
    assert code == 2 and "which exists and is no archive of `submit`" in err
    assert (os.readlink(path) if path.is_symlink() else path.read_bytes()) == before


def test_an_earlier_archive_is_replaced(submit, answers, tmp_path):
    assert submit(answers)[0] == 0
    (answers / P04).unlink()
    assert submit(answers)[0] == 0
    assert list(read(tmp_path / "work" / "submission.zip").files) == [P02]


def test_a_disk_that_is_full_keeps_the_earlier_archive(submit, answers, tmp_path, monkeypatch):
    submit(answers)
    path = tmp_path / "work" / "submission.zip"
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write_whole_bytes", full)
    code, _, err = submit(answers)
    assert (code, path.read_bytes()) == (4, before)
    assert "cannot write submission.zip: No space left on device" in err


def test_success_is_said_only_of_an_archive_that_was_read_back(submit, answers, monkeypatch):
    real = command.pack
    monkeypatch.setattr(command, "pack", lambda files, *rest: real(files | {P04: b"other"}, *rest))
    code, out, err = submit(answers)
    assert (code, out) == (4, "")
    assert "differs from what was written" in err


def test_hostile_text_is_harmless(submit, answers):
    (answers / P02).write_text("def \x1b[31mf(x): '\u202e'\nimport os  # \x1b]0;t\x07")
    code, out, _ = submit(answers)
    assert code == 1
    assert "\x1b" not in out and "\u202e" not in out


def test_make_submit_says_what_it_would_do():
    done = subprocess.run(
        ["make", "-n", "submit", "PY=python3", "OUTPUT=a b.zip"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert '-m grader submit --submission "problems" --output "a b.zip"' in done.stdout
