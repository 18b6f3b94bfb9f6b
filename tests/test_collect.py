"""Whose submission is whose, in every layout that is known, and what hostile ones come to."""

import io
import os
import stat
import tarfile
import zipfile

import pytest

from classroom import unpacking
from classroom.collect import collect, keep
from classroom.records import Student
from classroom.store import Store
from classroom.unpacking import SourceError
from grader.base import scratch
from grader.spec.problem import load_problem
from tests.classes import P02, by_student, notes_of, packed, write

ROSTER = (
    Student(id="s1", name="Ada Lovelace", email="ada@x.edu", login="a-love", number="55"),
    Student(id="s2", name="Hopper, Grace", email="grace@x.edu", login="ghopper", number="56"),
    Student(id="Participant 77", name="Alan Turing"),
)
P04 = f"p04/{load_problem('p04').file}"


def zipped(folder, path):
    """The zip of a folder, as a course's system delivers it."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, f"export/{file.relative_to(folder)}")
    return path


LAYOUTS = {
    "a folder per student": {
        f"s1/{P02}": "one",
        f"grace/deep/{P02}": "two",
        f"stranger/{P02}": "three",
    },
    "clones of GitHub Classroom": {
        f"flash-2026-a-love/{P02}": "one",
        f"flash-2026-GHopper/{P02}": "two",
        f"flash-2026-stranger/{P02}": "three",
    },
    "archives named by id or email": {
        "s1.zip": packed({P02: "one"}),
        "grace@x.edu.zip": packed({f"x/{P02}": "two"}),
        "stranger.zip": packed({P02: "three"}),
    },
    "Gradescope": {
        "submission_metadata.yml": (
            "---\nsubmission_11:\n  :submitters:\n  - :name: Ada\n    :sid: 's1'\n"
            "    :email: ada@x.edu\n  :created_at: 2026-11-20 10:00:00.293850000 Z\n"
            "  :score: 0.0\n  :results:\n    output: |-\n      submission_99:\n"
            'submission_12:\n  :submitters:\n  - :name: "Gr\\u00e4ce"\n    :sid:\n'
            "    :email: GRACE@x.edu\n"
            "  :created_at: !ruby/object:ActiveSupport::TimeWithZone\n"
            "    utc: &1 2026-11-20 11:00:00.000000000 Z\n"
            "    time: 2026-11-20 03:00:00.0 Z\n"
            "submission_13:\n  :submitters:\n  - :name: 'O''Neill'\n    :sid: stranger\n"
        ),
        f"submission_11/{P02}": "one",
        "submission_12/answers.zip": packed({P02: "two"}),
        f"submission_13/{P02}": "three",
    },
    "Canvas": {
        "lovelaceada_LATE_s1_9_weighted_row_sum.py": "",
        "adalovelace_101_501_weighted_row_sum-1.py": "one",
        "hoppergrace_LATE_102_502_answers.zip": packed({P02: "two"}),
        "stranger_103_503_weighted_row_sum.py": "three",
    },
    "Moodle": {
        f"Ada Lovelace_55_assignsubmission_file/{P02}": "one",
        "Grace Hopper_56_assignsubmission_file_/answers.zip": packed({P02: "two"}),
        f"Un Known_57_assignsubmission_file/{P02}": "three",
        "Ada Lovelace_55_assignsubmission_onlinetext/onlinetext.html": "<p>",
    },
    "Moodle, not in folders": {
        "Ada Lovelace_55_assignsubmission_file_weighted_row_sum.py": "one",
        "Grace Hopper_56_assignsubmission_file_77_1_answers.zip": packed({P02: "two"}),
        "s1_57_assignsubmission_file_55_assignsubmission_file_a.zip": packed({P02: "three"}),
        "Ada Lovelace_55_assignsubmission_onlinetext_onlinetext.html": "<p>",
    },
}
CANVAS_ROSTER = (
    Student(id="101", name="Lovelace, Ada"),
    Student(id="102", name="Hopper, Grace"),
)


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_says_whose_a_submission_is(tmp_path, layout, form):
    source = write(tmp_path / "class", LAYOUTS[layout])
    if form == "archive":
        source = zipped(source, tmp_path / "class.zip")
    canvas = layout == "Canvas"
    found = collect(source, CANVAS_ROSTER if canvas else ROSTER)
    ada, grace = ("101", "102") if canvas else ("s1", "s2")
    stranger = {"Canvas": "103", "Moodle": "57", "Moodle, not in folders": "57", "clones of GitHub "
                "Classroom": "flash-2026-stranger"}.get(layout, "stranger")  # fmt: skip
    read = by_student(found)
    assert read == {ada: {"p02": b"one"}, grace: {"p02": b"two"}, stranger: {"p02": b"three"}}
    assert found.unknown == (stranger,)


def test_gradescope_says_when_and_whose_in_a_group(tmp_path):
    text = (
        "submission_11:\n  :submitters:\n  - :name: Ada\n    :sid: s1\n  - :name: G\n"
        "    :sid: s2\n  :created_at: 2026-11-20 10:00:00.5 -0800\n"
    )
    source = write(tmp_path, {"submission_metadata.yml": text, f"submission_11/{P02}": "x"})
    found = collect(source, ROSTER)
    assert {h.student: h.submitted_at for h, _ in found.hand_ins} == dict.fromkeys(
        ("s1", "s2"), "2026-11-20T18:00:00Z"
    )
    of_ruby = collect(write(tmp_path / "ruby", LAYOUTS["Gradescope"]), ROSTER)
    assert [h.submitted_at for h, _ in of_ruby.hand_ins] == [
        "2026-11-20T10:00:00Z",
        "2026-11-20T11:00:00Z",
        None,
    ]


@pytest.mark.parametrize(
    "name",
    [
        "'Jane " + "van " * 18 + "\n      :sid: s2 Doe'",
        "|-\n      Jane\n      Doe",
        '"Jane\\\\q\n      \\ Doe"',
        "'Jane\n\n      Doe'",
        '"\'no end"',
    ],
)
def test_a_name_that_a_student_chose_keeps_no_class_from_being_read(tmp_path, name):
    text = "".join(
        f"submission_{n}:\n  :submitters:\n  - :name: {name}\n    :sid: s{n}\n"
        "  :created_at: 2026-11-20 10:00:00 Z\n"
        for n in (1, 2)
    )
    files = {f"submission_{n}/{P02}": f"{n}" for n in (1, 2)}
    source = write(tmp_path, {"submission_metadata.yml": text, **files})
    assert by_student(collect(source, ROSTER)) == {"s1": {"p02": b"1"}, "s2": {"p02": b"2"}}


@pytest.mark.parametrize(
    "name",
    ["7_assignsubmission_file", "7_assignsubmission_file_", "submission_metadata.yml", "p02"],
)
def test_a_file_that_is_named_as_elsewhere_leaves_the_layout_of_canvas(tmp_path, name):
    files = {"doejane_101_9_a.zip": packed({P02: "1"}), f"roerick_102_10_{name}": "x"}
    found = by_student(collect(write(tmp_path, files), CANVAS_ROSTER))
    assert found["101"] == {"p02": b"1"}
    assert found["102"].startswith("the files handed in: got no answer")


def test_what_lies_beside_an_archive_keeps_it_from_nothing(tmp_path):
    folder = "Alan Turing_77_assignsubmission_file"
    moodle = {f"{folder}/a.zip": packed({P02: "1"}), f"{folder}/notes.pdf": "x"}
    found = collect(write(tmp_path / "moodle", moodle), ROSTER)
    assert by_student(found) == {"Participant 77": {"p02": b"1"}}
    assert notes_of(found, "Participant 77") == ("notes.pdf is no archive: left out",)
    answers = {f"s1/{P02}": "1", "s1/old.zip": packed({P02: "0"})}
    assert by_student(collect(write(tmp_path / "both", answers), ROSTER)) == {"s1": {"p02": b"1"}}


def test_on_canvas_loose_answers_count_where_the_archive_beside_them_has_none(tmp_path):
    loose = {"a_101_8_weighted_row_sum.py": "1", "a_101_9_pictures.zip": packed({"a.png": "x"})}
    found = collect(write(tmp_path / "loose", loose), CANVAS_ROSTER)
    assert by_student(found) == {"101": {"p02": b"1"}}
    assert notes_of(found, "101")[0].startswith("a_101_9_pictures.zip: got no answer")
    both = loose | {"a_101_10_all.zip": packed({P02: "2"})}
    found = collect(write(tmp_path / "both", both), CANVAS_ROSTER)
    assert by_student(found) == {"101": {"p02": b"2"}}
    assert "a_101_8_weighted_row_sum.py is not read: a_101_10_all.zip counts" in notes_of(
        found, "101"
    )


def test_a_path_too_long_for_the_system_is_left_out_and_the_others_are_read(tmp_path):
    path = tmp_path / "class.tar"
    with tarfile.open(path, "w") as archive:
        for name in (f"s1/{P02}", f"s2/{'a' * 250}/" * 17 + "x", f"s2/{P02}"):
            archive.addfile(tarfile.TarInfo(name))
    found = collect(path, ROSTER)
    assert by_student(found) == {"s1": {"p02": b""}, "s2": {"p02": b""}}
    assert len(found.notes) == 1 and found.notes[0].endswith(
        "has a path that is not used: left out"
    )


def test_the_last_submission_of_a_student_counts_and_the_other_is_noted(tmp_path):
    text = "".join(
        f"submission_{n}:\n  :submitters:\n  - :sid: s1\n  :created_at: 2026-11-{day} 10:00:00 Z\n"
        for n, day in ((11, 21), (12, 20))
    )
    source = write(
        tmp_path,
        {
            "submission_metadata.yml": text,
            f"submission_11/{P02}": "late",
            f"submission_12/{P02}": "x",
        },
    )
    found = collect(source, ROSTER)
    assert by_student(found) == {"s1": {"p02": b"late"}}
    assert notes_of(found, "s1") == ("submission_12 is an earlier submission",)


def test_the_last_attempt_of_canvas_counts_and_the_newest_file_elsewhere(tmp_path):
    canvas = {f"a_101_{n}_a.zip": packed({P02: str(n)}) for n in (9, 10)}
    found = collect(write(tmp_path / "canvas", canvas), CANVAS_ROSTER)
    assert by_student(found) == {"101": {"p02": b"10"}}
    late = write(tmp_path / "late", {"a_LATE_101_9_weighted_row_sum.py": "x"})
    assert "Canvas says that it is late" in notes_of(collect(late, CANVAS_ROSTER), "101")
    plain = {f"s1/{P02}": "old", "s1.zip": packed({P02: "new"})}
    source = write(tmp_path / "plain", plain)
    os.utime(source / "s1", (1, 1))
    assert by_student(collect(source, ROSTER)) == {"s1": {"p02": b"new"}}
    os.utime(source / "s1.zip", (0, 0))
    assert by_student(collect(source, ROSTER)) == {"s1": {"p02": b"old"}}


def test_a_last_submission_that_cannot_be_read_leaves_the_one_before(tmp_path):
    source = write(tmp_path, {f"s1/{P02}": "old", "s1.zip": b"PK\3\4 damaged"})
    os.utime(source / "s1", (1, 1))
    found = collect(source, ROSTER)
    assert by_student(found) == {"s1": {"p02": b"old"}}
    assert "a later submission cannot be read: s1.zip is damaged" in notes_of(found, "s1")[0]


def test_times_come_from_a_file_where_the_source_does_not_know(tmp_path):
    source = write(tmp_path, {f"x-a-love/{P02}": "x", f"x-s2/{P02}": "x"})
    early, late = "2026-11-20T10:00:00Z", "2026-11-21T10:00:00Z"
    times = {("", "a-love"): early, ("", "s1"): late, ("s2", "a-love"): late}
    times_of = {h.student: h.submitted_at for h, _ in collect(source, ROSTER, times).hand_ins}
    assert times_of == {"s1": early, "x-s2": None}  # a login is no id, and the id goes first
    assert collect(source, ROSTER).hand_ins[0][0].submitted_at is None


def test_without_a_roster_students_are_called_as_their_submissions(tmp_path):
    source = write(tmp_path, {f"fa-ada/{P02}": "1", f"fa-bob/{P02}": "2"})
    assert set(by_student(collect(source))) == {"fa-ada", "fa-bob"}
    for name in ("fa-ada", "fa-bob"):
        (source / name / ".git").mkdir()
    found = collect(source)
    assert set(by_student(found)) == {"ada", "bob"} and found.unknown == ()


def test_a_name_of_two_students_means_neither(tmp_path):
    twins = (Student(id="1", email="a@x.edu"), Student(id="2", email="a@y.edu"))
    source = write(tmp_path, {f"a/{P02}": "x", f"1/{P02}": "x"})
    assert collect(source, twins).unknown == ("a",)
    named = (Student(id="x1", name="77"), Student(id="77"))
    assert set(by_student(collect(write(tmp_path / "id", {f"77/{P02}": "x"}), named))) == {"77"}
    other = (Student(id="ada", email="x@x.edu"), Student(id="b", email="ada@x.edu"))
    source = write(tmp_path / "more", {f"ada/{P02}": "x"})
    assert set(by_student(collect(source, other))) == {"ada"}


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


def test_an_archive_of_a_class_is_unpacked_in_one_place_and_removed(tmp_path):
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
    assert not list(tmp_path.parent.rglob("evil")) and not os.listdir(scratch.folder())


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
def test_an_archive_of_a_class_has_limits(tmp_path, monkeypatch, limit, value):
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s{n}/{P02}": b"0" * 10_000 for n in range(9)}))
    monkeypatch.setattr(unpacking, limit, value)
    with pytest.raises(SourceError, match="split it into several archives"):
        collect(path)
    assert not os.listdir(scratch.folder())


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
    with pytest.raises(SourceError, match=words):
        collect(write(tmp_path, files))


def test_an_archive_with_too_many_files_says_whose_they_are(tmp_path, monkeypatch):
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s1/{P02}": b"", **{f"s2/junk/{n}": b"" for n in range(9)}}))
    monkeypatch.setattr(unpacking, "MAX_FILES", 8)
    with pytest.raises(SourceError, match="more than 8 files, 8 of them in s2/junk"):
        collect(path)


def test_a_member_is_not_unpacked_beyond_what_a_submission_may_have(tmp_path, monkeypatch):
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s1/{P02}": b"fine", "s1/bomb": b"0" * 20_000_000}))
    monkeypatch.setattr(unpacking, "MAX_ARCHIVE_BYTES", 1000)
    monkeypatch.setattr(unpacking, "MAX_TOTAL_BYTES", 3_000_000)
    assert by_student(collect(path)) == {"s1": {"p02": b"fine"}}


def test_a_source_that_is_not_there_or_damaged(tmp_path):
    with pytest.raises(SourceError, match="no such folder or archive"):
        collect(tmp_path / "none")
    path = tmp_path / "class.zip"
    path.write_bytes(packed({f"s1/{P02}": b"x" * 1000})[:-30])  # cut short
    with pytest.raises(SourceError, match="got something else, expected a folder"):
        collect(path)
    path.write_text("hello")
    with pytest.raises(SourceError, match="got something else"):
        collect(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="got no files"):
        collect(tmp_path / "empty")


def test_what_is_collected_again_changes_what_changed(tmp_path):
    with Store(tmp_path / "class.db") as store:
        source = write(tmp_path / "class", {f"s1/{P02}": "1", f"s2/{P02}": "1", "x.zip": b"PK"})
        kept = keep(store, collect(source, ROSTER))
        assert (kept.new, kept.refused) == (("s1", "s2"), ("x",))
        assert store.hand_ins()["x"].error
        assert keep(store, collect(source, ROSTER)).same == ("s1", "s2")
        write(source, {f"s2/{P02}": "2"})
        assert keep(store, collect(source, ROSTER)).changed == ("s2",)
        (sha,) = store.hand_ins()["s2"].files.values()
        assert store.data(sha) == b"2"


def test_what_cannot_be_read_does_not_replace_what_could(tmp_path):
    with Store(tmp_path / "class.db") as store:
        keep(store, collect(write(tmp_path / "one", {f"s1/{P02}": "1"}), ROSTER))
        broken = write(tmp_path / "two", {"s1.zip": b"PK"})
        for _ in range(2):
            assert keep(store, collect(broken, ROSTER)).refused == ("s1",)
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
