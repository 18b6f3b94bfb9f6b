"""Rosters as Canvas, Moodle, Gradescope and GitHub Classroom write them, and broken ones."""

import pytest

from classroom.roster import MAX_BYTES, CourseError, read_roster, read_times


@pytest.fixture
def csv(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "roster.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return write


def test_a_plain_roster_in_its_order(csv):
    text = "id,name,email,section\n7,Zoë Ünal,z@x.edu,A\n3,Ada,a@x.edu,B\n\n"
    zoe, ada = read_roster(csv(text))
    assert (zoe.id, zoe.name, zoe.email, zoe.section) == ("7", "Zoë Ünal", "z@x.edu", "A")
    assert ada.id == "3"
    assert read_roster(csv(text, "utf-8-sig")) == (zoe, ada)
    assert read_roster(csv(text.replace(",", ";").replace("\n", "\r\n"))) == (zoe, ada)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # Canvas: the gradebook's export
            "Student,ID,SIS User ID,SIS Login ID,Section,HW 1 (12)\n"
            ",,,,,Manual Posting\n    Points Possible,,,,,10\n"
            '"Lovelace, Ada",4711,s1,ada,CS 336,\n"Student, Test",,,,CS 336,\n',
            ("4711", "Lovelace, Ada", "ada", "CS 336", ""),
        ),
        (  # Moodle: the grading worksheet
            "Identifier,Full name,Email address,Status,Grade,Maximum Grade\n"
            "Participant 12345,Ada Lovelace,ada@x.edu,Submitted,,100.00\n",
            ("Participant 12345", "Ada Lovelace", "ada@x.edu", "", ""),
        ),
        (  # Moodle: the participants
            "First name,Surname,ID number,Email address\nAda,Lovelace,77,ada@x.edu\n",
            ("77", "Ada Lovelace", "ada@x.edu", "", ""),
        ),
        (  # Gradescope: the roster
            "First Name,Last Name,SID,Email,Role,Section\nAda,Lovelace,77,ada@x.edu,Student,1\n",
            ("77", "Ada Lovelace", "ada@x.edu", "1", ""),
        ),
        (  # GitHub Classroom: the roster
            '"identifier","github_username","github_id","name"\n"ada@x.edu","alove","12",""\n',
            ("ada@x.edu", "", "", "", "alove"),
        ),
        (  # Classroom 50: students.csv
            "username,first_name,last_name,email,section,github_id\nalove,Ada,Lovelace,,1,12\n",
            ("alove", "Ada Lovelace", "", "1", "alove"),
        ),
    ],
)
def test_the_columns_of_other_systems_are_known(csv, text, expected):
    (student,) = read_roster(csv(text))
    assert (student.id, student.name, student.email, student.section, student.login) == expected


def test_test_students_and_staff_are_no_students(csv):
    canvas = "Student,ID,SIS Login ID,Section\n    Points Possible,,,\n"
    rows = '"Lovelace, Ada",77,ada@x.edu,1\n"Student, Test",9001,0a1b2c,1\n'
    assert [student.id for student in read_roster(csv(canvas + rows))] == ["77"]
    gradescope = "First Name,Last Name,SID,Email,Role\nAda,L,77,a@x.edu,Student\n"
    staff = "Kim,K,,kim@x.edu,Instructor\nLee,L,78,lee@x.edu,TA\nNo,Role,79,no@x.edu,\n"
    assert [student.id for student in read_roster(csv(gradescope + staff))] == ["77", "79"]
    plain = "id,name\n1,Test Student\n"  # of no platform: somebody may be called so
    assert [student.id for student in read_roster(csv(plain))] == ["1"]


def test_hostile_fields_stay_data(csv):
    names = ['=HYPERLINK("http://e.x")', "Ada\nLovelace", "<b>x</b>", "\x1b[31m", "../../etc"]
    cells = [name.replace('"', '""') for name in names]
    text = "id,name\n" + "".join(f'"s{n}","{cell}"\n' for n, cell in enumerate(cells))
    assert [student.name for student in read_roster(csv(text))] == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,name\na,A\nb,B\nA,C\n", "rows 2 and 4: got the id 'A' in both"),
        ('id,name\na,"x\ny"\na,B\n', "rows 2 and 4: got the id 'a' in both"),
        ("name,email\nA,a@x.edu\n", "got the columns name, email, expected one that is called id"),
        ("id,name\na,A\n ,B\n", "row 3: got no id, expected one"),
        ("id,name\n" + "x" * 201 + ",A\n", "row 2: got an id of 201 characters"),
        ("id,name\n", "got no student"),
        ("", "got an empty file"),
        (" \n\n", "got an empty file"),
        ("id,name\na,Zo\xeb\n".encode("latin-1"), "byte 12: got text that is not UTF-8"),
        ("id,name\n".encode("utf-16"), "byte 0: got text that is not UTF-8"),
        ("id,name\na,\0\n", "got zero bytes"),
        ('id,name\n"a"x,b\n', "line 2: not valid CSV"),
        (b"x" * (MAX_BYTES + 1), "got more than 16 MiB"),
    ],
)
def test_a_roster_that_cannot_be_used_says_why(csv, text, words):
    path = csv(text)
    with pytest.raises(CourseError) as caught:
        read_roster(path)
    assert str(caught.value).startswith(str(path)) and words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_roster_that_is_not_there(tmp_path):
    with pytest.raises(CourseError, match="cannot be read: No such file"):
        read_roster(tmp_path / "none.csv")
    with pytest.raises(CourseError, match="cannot be read: Is a directory"):
        read_roster(tmp_path)


def test_times_of_any_source_are_in_utc_and_the_last_counts(csv):
    text = "id,submitted_at\nada,2026-11-20T12:00:00+01:00\nada,2026-11-20T10:00:00Z\nbob,\n"
    assert read_times(csv(text)) == {("ada", ""): "2026-11-20T11:00:00Z"}
    github = (
        "assignment_name,github_username,roster_identifier,submission_timestamp\n"
        "fa,alove,77,2026-11-20 10:00:00 UTC\n"
    )
    assert read_times(csv(github)) == {("77", "alove"): "2026-11-20T10:00:00Z"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,name\na,b\n", "got the columns id, name, expected id"),
        ("id,time\na,2026-11-20T12:00:00\n", "row 2: submitted_at: got '2026-11-20T12:00:00'"),
        ("id,time\na,yesterday\n", "expected a time with its zone"),
    ],
)
def test_times_that_cannot_be_used_say_why(csv, text, words):
    with pytest.raises(CourseError, match=words):
        read_times(csv(text))
