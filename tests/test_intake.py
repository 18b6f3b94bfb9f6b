"""grader/source/intake: where answers are found in folders, zips and tars, notes, and receipts."""

import datetime
import errno
import os
import socket

import pytest

from grader.source.intake import archives, receipt
from grader.source.intake.archives import read
from tests.submissions import (
    EVIL,
    MAKERS,
    P02,
    P04,
    TWO,
    each_form,
    make_folder,
    make_tar,
    make_zip,
    refusal,
)


@each_form
@pytest.mark.parametrize("prefix", ["", "problems/", "Jane Doe/hw 1/", "x" * 150 + "/", "Übung/"])
def test_one_prefix_of_any_kind(tmp_path, make, prefix):
    found = read(make(tmp_path, {prefix + name: data for name, data in TWO.items()}))
    assert dict(found.files) == TWO
    assert found.notes == ()


@each_form
def test_two_prefixes_are_two_submissions(tmp_path, make):
    path = make(tmp_path, {"mine/" + P02: b"2", "yours/" + P04: b"4"})
    assert "two submissions in one, in mine and in yours" in refusal(path)


@each_form
@pytest.mark.parametrize(
    "name",
    [
        "causal_attention.py",
        "causal_attention-1.py",
        "causal_attention (2).py",
        "doejane_LATE_123_4567_causal_attention-3.py",
        "Jane Doe_12345_assignsubmission_file_/causal_attention.py",
    ],
)
def test_flat_files_by_their_own_names(tmp_path, make, name):
    assert dict(read(make(tmp_path, {name: b"4"})).files) == {P04: b"4"}


def test_a_name_inside_another_is_not_taken_for_it(tmp_path):
    path = make_zip(tmp_path / "s.zip", {"my_gqa_attention.py": b"5", "causal_attention.py": b"4"})
    found = read(path)
    assert list(found.files) == [P04]
    assert found.notes == ("my_gqa_attention.py: not graded",)


def test_flat_names_do_not_count_where_a_problem_folder_is(tmp_path):
    path = make_folder(tmp_path / "s", {P02: b"2", "causal_attention.py": b"4"})
    assert list(read(path).files) == [P02]
    wrong = make_folder(tmp_path / "t", {"p05/causal_attention.py": b"4"})
    assert "got no answer (p05/causal_attention.py: not graded)" in refusal(wrong)


def test_two_flat_files_for_one_problem(tmp_path):
    path = make_zip(tmp_path / "s.zip", {"causal_attention.py": b"", "causal_attention-1.py": b""})
    assert "got two files for p04/causal_attention.py" in refusal(path)
    apart = {"a/causal_attention.py": b"", "b/causal_attention.py": b""}
    assert "two submissions in one, in a and in b" in refusal(make_zip(path, apart))


def test_a_single_file(tmp_path):
    path = tmp_path / "causal_attention.py"
    path.write_bytes(b"4")
    assert dict(read(path).files) == {P04: b"4"}
    path = path.rename(tmp_path / "homework.py")
    assert "expected files such as p01/flash_attention.py" in refusal(path)


def test_what_systems_leave_behind_is_ignored_silently(tmp_path):
    junk = ["__MACOSX/._p04", "__MACOSX/p04/._causal_attention.py", "p04/.DS_Store", ".git/HEAD"]
    junk += ["p04/__pycache__/causal_attention.pyc", "p04/._causal_attention.py"]
    for make in MAKERS.values():
        found = read(make(tmp_path, TWO | dict.fromkeys(junk, b"x")))
        assert (dict(found.files), found.notes) == (TWO, ())


def test_what_is_not_graded_has_a_note(tmp_path):
    more = [
        "p04/helpers.py",
        "given/tiles.py",
        "notes.txt",
        "old/inner.zip",
        "P04/Causal_attention.py",
    ]
    found = read(make_zip(tmp_path / "s.zip", TWO | dict.fromkeys(more, b"x")))
    assert dict(found.files) == TWO
    assert set(found.notes) == {
        "p04/helpers.py, notes.txt: not graded",
        "given/tiles.py: not used, the judge has its own copy",
        "old/inner.zip: an archive in the submission, not opened",
        f"P04/Causal_attention.py: not graded, expected the name {P04}",
    }


def test_many_files_have_one_note(tmp_path):
    found = read(make_zip(tmp_path / "s.zip", TWO | {f"{n}.txt": b"" for n in range(3000)}))
    assert found.notes == ("0.txt, 1.txt, 2.txt, 3.txt and 2996 more: not graded",)


def test_names_are_harmless_in_notes(tmp_path):
    for make in (MAKERS["zip"], MAKERS["tar.gz"]):
        (note,) = read(make(tmp_path, TWO | {EVIL: b""})).notes
        assert note == "a b?script???x??l?(javascript?0).py: not graded"
    long = read(make_zip(tmp_path / "s.zip", TWO | {"y" * 5000: b""})).notes[0]
    assert len(long) < 120


@each_form
def test_nothing_to_grade(tmp_path, make):
    text = refusal(make(tmp_path, {"readme.txt": b"hello", "inner.tar.gz": b"x"}))
    assert "readme.txt: not graded" in text and "inner.tar.gz" in text and "make submit" in text


def test_empty_submissions(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "got no answer (nothing)" in refusal(empty)
    assert "got no answer (nothing)" in refusal(make_zip(tmp_path / "e.zip", {}))
    assert "got no answer (nothing)" in refusal(make_tar(tmp_path / "e.tar", {}, "w"))
    assert "got no answer (nothing)" in refusal(make_tar(tmp_path / "e.tgz", {}))


def test_files_that_are_no_submission(tmp_path):
    path = tmp_path / "s.rar"
    path.write_bytes(b"Rar!\x1a\x07")
    assert "expected a folder, a .zip, a .tar, a .tar.gz or a .py file" in refusal(path)
    path.write_bytes(b"")
    assert "got an empty file" in refusal(path)
    assert "No such file" in refusal(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    assert "something else than a regular file" in refusal(tmp_path / "fifo")
    (tmp_path / "link.zip").symlink_to(make_zip(tmp_path / "s.zip", TWO))
    assert "got a link" in refusal(tmp_path / "link.zip")


def test_a_folder_with_all_kinds_of_files(tmp_path):
    folder = make_folder(tmp_path / "s", TWO | {"deep/" * 40 + "x.py": b""})
    (folder / "p01").symlink_to(folder / "p04")
    (folder / "p03").mkdir()
    os.mkfifo(folder / "p03" / "noncausal_attention.py")
    (folder / "p05").mkdir()
    there = os.getcwd()
    os.chdir(folder)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("p05/gqa_attention.py")
    finally:
        os.chdir(there)
    found = read(folder)
    assert dict(found.files) == TWO
    notes = " ".join(found.notes)
    assert "p03/noncausal_attention.py, p05/gqa_attention.py: no regular file" in notes
    assert "p01: a link, not followed" in notes
    assert "a folder that was not looked into" in notes


def test_files_and_folders_that_cannot_be_read(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "s", TWO | {"secret/x": b""})
    real = os.open

    def refusing(path, *args, **options):
        if path in ("secret", "causal_attention.py"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    found = read(folder)
    assert list(found.files) == [P02]
    assert f"{P04}: cannot be read: Permission denied" in found.notes
    assert "secret: a folder that was not looked into" in found.notes


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path):
    folder = make_folder(tmp_path / "s", TWO)
    with archives.folders.opened(folder, "s") as found:
        (folder / P04).unlink()
        (folder / P04).symlink_to("/etc/passwd")
        entry = next(e for e in found if e.name == P04)
        with pytest.raises(OSError):
            entry.read()
        other = next(e for e in found if e.name == P02)
        (folder / "p02").rename(tmp_path / "elsewhere")
        (folder / "p02").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError):
            other.read()


def test_the_code_depends_on_names_and_bytes_alone():
    code = receipt.code(TWO)
    assert len(code) == 16 and int(code, 16) >= 0
    assert receipt.code(dict(reversed(TWO.items()))) == code
    assert receipt.code({P02: TWO[P02]}) != code
    assert receipt.code({P02: TWO[P04], P04: TWO[P02]}) != code
    assert receipt.code({"ab": b"c"}) != receipt.code({"a": b"bc"})
    made = receipt.receipt_of(TWO, "0.7.0", datetime.date(2026, 11, 23))
    assert made.code == code
    assert receipt.read_receipt(made.model_dump_json().encode()) == made


@each_form
def test_a_receipt_of_other_files_is_told(tmp_path, make):
    made = receipt.receipt_of(TWO, "0.7.0", datetime.date(2026, 11, 23)).model_dump_json().encode()
    assert read(make(tmp_path, {**TWO, "receipt.json": made})).notes == ()
    other = TWO | {P04: b"changed"}
    (note,) = read(make(tmp_path, {**other, "receipt.json": made})).notes
    assert receipt.code(TWO) in note and receipt.code(other) in note


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"files":' + b"1" * 9**5])
def test_a_receipt_that_is_none(tmp_path, data):
    found = read(make_zip(tmp_path / "s.zip", {**TWO, "receipt.json": data}))
    assert dict(found.files) == TWO
    assert found.notes == ("receipt.json is not one that `make submit` writes, ignored",)
