"""`submit --to` and what `class collect` reads there: a shared folder, a bare git repository."""

import os
import subprocess
import tarfile
import time
import zipfile

import pytest

from classroom import branches
from classroom.collect import collect
from classroom.records import Student
from grader.commands.submit import places
from grader.source.intake.archives import read
from grader.spec.problem import ROOT
from tests.harness import PROMPT_S, model_answer
from tests.records import write_answers

P02 = "p02/weighted_row_sum.py"
CLASS = [Student(id="ada", name="Ada"), Student(id="s2", login="bob-b")]


@pytest.fixture
def submit(grader, tmp_path, monkeypatch):
    """Hand p02 in, with a line of one's own; return exit code, stdout and stderr as one line."""
    monkeypatch.chdir(tmp_path)

    def start(to, name="ada", text=""):
        write_answers(tmp_path / "answers", {"p02": model_answer("p02") + f"# {text}\n"})
        words = ["submit", "--submission", tmp_path / "answers", "--to", to]
        code, out, err = grader(*words, *(["--name", name] if name else []))
        assert all(len(line) <= 80 or str(tmp_path) in line for line in out.splitlines())
        return code, " ".join(out.split()), err

    return start


@pytest.fixture
def drop(tmp_path):
    folder = tmp_path / "drop"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "hand-ins.git"
    git("init", "--bare", str(folder))
    return folder


def git(*words):
    done = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def collected(source, students=CLASS):
    found = collect(source, students)
    return {hand_in.student: (hand_in, files) for hand_in, files in found.hand_ins}


def test_a_folder_has_an_archive_for_each_name_and_no_half_of_one(submit, drop):
    code, out, _ = submit(drop, text="first")
    assert (code, "handed in as" in out, "upload" in out) == (0, True, False)
    submit(drop, "bob-b")
    assert sorted(path.name for path in drop.iterdir()) == ["ada.zip", "bob-b.zip"]
    assert (drop / "ada.zip").stat().st_mode & 0o777 == 0o640  # of a group, if the folder has one
    found = collected(drop)
    assert set(found) == {"ada", "s2"}
    assert found["ada"][1]["p02"].endswith(b"# first\n")


def test_an_earlier_hand_in_is_replaced_and_that_is_said(submit, drop):
    submit(drop, text="first")
    os.utime(drop / "ada.zip", (0, 10**9))
    code, out, _ = submit(drop, text="second")
    assert code == 0 and "replaces your hand-in of 2001-09-09" in out
    assert read(drop / "ada.zip").files[P02].endswith(b"# second\n")
    assert len(os.listdir(drop)) == 1


def test_what_another_account_handed_in_stays(submit, drop, monkeypatch):
    submit(drop, text="hers")
    before = (drop / "ada.zip").read_bytes()
    monkeypatch.setattr(places.os, "geteuid", lambda: 12345)
    code, _, err = submit(drop, text="his")
    assert code == 4 and "ada.zip is of another account: is ada yours?" in err
    assert (drop / "ada.zip").read_bytes() == before


def test_a_folder_that_cannot_be_written_says_whom_to_ask(submit, drop, monkeypatch):
    def refuse(*_):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(places, "write_whole_bytes", refuse)
    code, _, err = submit(drop)
    assert code == 4 and "ada.zip: Permission denied; the folder must let you write" in err
    assert os.listdir(drop) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have two accounts")
def test_one_account_that_hands_in_for_two_is_noted(submit, drop):
    for name in ("ada", "bob-b", "eve"):
        submit(drop, name)
    assert not any(hand_in.notes for hand_in, _ in collected(drop).values())
    os.chown(drop / "eve.zip", 12345, -1)
    notes = {student: hand_in.notes for student, (hand_in, _) in collected(drop).items()}
    assert notes["eve"] == ()
    (note,) = notes["ada"]
    assert note == "written by the account (uid 0) that wrote s2's, too: see whose it is"


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_repository_has_a_branch_for_each_name_with_all_hand_ins(submit, repository, address):
    to = address.format(repository)
    assert "the first on this branch" in submit(to, text="first")[1]
    assert "on top of your hand-in" in submit(to, text="second")[1]
    assert "has just these files already" in submit(to, text="second")[1]
    submit(to, "bob-b", text="other")
    at = ["--git-dir", str(repository)]
    assert git(*at, "rev-list", "--count", "ada") == "2"
    assert git(*at, "ls-tree", "-r", "--name-only", "ada") == P02
    assert git(*at, "show", f"ada~1:{P02}").endswith("# first")
    found = collected(repository)
    assert found["ada"][1]["p02"].endswith(b"# second\n")
    assert found["s2"][1]["p02"].endswith(b"# other\n")
    assert found["s2"][0].source == "bob-b"


def test_a_time_counts_where_the_repository_itself_wrote_it(submit, repository, monkeypatch):
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")  # a student's own word
    submit(repository)
    assert collected(repository)["ada"][0].submitted_at is None
    git("--git-dir", str(repository), "config", "core.logAllRefUpdates", "always")
    submit(repository, text="again")
    log = repository / "logs" / "refs" / "heads" / "ada"
    found = collected(repository)["ada"][0].submitted_at
    assert found > "2026"
    log.write_bytes(log.read_bytes().replace(b"> ", b"> 1", 1))
    assert collected(repository)["ada"][0].submitted_at != found


def test_a_push_that_is_refused_and_a_remote_that_is_not_there(submit, repository, tmp_path):
    hook = repository / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho closed >&2\nexit 1\n")
    hook.chmod(0o755)
    code, _, err = submit(repository)
    assert code == 4 and "cannot push ada: " in err and "rejected" in err
    assert "nothing was handed in" in err
    code, _, err = submit(f"file://{tmp_path}/no-such.git")
    assert code == 4 and "cannot reach file://" in err and "no-such.git" in err


def test_a_branch_that_is_too_large_is_an_error_of_its_student_alone(
    submit, repository, monkeypatch
):
    submit(repository)
    submit(repository, "bob-b", text="x" * 3000)
    size = len(model_answer("p02")) + 1000
    monkeypatch.setattr(branches, "_MAX_BYTES", size)
    found = collected(repository)
    assert found["ada"][0].error is None and found["s2"][0].error
    assert found["s2"][1] == {}


def test_a_branch_of_ten_billion_files_is_an_error_of_its_student(submit, repository):
    submit(repository)
    at = ["git", "--git-dir", str(repository)]

    def made(*words, told):
        return subprocess.run([*at, *words], input=told, capture_output=True, check=True).stdout

    inside = b"100644 blob " + made("hash-object", "-w", "--stdin", told=b"x").strip()
    for _ in range(10):
        entries = b"".join(b"%s\t%d\n" % (inside, number) for number in range(10))
        inside = b"040000 tree " + made("mktree", told=entries).strip()
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    commit = made(*who, "commit-tree", "-m", "x", inside.split()[2].decode(), told=b"").strip()
    made("update-ref", "refs/heads/bob-b", commit.decode(), told=b"")
    start = time.monotonic()
    found = collected(repository)
    assert time.monotonic() - start < PROMPT_S
    assert found["ada"][0].error is None and found["s2"][0].error


def test_what_a_branch_says_of_its_files_changes_none_of_them(submit, repository, tmp_path):
    submit(repository)
    work = tmp_path / "work"
    git("clone", "-q", "-b", "ada", str(repository), str(work))
    answer = (work / P02).read_bytes() + b"# $Format:%B$\n" * 100
    (work / P02).write_bytes(answer)
    (work / ".gitattributes").write_text(f"{P02} export-subst\nlink export-ignore\n")
    (work / "link").symlink_to("/etc/passwd")
    at = ["-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    git(*at, "add", "-A")
    git(*at, "commit", "-q", "-m", "x" * 10_000)
    git(*at, "push", "-q", "origin", "ada")
    (_, archive, _), *_ = branches.branches(repository, tmp_path)
    assert archive.stat().st_size < len(answer) + 20_000
    with tarfile.open(archive) as packed:
        assert "link" in packed.getnames()
    assert collected(repository)["ada"][1]["p02"] == answer


@pytest.mark.parametrize(
    ("to", "name", "words"),
    [
        ("drop", None, "--name: got nothing, expected your id or login as the course has it: make"),
        ("drop", "../ada", "--name: got '../ada', expected an id or login"),
        ("drop", "a..b", "--name: got 'a..b'"),
        ("drop", ".ada", "--name: got '.ada'"),
        ("drop", "ada.lock", "--name: got 'ada.lock'"),
        ("no-such", "ada", "--to: got no-such, expected a folder that is there or the address"),
    ],
)
def test_a_place_or_a_name_that_cannot_be_is_refused_before_anything_is_written(
    submit, drop, tmp_path, to, name, words
):
    code, _, err = submit(to, name)
    assert code == 2 and words in err
    assert not os.listdir(drop) and not (tmp_path / "submission.zip").exists()


def test_a_name_without_a_place(grader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_answers(tmp_path / "a", {"p02": model_answer("p02")})
    code, _, err = grader("submit", "--submission", tmp_path / "a", "--name", "ada")
    assert code == 2 and "--name: got it without --to" in err


def test_make_submit_hands_in():
    words = ["make", "-n", "submit", "PY=python3", "TO=/srv/drop box", "NAME=ada"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert '--to "/srv/drop box" --name "ada"' in done.stdout


def test_the_archive_is_written_here_too(submit, drop, tmp_path):
    submit(drop)
    assert zipfile.is_zipfile(tmp_path / "submission.zip")
    assert (tmp_path / "submission.zip").read_bytes() == (drop / "ada.zip").read_bytes()
