"""What `class report` writes: pages for the class and for each student."""

import re
import time
from pathlib import Path

import pytest

from classroom import outputs, report
from classroom.figures import Bar, histogram, spread, summarize
from classroom.grades import read_standing
from classroom.records import CourseError, Decision, Fault, Student
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Message, Verdict
from grader.spec.problem import load_problem
from tests import classes
from tests.class_commands import give, run, students
from tests.classes import AT, hand_in, key_of
from tests.exports import EVIL as _EVIL
from tests.pages import checked
from tests.whole_class import fill, full, record, sped, stored, stub, wrong

EVIL = _EVIL.encode("utf-8", "replace").decode()  # what a stored record can hold
course, store = classes.course, classes.store
IDS = ("ada", "../../etc/passwd", "<b onclick=x>'\"&", "=cmd|'/c calc'!A1", "a\nb\x1b[2J")
IDS += ("CON", "Ада")


def class_page(store, course):
    return checked(report.class_page(summarize(read_standing(store))))


def override(student, problem, points, reason):
    given = {"kind": "override", "author": "kim", "at": AT}
    return Decision(student=student, problem=problem, points=points, reason=reason, **given)


def test_points_are_counted_in_ranges_with_none_and_all_apart():
    bars = histogram([0, 0, 0.1, 2.5, 2.6, 7.6, 9.9, 10, 12], 10.0, 4)
    assert [(b.label, b.count) for b in bars] == [
        ("0", 2), ("to 2.5", 2), ("to 5", 1), ("to 7.5", 0), ("under 10", 2), ("10, all", 2),
    ]  # fmt: skip
    assert sum(b.count for b in bars) == bars[0].of == 9


def test_quartiles():
    assert spread([]) is None
    one = spread([3.0])
    assert (one.lowest, one.lower, one.median, one.upper, one.highest) == (3.0,) * 5
    many = spread([4, 1, 3, 2, 5])
    assert (many.lower, many.median, many.upper, many.count) == (2, 3, 4, 5)


def test_steps_checks_and_causes_are_counted_in_students(store, course):
    students(store, *"abcdefgh")
    p04, first, second = full("p04"), "DIAGONAL-EXCLUDED", "LAST-KEY-TILE-DROPPED"
    give(store, "a", p04)
    give(store, "b", wrong(p04, ["plain", "lse"], first))
    give(store, "c", wrong(p04, ["plain"], second))
    give(store, "d", wrong(p04, ["lse"]))
    give(store, "e", stub(p04, 1))
    give(store, "f", stub(p04, 2))
    give(store, "g", p04.model_copy(update={"verdict": Verdict.REJECTED, "checks": ()}))
    found = next(p for p in summarize(read_standing(store)).problems if p.id == "p04")
    funnel = found.funnel
    assert (funnel.started, funnel.unknown) == (6, 2)  # not e, a stub; of d and g no step is known
    assert [step.count for step in funnel.steps] == [3, 1]  # a, c and f; then a
    assert {(n.id, n.count, n.of) for n in found.checks} == {("plain", 2, 6), ("lse", 2, 6)}
    assert {(n.id, n.count) for n in found.causes} == {
        ("P04-DIAGONAL-EXCLUDED", 1),
        ("P04-LAST-KEY-TILE-DROPPED", 1),
    }
    assert found.unnamed == 1 and found.handed_in == 7
    page = class_page(store, course)
    assert load_problem("p04").steps[0].title in page.words
    assert "2 students in no row" in page.words
    assert found.causes[0].label in page.words


def test_identical_files_count_for_every_student_and_one_grading(store, course):
    students(store, "a", "b")
    for student in "ab":
        hand_in(store, student, {"p04": b"same"})
    store.set_versions({"p04": "v1"})
    store.save_results([stored(full("p04"), b"same")])
    summary = summarize(read_standing(store))
    (found,) = summary.problems
    assert found.points.count == 2 and found.seconds.count == 1
    assert summary.graded_s == full("p04").duration_s


def test_faults_are_apart_and_in_no_figure(store, course):
    students(store, "a", "b", "c")
    give(store, "a", full("p04"))
    for student in ("b", "c"):
        hand_in(store, student, {"p04": student.encode()})
    store.add(Fault(key=key_of("p04", b"b"), text=f"worker lost {EVIL}", at=AT))
    summary = summarize(read_standing(store))
    found = next(p for p in summary.problems if p.id == "p04")
    assert found.points.count == 1 and found.points.lowest == 15
    assert summary.pending == 1 and [f[0::2] for f in summary.faults] == [("p04", 1)]
    (required, _) = summary.totals
    assert (required.undecided, required.points.count) == (2, 1)
    page = class_page(store, course)
    assert "Faults of the infrastructure" in page.words and "worker lost <script>" in page.words
    assert "1 grade not decided" in page.words


def test_speeds_are_of_right_answers_and_by_device(store, course):
    students(store, *"abcd")
    p04 = full("p04")
    give(store, "a", p04)
    give(store, "b", sped(p04, 0.5))
    slipped = wrong(p04, ["plain"])  # timed all the same
    parts = slipped.components | {"speed": p04.components["speed"]}
    give(store, "c", slipped.model_copy(update={"components": parts}))
    hand_in(store, "d", {"p04": b"d"})
    other = record().environment.model_copy(update={"device_name": "NVIDIA H100"})
    store.save_results([stored(sped(p04, 2), b"d", environment=other)])
    found = next(p for p in summarize(read_standing(store)).problems if p.id == "p04")
    assert [(s.device, s.spread.count) for s in found.speeds] == [
        ("NVIDIA H100", 1),
        ("NVIDIA H200", 2),
    ]
    assert found.speeds[1].bars == (Bar("16 to 32x", 1, 2), Bar("32 to 64x", 1, 2))


@pytest.mark.parametrize("count", [0, 1, 40])
def test_a_class_of_any_size_has_a_page_without_names_and_a_number_beside_every_bar(store, count):
    fill(store, count)
    html = report.class_page(summarize(read_standing(store)))
    page = checked(html)
    assert ("1 student," if count == 1 else f"{count} students,") in page.words
    assert ("Nobody is in the class yet" in page.words) == (count == 0)
    for student in store.students():
        assert student.id not in page.words and f"{student.name} " not in page.words
        assert student.email not in page.words
    cells = re.findall(r'<td class="n">(\d+)</td><td class="bar">', html)
    assert len(cells) == html.count('<svg class="bar"') == len(page.bars)
    assert len(cells) > 50 or count < 40


def test_a_class_of_two_hundred_takes_seconds(store, course):
    fill(store, 200)
    begin = time.process_time()
    checked(report.class_page(summarize(read_standing(store))))
    assert time.process_time() - begin < 4  # checking the page included


@pytest.mark.parametrize("id", [*IDS, "a" * 200, "..", ".hidden", "-x", "NUL", "con", "lpt1"])
def test_names_of_files_are_safe_whatever_an_id_holds(id):
    stem = outputs.file_stem(id)
    assert re.fullmatch(r"[a-z0-9_][a-z0-9_.-]{0,80}", stem)
    assert stem.split(".")[0] not in ("con", "nul", "lpt1")
    assert Path(stem).name == stem


def test_each_id_has_a_file_of_its_own():
    ids = [*IDS, "Ada", "ADA", "ada ", "ada.", "con", "NUL", "nul", "ａda"]
    ids += [outputs.file_stem(id) for id in ids]
    assert len({outputs.file_stem(id) for id in set(ids)}) == len(set(ids))
    assert outputs.file_stem("ada-1_b") == "ada-1_b"


def test_a_report_says_points_reasons_and_what_was_wrong(store, course):
    students(store, "ada", "bob")
    give(store, "ada", full("p02"), wrong(full("p04"), ["plain"], "DIAGONAL-EXCLUDED"), full("p05"))
    store.add(override("ada", "p05", 3, "by hand"))
    code, shown = run(course, "report")
    assert code == 0 and "reports of 2 students" in shown
    page = checked((course / "reports" / "ada.html").read_text(encoding="utf-8"))
    text = (course / "reports" / "ada.txt").read_text(encoding="utf-8")
    cause = next(
        c.diagnosis for c in read_standing(store).result("ada", "p04").result.checks
        if c.diagnosis
    )  # fmt: skip
    for shown in (page.words, " ".join(text.split())):
        assert "error[P04-DIAGONAL-EXCLUDED]" in shown and cause.help in shown
        assert "kim: by hand" in shown
        assert "no file of p09" in shown
    rows = {row[0].split()[0]: row[1:3] for row in page.rows if row and row[0].startswith("p0")}
    assert rows["p02"] == ["10", "10"] and rows["p05"] == ["3", "10"] and rows["p09"] == ["0", "30"]
    assert "Required: " in page.words
    assert all(len(line) <= 80 for line in text.split("\n"))
    assert "mode official" in text
    other = checked((course / "reports" / "bob.html").read_text(encoding="utf-8")).words
    assert "not handed in" in other and "error[" not in other


def test_nothing_about_others_is_in_a_report(store, course):
    students(store, "ada", "bob", "cyd")
    store.set_versions({"p04": "v1"})
    for student in ("ada", "bob"):
        hand_in(store, student, {"p04": b"same"})
    hand_in(store, "cyd", {"p04": b"other"})
    wrongs = wrong(full("p04"), ["plain"], output="cyd was here")
    store.save_results([stored(full("p04"), b"same"), stored(wrongs, b"other")])
    run(course, "report")
    for path in (course / "reports").iterdir():
        others = {"ada", "bob", "cyd"} - {path.stem}
        text = path.read_text(encoding="utf-8").lower()
        assert not [o for o in others if o in text], path


def test_reports_of_a_fault_and_of_what_is_not_graded_decide_nothing(store, course):
    students(store, "ada")
    hand_in(store, "ada", {"p04": b"x", "p05": b"y"})
    store.set_versions({"p04": "v1", "p05": "v1"})
    store.add(Fault(key=key_of("p04", b"x"), text="node n17 lost", at=AT))
    run(course, "report")
    text = (course / "reports" / "ada.txt").read_text(encoding="utf-8")
    assert "a fault that is not yours" in text and "not graded yet" in text and "n17" not in text
    page = checked((course / "reports" / "ada.html").read_text(encoding="utf-8"))
    assert "Required: 0 of 25 points, not all decided" in page.words


def test_results_of_several_runs_are_reported_each_in_its_setting(store, course):
    students(store, "ada")
    hand_in(store, "ada", {"p04": b"x", "p05": b"y"})
    store.set_versions({"p04": "v1", "p05": "v1"})
    store.save_results([stored(full("p04"), b"x"), stored(full("p05"), b"y", seed="beef")])
    run(course, "report")
    text = (course / "reports" / "ada.txt").read_text(encoding="utf-8")
    assert "seed 5eed" in text and "seed beef" in text


def test_hostile_text_is_text_on_every_page(store, course):
    store.set_students(Student(id=id, name=EVIL, email=EVIL, section=EVIL) for id in IDS)
    for id in IDS:
        told = {"headline": EVIL, "output": EVIL, "first": EVIL, "help": EVIL, "repeat": EVIL}
        bad = wrong(full("p04"), ["plain"], **told)
        bad = bad.model_copy(update={"message": Message(headline=EVIL), "next_step": EVIL})
        bad = bad.model_copy(update={"title": EVIL, "unseen": EVIL})
        checks = tuple(c.model_copy(update={"title": EVIL}) for c in bad.checks)
        evil = "  # </pre><script>alert(1)</script> \u202e &amp; \x1b[31m"
        data = f"x = {id!r}{evil}\n".encode()
        hand_in(store, id, {"p04": data}, source=EVIL)
        machine = record().environment.model_copy(update={"device_name": EVIL, "notes": (EVIL,)})
        store.save_results(
            [stored(bad.model_copy(update={"checks": checks}), data, environment=machine)]
        )
        store.add(override(id, "p05", 1, EVIL[:150]))
    store.set_versions({"p04": "v1", "p05": "v1"})
    assert run(course, "report")[0] == 0
    written = [p for p in course.rglob("*") if p.suffix in (".html", ".txt")]
    assert len(written) == 1 + 2 * len(IDS)
    assert all(p.parent in (course, course / "reports") for p in written)
    for path in written:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            assert "<script>alert" in checked(text).words or path.name == "class.html"
        else:
            assert not any(char in text for char in "\x00\x1b\x07\u202e\r")
    assert sorted(p.name for p in course.iterdir()) == ["class.db", "class.html", "reports"]


def test_reports_of_who_is_gone_are_deleted_and_what_is_not_ours_stays(store, course):
    students(store, "ada", "bob")
    run(course, "report")
    (course / "reports" / "notes.md").write_text("mine")
    students(store, "ada")
    run(course, "report")
    names = sorted(path.name for path in (course / "reports").iterdir())
    assert names == ["ada.html", "ada.txt", "notes.md"]


def test_a_folder_of_reports_that_leads_elsewhere_is_refused(store, course, tmp_path):
    students(store, "ada")
    (tmp_path / "elsewhere").mkdir()
    (course / "reports").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentFault, match="got a link"):
        run(course, "report")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_missing_package_is_said(store, course, monkeypatch):
    def missing(*_):
        raise ModuleNotFoundError("no", name="parsl")

    monkeypatch.setattr(report, "read_standing", missing)
    with pytest.raises(EnvironmentFault, match="parsl is not installed"):
        run(course, "report")


def test_files_are_written_for_a_tool_that_compares_them(store, course, tmp_path):
    students(store, "ada", "../bob")
    hand_in(store, "ada", {"p04": b"first", "p05": b"\xff\r\n"})
    hand_in(store, "ada", {"p04": b"last", "p05": b"\xff\r\n"})
    hand_in(store, "../bob", {"p04": b"bob"})
    folder = tmp_path / "new" / "compare"
    code, out = run(course, "report", "--files", str(folder))
    assert code == 0 and "3 files as handed in" in " ".join(out.split())
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.py")}
    bob = outputs.file_stem("../bob")
    assert found == {"p04/ada.py": b"last", "p05/ada.py": b"\xff\r\n", f"p04/{bob}.py": b"bob"}
    assert folder.stat().st_mode & 0o77 == 0
    (course / "class.html").unlink()
    for place in (folder, folder / "p04" / "ada.py"):
        with pytest.raises(CourseError, match="expected a folder that is new or empty"):
            run(course, "report", "--files", str(place))
    assert not (course / "class.html").exists()


def test_what_earlier_versions_wrote_is_in_nobodys_way(store, course):
    students(store, "ada")
    for name in outputs.FORMER_PAGES:
        (course / name).write_text("ada")
    with pytest.raises(CourseError, match="writes no leaderboard any more; leave the option out"):
        run(course, "report", "--leaderboard", "optins.csv")
    assert run(course, "report")[0] == 0
    run(course, "forget", "--student", "ada", "--yes")
    assert not any((course / name).exists() for name in outputs.FORMER_PAGES)


def test_the_report_says_whether_its_grades_are_published(store, course):
    students(store, "ada")
    give(store, "ada", full("p04"))
    assert "not published" in run(course, "report")[1]
    run(course, "publish", "--author", "kim")
    assert "note:" not in run(course, "report")[1]
    store.add(override("ada", "p04", 3, "x"))
    assert "1 grade is not as it was published" in run(course, "report")[1]
