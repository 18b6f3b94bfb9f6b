"""`grader release` again: updates, what students changed, answers, and what cannot be used."""

import datetime
import json
import os
import re
import shutil

import pytest

from grader import __version__
from grader.commands.release import command, ledger
from grader.spec.problem import ROOT
from tests import releases
from tests.harness import model_answer
from tests.releases import ALL, STUB, made, release, tree

build = command.build
whole, stage, answered = releases.whole, releases.stage, releases.answered


def test_nothing_changes_when_nothing_has(stage):
    before, when = tree(stage), (stage / ledger.NAME).stat().st_mtime_ns
    out = made(stage)
    assert "nothing has changed for students" in out
    assert tree(stage) == before
    assert (stage / ledger.NAME).stat().st_mtime_ns == when


def test_the_page_of_a_cause_tests_the_problems_that_are_there(stage, whole):
    def tested(folder):
        text = (folder / "docs" / "causes.md").read_text("utf-8")
        (about,) = re.findall(r"^### SCALE-OPTION-IGNORED.*?(?=^### )", text, re.MULTILINE | re.S)
        return re.findall(r"^\| (p\d\d) \|", about, re.MULTILINE)

    assert tested(stage) == ["p01"] and len(tested(whole)) > 5


def test_more_problems_are_added(tmp_path, whole):
    assert "30 points" in made(tmp_path / "c", "--problems", "1 2")
    out = made(tmp_path / "c", "--problems", "p03")
    assert "p01, p02, p03, 50 points" in out
    assert "stubs       problems/p03/noncausal_attention.py" in out
    assert "CHANGELOG" not in out
    out = made(tmp_path / "c", "--problems", ",".join(ALL))
    assert "100 points and 50 bonus" in " ".join(out.split())
    assert tree(tmp_path / "c") == tree(whole)


@pytest.fixture
def newer(monkeypatch):
    """Let the checkout be of another version, with these files changed or gone (None)."""

    def change(**files):
        def changed(*arguments):
            found = build(*arguments) | {k: v for k, v in files["files"].items() if v is not None}
            return {k: v for k, v in found.items() if files["files"].get(k, b"") is not None}

        monkeypatch.setattr(command, "build", changed)
        monkeypatch.setattr(command, "__version__", files.get("version", __version__))

    return change


def test_a_new_version_says_what_has_changed(tmp_path, newer):
    folder = tmp_path / "c"
    made(folder, "--problems", "p01,p02")
    newer(
        files={
            "problems/p02/README.md": b"handout\n", "problems/p02/test_p02.py": b"test\n",
            "grader/judge/scoring.py": b"judge\n", "problems/given/launch.py": b"given\n",
            STUB: b"stub\n", "requirements.txt": b"torch\n", "docs/record.schema.json": None,
        }
    )  # fmt: skip
    out = made(folder)
    assert f"version {__version__}" in " ".join(out.split())
    for row in (
        "handouts    problems/p02/README.md", f"stubs       {STUB}",
        "judge       grader/judge/scoring.py", "tests       problems/p02/test_p02.py",
        "given       problems/given/launch.py",
        "set-up      requirements.txt", "removed     docs/record.schema.json",
    ):  # fmt: skip
        assert row in out
    assert (folder / STUB).read_bytes() == b"stub\n"  # nobody had begun it
    assert not (folder / "docs" / "record.schema.json").exists()
    assert json.loads((folder / ledger.NAME).read_text())["version"] == __version__


def test_what_somebody_changed_is_kept(tmp_path, newer):
    folder = tmp_path / "c"
    made(folder, "--problems", "p01,p02")
    mine = {
        "README.md": b"our course\n", "docs/record.schema.json": b"{}\n", STUB: b"my answer\n",
        "problems/p01/notes.txt": b"mine\n", "grader/judge/scoring.py": b"mine too\n",
    }  # fmt: skip
    for path, data in mine.items():
        (folder / path).write_bytes(data)
    (folder / "LICENSE").unlink()
    out = made(folder)
    assert "kept        README.md, docs/record.schema.json, grader/judge/scoring.py" in out
    assert "differ from this version's" not in out and not (folder / f"{STUB}.new").exists()
    assert (folder / "LICENSE").exists()
    newer(files={STUB: b"new stub\n", "README.md": b"new page\n", "docs/record.schema.json": None})
    for _ in range(2):
        out = made(folder)
        assert {path: (folder / path).read_bytes() for path in mine} == mine
        assert (folder / f"{STUB}.new").read_bytes() == b"new stub\n"
        assert "README.md, differ from this version's" in " ".join(out.split())
    assert "beside" not in out  # said once
    newer(files={STUB: b"newest stub\n"}, version="99.0.0")
    assert f"beside      {STUB}.new" in made(folder)
    assert (folder / f"{STUB}.new").read_bytes() == b"newest stub\n"
    (folder / STUB).write_bytes(b"newest stub\n")
    made(folder)
    assert not (folder / f"{STUB}.new").exists()


def test_a_full_disk_is_repaired_by_the_next_run(tmp_path, monkeypatch, stage, newer):
    folder, real, count = tmp_path / "c", ledger.write_whole_bytes, 0

    def full(path, data):
        nonlocal count
        count += 1
        if count > 40:
            raise OSError(28, "No space left on device")
        real(path, data)

    def cut_short():
        nonlocal count
        count = 0
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "write_whole_bytes", full)
            code, out, err = release(folder, "--problems", "p01,p02")
        assert (code, out) == (4, "")
        assert "No space left on device; run it again" in err and str(folder) in err

    cut_short()
    assert 30 < len(tree(folder)) < 60
    made(folder, "--problems", "p01,p02")
    assert tree(folder) == tree(stage)
    # An update that is cut short, then one to a still newer version.
    files = {path: data + b"\n" for path, data in tree(stage).items()}
    newer(files=files)
    cut_short()
    newer(files={path: data + b"\n\n" for path, data in tree(stage).items()}, version="99.0.0")
    assert "kept" not in made(folder)
    assert all(data.endswith(b"\n\n") for data in tree(folder).values())


def test_answers_wait_for_their_date(tmp_path):
    folder = tmp_path / "c"
    out = made(folder, "--problems", "p02", "--answers-after", "2999-01-01T18:00+01:00")
    moment = datetime.datetime.fromisoformat("2999-01-01T18:00+01:00").astimezone()
    for _ in range(2):
        assert f"of p02: not before {moment:%Y-%m-%d %H:%M}" in " ".join(out.split())
        assert not (folder / "solutions").exists()
        out = made(folder)


def test_answers_come_with_what_is_said_of_them(answered):
    files = tree(answered)
    assert files["solutions/p02/weighted_row_sum.py"].decode() == model_answer("p02")
    assert "(p02/weighted_row_sum.py): the model answer" in files["solutions/README.md"].decode()
    assert "solutions/p02/cases.toml" in files
    assert "`make case P=p02`" in files["solutions/README.md"].decode()
    assert (
        "The answers of p02 are in [solutions](solutions/README.md)." in files["README.md"].decode()
    )
    closed = ("p01", "p03")
    assert not [p for p in files if p.startswith("solutions/p") and p.split("/")[1] in closed]


def test_answers_that_are_out_stay_out(answered, tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(answered, copy)
    made(copy, "--answers-after", "2999-01-01", "--problems", "p02")
    assert tree(copy) == tree(answered)


def test_a_date_without_a_time_is_the_end_of_the_day():
    day = ledger.read_date("2027-01-31")
    assert day == datetime.datetime(2027, 2, 1).astimezone()
    assert ledger.read_date("2027-01-31T18:00").replace(tzinfo=None).hour == 18
    assert ledger.read_date("2027-01-31T18:00Z").astimezone(datetime.UTC).hour == 18


def test_a_past_date_is_for_problems_that_were_handed_out(tmp_path):
    folder = tmp_path / "c"
    code, _, err = release(folder, "--problems", "p02", "--answers-after", "2020-01-01")
    assert code == 2 and "which is past, for p02, which is new" in err
    assert not folder.exists()
    made(folder, "--problems", "p02")
    out = made(folder, "--answers-after", "2020-01-01")
    assert "answers     of p02: handed out now" in out
    assert (folder / "solutions" / "p02").exists()


def refused(folder, *options):
    code, out, err = release(folder, *options)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err


def test_folders_that_cannot_be_used(tmp_path, stage, monkeypatch):
    assert "inside this checkout" in refused(ROOT / "course")
    assert "inside this checkout" in refused(ROOT)
    (tmp_path / "here").symlink_to(ROOT / "docs")
    assert "inside this checkout" in refused(tmp_path / "here")
    file = tmp_path / "file"
    file.write_text("x")
    assert "which is not a folder" in refused(file)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    assert "not empty and has no .release.json" in refused(full)
    assert os.listdir(full) == ["thesis.txt"]
    with monkeypatch.context() as patch:
        patch.setattr(command, "__version__", "0.1.0")
        assert f"of version {__version__}, which is newer than this checkout's 0.1.0" in refused(
            stage
        )


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 9999, b"\xff", b'{"version": 3}'])
def test_a_ledger_that_is_none(tmp_path, data):
    (tmp_path / ledger.NAME).write_bytes(data)
    assert "is not one that this version" in refused(tmp_path)


@pytest.mark.parametrize(
    "path", ["../thesis.txt", "/etc/hostname", "a/../../thesis.txt", "./x", ""]
)
def test_a_ledger_that_names_files_outside(tmp_path, path):
    folder, thesis = tmp_path / "c", tmp_path / "thesis.txt"
    made(folder, "--problems", "p02")
    thesis.write_text("years of work")
    record = json.loads((folder / ledger.NAME).read_text())
    record["files"][path] = ledger.digest(thesis.read_bytes())
    (folder / ledger.NAME).write_text(json.dumps(record))
    assert "is not one that this version" in refused(folder)
    assert thesis.exists()


def test_a_folder_with_git_alone_is_empty(tmp_path):
    (tmp_path / ".git").mkdir()
    made(tmp_path, "--problems", "p02")


def test_options_that_cannot_be_used(tmp_path):
    assert "--problems (P= of make): got p10, expected some of p01" in refused(
        tmp_path / "c", "--problems", "p01,p10"
    )
    assert "got nothing" in refused(tmp_path / "c", "--problems", "")
    for text in ("soon", "2027-02-30", "31.1.2027", "", "2027-01-31T25:00"):
        assert "--answers-after (ANSWERS_AFTER= of make): got" in refused(
            tmp_path / "c", "--answers-after", text
        )
    assert not (tmp_path / "c").exists()


def test_links_in_a_release_are_not_written_through(tmp_path):
    folder, outside = tmp_path / "c", tmp_path / "outside"
    made(folder, "--problems", "p02")
    outside.mkdir()
    (folder / "LICENSE").unlink()
    (folder / "LICENSE").symlink_to(outside / "LICENSE")
    assert "kept        LICENSE" in made(folder)
    shutil.rmtree(folder / "docs")
    (folder / "docs").symlink_to(outside)
    assert "expected a folder; move it away" in refused(folder)
    assert os.listdir(outside) == []
    (folder / "docs").unlink()
    (folder / "docs").write_text("x")
    assert "expected a folder; move it away" in refused(folder)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refusing(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command.Path, "mkdir", refusing)
    code, _, err = release(tmp_path / "c")
    assert code == 4 and "Permission denied" in err
