"""Sources of a class that are hostile, damaged or too large, and sources collected again."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from classroom import unpacking
from classroom.collect import collect, keep
from classroom.records import CourseError
from classroom.store import Store
from grader.base import scratch
from tests.classes import P02, by_student, packed, write
from tests.test_collect import P04, ROSTER


@pytest.fixture
def own_scratch(tmp_path_factory, monkeypatch):
    """A folder for temporary files in which no other test has any."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(scratch, "folder", lambda: folder)
    return folder


def test_what_cannot_be_graded_is_that_students_alone(tmp_path):
    mixed = packed({f"ada/{P02}": "1", f"bob/{P02}": "2"})
    bomb = packed({P02: b"0" * 200_000})
    files = {
        f"s1/{P02}": "fine",
        "s2.zip": mixed,
        "empty.zip": packed({}),
        "bomb.zip": bomb,
        "none/readme.txt": "x",
        "pw.tar.gz": b"\x1f\x8bgarbage",
        "notes.txt": "x",
    }
    source = write(tmp_path, files)
    (source / "linked").symlink_to(source / "s1")
    (source / "links" / "p02").mkdir(parents=True)
    (source / "links" / P02).symlink_to("/etc/passwd")
    found = collect(source, ROSTER)
    read = by_student(found)
    assert read.pop("s1") == {"p02": b"fine"}
    assert "two submissions in one" in read["s2"]
    assert all(isinstance(error, str) for error in (read["empty"], read["none"], read["pw"]))
    assert "linked" not in read and "root" not in str(read["links"])
    left_out = ("linked is no folder", "notes.txt is no folder and no archive: left out")
    assert all(any(text in note for note in found.notes) for text in left_out)


def test_hostile_names_stay_data_and_do_no_harm(tmp_path):
    names = ["=1+1", "a\nb", "<b>x<", "\x1b[31m", "-rf"]
    found = collect(write(tmp_path, {f"{name}/{P02}": name for name in names}))
    assert set(by_student(found)) == set(names)
    assert all("\x1b" not in h.source and "\n" not in h.source for h, _ in found.hand_ins)


def test_an_archive_of_a_class_is_unpacked_in_one_place_and_removed(tmp_path, own_scratch):
    path = tmp_path / "class.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in (f"s1/{P02}", "../evil", "/evil", f"s1/../../{P02}", "s2/a\\b", "s1/.git/x"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"ok"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"s2/{P02}")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        big = tarfile.TarInfo("s1/big")
        big.size = unpacking.MAX_ARCHIVE_BYTES + 1
        archive.addfile(big, io.BytesIO(bytes(big.size)))
    found = collect(path, ROSTER)
    assert by_student(found) == {"s1": {"p02": b"ok"}}
    assert any("evil has a path that is not used" in note for note in found.notes)
    assert any("is no regular file" in note for note in found.notes)
    assert any("s1/big has more than 32 MiB" in note for note in found.notes)
    assert not list(tmp_path.parent.rglob("evil")) and not os.listdir(own_scratch)


def test_a_zip_of_a_class_with_links_secrets_and_doubles(tmp_path):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"s1/{P02}", "first")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(f"s1/{P02}", "second")
        archive.writestr("s1/p02", "a file in the place of a folder")
        link = zipfile.ZipInfo(f"s2/{P02}")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("s1/ok/../../../up", "x")
    found = collect(path, ROSTER)
    assert by_student(found) == {"s1": {"p02": b"first"}}
    assert any("is there twice" in note for note in found.notes)


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 3), ("MAX_TOTAL_BYTES", 30_000)])
def test_an_archive_of_a_class_has_limits(tmp_path, monkeypatch, own_scratch, limit, value):
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s{n}/{P02}": b"0" * 10_000 for n in range(9)}))
    monkeypatch.setattr(unpacking, limit, value)
    with pytest.raises(CourseError, match="split it into several archives"):
        collect(path)
    assert not os.listdir(own_scratch)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({P02: "x", P04: "x"}, "got one submission, expected a folder or archive with one for"),
        ({"weighted_row_sum.py": "x"}, "got one submission"),
        ({"deep/er/.DS_Store": "x"}, "got no files"),
        ({".git/config": "x"}, "got no files"),
        (
            {"submission_metadata.yml": "submission_1:\n  :submitters:\n  - oops\n"},
            "submission_1: :submitters: .*oops.*, expected the :name:",
        ),
        (
            {"submission_metadata.yml": "submission_1:\n  :submitters:\n  - :sid: 'a\n"},
            "line 4: found unexpected end of stream., expected YAML",
        ),
        ({"submission_metadata.yml": "hello: 1\n"}, "got 'hello: 1', expected submission_<number>"),
        ({"submission_metadata.yml": "submission_1: 5\n"}, "got 'submission_1: 5', expected"),
        ({"submission_metadata.yml": ""}, "got no submission"),
        ({"submission_metadata.yml": b"\xff"}, "cannot be read"),
    ],
)
def test_a_source_that_is_none_says_why(tmp_path, files, words):
    with pytest.raises(CourseError, match=words):
        collect(write(tmp_path, files))


def test_an_archive_with_too_many_files_says_whose_they_are(tmp_path, monkeypatch):
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s1/{P02}": b"", **{f"s2/junk/{n}": b"" for n in range(9)}}))
    monkeypatch.setattr(unpacking, "MAX_FILES", 8)
    with pytest.raises(CourseError, match="more than 8 files, 8 of them in s2/junk"):
        collect(path)


def test_a_member_is_not_unpacked_beyond_what_a_submission_may_have(tmp_path, monkeypatch):
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s1/{P02}": b"fine", "s1/bomb": b"0" * 20_000_000}))
    monkeypatch.setattr(unpacking, "MAX_ARCHIVE_BYTES", 1000)
    monkeypatch.setattr(unpacking, "MAX_TOTAL_BYTES", 3_000_000)
    assert by_student(collect(path)) == {"s1": {"p02": b"fine"}}


def test_a_source_that_is_not_there_or_damaged(tmp_path):
    with pytest.raises(CourseError, match="no such folder or archive"):
        collect(tmp_path / "none")
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s1/{P02}": b"x" * 1000})[:-30])  # cut short
    with pytest.raises(CourseError, match="got something else, expected a folder"):
        collect(path)
    path.write_text("hello")
    with pytest.raises(CourseError, match="got something else"):
        collect(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CourseError, match="got no files"):
        collect(tmp_path / "empty")


def test_what_is_collected_again_changes_what_changed(tmp_path):
    with Store(tmp_path / "class.db") as store:
        source = write(tmp_path / "class", {f"s1/{P02}": "1", f"s2/{P02}": "1", "x.zip": b"PK"})
        kept = keep(store, collect(source, ROSTER))
        assert (kept["new"], kept["refused"]) == (["s1", "s2"], ["x"])
        assert store.hand_ins()["x"].error
        assert keep(store, collect(source, ROSTER))["same"] == ["s1", "s2"]
        write(source, {f"s2/{P02}": "2"})
        assert keep(store, collect(source, ROSTER))["changed"] == ["s2"]
        (sha,) = store.hand_ins()["s2"].files.values()
        assert store.data(sha) == b"2"


def test_what_cannot_be_read_does_not_replace_what_could(tmp_path):
    with Store(tmp_path / "class.db") as store:
        keep(store, collect(write(tmp_path / "one", {f"s1/{P02}": "1"}), ROSTER))
        broken = write(tmp_path / "two", {"s1.zip": b"PK"})
        for _ in range(2):
            assert keep(store, collect(broken, ROSTER))["refused"] == ["s1"]
        hand_in = store.hand_ins()["s1"]
        assert set(hand_in.files) == {"p02"} and hand_in.error is None
        assert len(hand_in.notes) == 1 and "s1.zip cannot be read" in hand_in.notes[0]


def test_thousands_of_files_take_seconds(tmp_path):
    path = tmp_path / "class.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(400):
            archive.writestr(f"s{n}/{P02}", f"x = {n}")
            for junk in range(10):
                archive.writestr(f"s{n}/junk{junk}", "")
    assert len(collect(path).hand_ins) == 400
