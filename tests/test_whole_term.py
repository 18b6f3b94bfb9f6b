"""A class of sixty over two stages, from all five layouts, with a trap of each kind that is known.

1 display names of others, 2 a login that ends as another's, 3 two accounts for one student, 4 test
students, 5 formulas, 6 links, 7 archives in archives, 8 late ones, 9 a request, 10 a receipt of
other files, 11 someone who left, 12 a second stage with stubs and changed files of the first.
"""

import csv
import datetime
import io
import json
import tarfile
import time

from classroom.store import Store
from grader.source.intake import receipt
from grader.spec.problem import ROOT, load_problem
from tests import class_commands
from tests.classes import P02, packed, write
from tests.test_identity import gradescope

command = class_commands.command
P04 = f"p04/{load_problem('p04').file}"
STUB = (ROOT / "problems" / P02).read_text()
IDS = [f"s{n:02}" for n in range(1, 61)]
FORMULA = 'Kim;=HYPERLINK("http://x")\t+1'
# Who handed in nothing that can be graded: 7 and 6, what both were refused for, and nobody.
NOTHING = {"s16", "s26", "s60"}
POINTS = {id: round(1 + n / 10, 1) for n, id in enumerate(IDS) if id not in NOTHING}
COURSE = """
deadline = 2026-11-20T12:00:00Z
late_days = 2
percent_per_day = 20
last_day = 7
[deadlines]
p04 = 2026-12-04T12:00:00Z
"""


def roster(path, ids=IDS):
    """A gradebook as Canvas exports it, with columns for the other layouts."""
    made = io.StringIO()
    rows = csv.writer(made)
    rows.writerow(["Student", "ID", "SIS Login ID", "Section", "login", "number"])
    rows.writerow(["    Points Possible", "", "", "", "", ""])
    for id in ids:
        n = int(id[1:])
        name = FORMULA if id == "s55" else f"Student {id}"
        login = {"s37": "bob", "s38": "evil-bob"}.get(id, f"l{n}")
        rows.writerow([name, id, f"{id}@x.edu", "A", login, 100 + n])
    rows.writerow(["Student, Test", "9001", "0a1b2c", "A", "", ""])  # 4
    path.write_text(made.getvalue())
    return path


def times(path, rows):
    path.write_text("id,submitted_at\n" + "".join(f"{id},{at}\n" for id, at in rows.items()))
    return path


def answer(id):
    return {P02: f"{POINTS.get(id, 0)}"}


def sources(folder):
    """Five sources, of twelve students each, with their traps."""
    first = {id: packed(answer(id)) for id in IDS}
    listed = [(n, f"s{n:02}", f"s{n:02}@x.edu", f"s{n + 1:02}") for n in range(10, 13)]  # 1
    listed += [(20 + n, f"s{n:02}", f"s{n:02}@x.edu", "x") for n in range(1, 10) if n != 3]
    twice = [(53, "s03", "s03@x.edu", "x"), (54, "s03", "other@x.edu", "x")]  # 3
    files = {f"submission_{n}/a.zip": first[sid] for n, sid, *_ in (*listed, twice[0])}
    files["submission_54/a.zip"] = packed({P02: "0.1"})
    files["submission_metadata.yml"] = gradescope(*listed, *twice)
    yield write(folder / "gradescope", files)

    files = {f"s01_{100 + n}_{n}_submission.zip": first[f"s{n:02}"] for n in range(13, 25)}  # 1
    files["studenttest_9001_99_submission.zip"] = packed({P02: "7"})  # 4
    files["s01_115_15_submission.zip"] = packed(answer("s15") | {"more.zip": first["s01"]})  # 7
    files["s01_116_16_submission.zip"] = packed({"inner.zip": first["s16"]})  # 7
    yield write(folder / "canvas", files)

    place = "Student s01_{}_assignsubmission_file/a.{}".format  # 1
    files = {place(100 + n, "zip"): first[f"s{n:02}"] for n in range(25, 37) if n != 26}
    linked = io.BytesIO()
    with tarfile.open(fileobj=linked, mode="w") as archive:
        link = tarfile.TarInfo(P02)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    files[place(126, "tar")] = linked.getvalue()  # 6
    other = receipt.receipt_of({P02: b"other"}, "0.24.0", datetime.date(2026, 11, 1))
    files[place(127, "zip")] = packed(answer("s27") | {receipt.NAME: other.model_dump_json()})  # 10
    own = receipt.receipt_of({P02: answer("s28")[P02].encode()}, "0.24.0", other.date)
    beside = {receipt.NAME: own.model_dump_json(), "regrade.md": "# p02\n=1+1, line 4 is right\n"}
    files[place(128, "zip")] = packed(answer("s28") | beside)  # 9
    yield write(folder / "moodle", files)

    logins = {37: "bob", 38: "evil-bob"}  # 2
    beside = {
        "Makefile": "x",
        "README.md": "x",
        ".release.json": '{"files": {"Makefile": "", "README.md": ""}}',
    }
    files = {
        f"hw1-{logins.get(n, f'l{n}')}/{name}": data
        for n in range(37, 49)
        for name, data in {f"problems/{P02}": answer(f"s{n}")[P02], **beside}.items()
    }
    yield write(folder / "clones", files)
    yield write(folder / "own", {f"s{n}.zip": first[f"s{n}"] for n in range(49, 60)})


def books(course):
    """Both gradebooks by student and problem, and every cell, whatever separates them."""
    cells = []
    for name in ("gradebook-canvas.csv", "gradebook-moodle.csv"):
        text = (course / name).read_text()
        for separator in ",;\t":
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
            cells += [cell for row in rows for cell in row]
    rows = list(csv.reader(io.StringIO((course / "gradebook-canvas.csv").read_text())))
    return rows[1], {row[1]: row[4:] for row in rows[2:]}, cells


def test_a_class_of_sixty_over_two_stages(command, tmp_path):
    began, course = time.process_time(), tmp_path / "course"
    course.mkdir()
    (course / "course.toml").write_text(COURSE)
    who = roster(tmp_path / "roster.csv")
    late = {"s50": "2026-11-22T11:00:00Z", "s51": "2026-11-23T11:00:00Z"}  # 8
    clock = dict.fromkeys(IDS, "2026-11-19T10:00:00Z") | late
    at = ("--times", times(tmp_path / "times.csv", clock))
    notes = ""
    for source in sources(tmp_path):
        given = ("--roster", who, *at)
        code, out, err = command("collect", source, *given)
        if source.name == "gradescope":
            assert code == 2 and "s03 has submission_53 and submission_54" in err  # 3
            code, out, err = command("collect", source, *given, "--choose", "submission_53")
        assert code == 0, err
        notes += " ".join(out.split())
        assert "Makefile: not graded" not in out and "s01: " not in out
    assert "students 60, 59 have handed in" in notes and "not on roster" not in notes
    for words in (
        "studenttest_9001_99_submission.zip is of Canvas's test student: left out",
        "s15: more.zip: an archive in the submission, not opened",
        "s16: ",
        "s26: a.tar: got no answer (p02/weighted_row_sum.py: a link",
        "s27: receipt.json has the code",
    ):
        assert words in notes, words
    assert "s28  p02  " in command("requests")[1]  # 9

    code, out, _ = command("grade", "--only", "p02")
    assert code == 0 and f"files         {len(POINTS)} of {len(POINTS)}, 100 %" in out
    assert command("publish", "--author", "kim")[0] == 0
    paid = {"s50": POINTS["s50"], "s51": round(POINTS["s51"] * 0.8, 1)}
    expected = POINTS | paid
    _, book, cells = books(course)
    assert {id: float(points) for id, (points,) in book.items()} == dict.fromkeys(IDS, 0) | expected
    assert not [cell for cell in cells if cell.lstrip(' "').startswith(("=", "+", "-", "@"))]  # 5

    # 12: everybody hands in the whole repository, a week after; s10 a stub, s11 a worse p02.
    of_p02 = {"s10": STUB, "s11": "0.2", "s12": "6.9"}
    whole = {
        f"{id}.zip": packed({P02: of_p02.get(id, f"{POINTS[id]}"), P04: f"{n / 10}"})
        for n, id in enumerate(IDS)
        if id in POINTS and id != "s59"
    }
    second = write(tmp_path / "second", whole)
    staying = roster(tmp_path / "second.csv", [id for id in IDS if id != "s59"])  # 11
    later = times(tmp_path / "later.csv", dict.fromkeys(IDS, "2026-12-01T10:00:00Z"))
    assert command("collect", second, "--roster", staying, "--times", later)[0] == 0
    code, out, _ = command("grade", "--only", "p02,p04")
    # Closed for eleven days, s12's better file replaces nothing and is not graded either.
    assert code == 0 and "not on roster 1: s59" in out
    assert sorted(task.files["p04"] for task in command.engine.submitted) == sorted(
        f"{n / 10}".encode() for n, id in enumerate(IDS) if id in POINTS and id != "s59"
    )
    assert not [task for task in command.engine.submitted if "p02" in task.files]
    code, out, _ = command("publish", "--author", "kim")
    assert code == 1 and "points are lost by s59" in out
    assert command("publish", "--author", "kim", "--accept-losses")[0] == 0
    possible, book, _ = books(course)
    assert possible[4:] == ["7.0", "7.0"] and "s59" not in book and len(book) == 59
    for n, id in enumerate(IDS):
        if id in POINTS and id != "s59":
            assert [float(p) for p in book[id]] == [expected[id], n / 10], id

    answered = ("--student", "s28", "--problem", "p02", "--author", "kim", "--reason", "it is")
    assert command("answer", *answered)[0] == 0 and command("report")[0] == 0
    paths = (course / "reports").iterdir()
    reports = {path.name: " ".join(path.read_text().split()) for path in paths}
    assert len(reports) == 2 * 59
    assert "version 0.24.0" in reports["s28.txt"] and "answer by kim" in reports["s28.txt"]
    assert "version" not in reports["s27.txt"].split("p04")[0]
    assert "late days: 2 of 2 used" in reports["s51.txt"]
    assert "handed in 2026-11-19 10:00 UTC" in reports["s12.txt"].split("p04")[0]
    with Store(course / "class.db") as store:
        assert json.dumps([d.kind for d in store.decisions()]) == '["request", "answer"]'
    assert time.process_time() - began < 60
