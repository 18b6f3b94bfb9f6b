"""Requests, answers, comments, overrides: from regrade.md to the student's report."""

import pytest

from classroom.folder import DATABASE
from classroom.records import CourseError, Decision
from classroom.store import Store
from grader.commands.submit import command as submit
from grader.source.intake import requests
from grader.spec.problem import load_problem
from tests import classes
from tests.class_commands import give, run, students
from tests.classes import AT, P02, hand_in, packed, result_of, write
from tests.exports import EVIL
from tests.harness import model_answer
from tests.records import write_answers
from tests.whole_class import full, stored, wrong

course, store = classes.course, classes.store
ASKED = b"# p02\nLine 40 masks it,\nI think.\n\n## `P04` please\n=1+1\n# p44\nx\n"


def test_what_a_student_asks_is_read_and_cleaned():
    said = []
    found = requests.found(ASKED, said.append)
    assert found == {"p02": "Line 40 masks it, I think.", "p04": "=1+1"}
    assert said == ["regrade.md asks for p44, which is no problem here"]
    for data in (b"", b"please look again", b"# p02\n \n", b"\xff\xfe"):
        said.clear()
        assert requests.found(data, said.append) == {} and "expected a heading `# p01`" in said[-1]
    assert len(requests.found(b"# p02\n" + b"x" * 9000, said.append)["p02"]) == requests.MOST


def test_submit_packs_a_request_and_its_receipt_is_the_same(grader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_answers(tmp_path / "problems", {"p02": model_answer("p02")})
    before = grader("submit", "--submission", "problems")[1].splitlines()
    (tmp_path / "problems" / "regrade.md").write_text("# p02\nline 40 is right\n")
    code, out, _ = grader("submit", "--submission", "problems")
    assert code == 0 and "asks    for another look at p02\n" in out
    assert out.splitlines()[-1] == before[-1]
    found = submit.read(tmp_path / "submission.zip")
    assert (found.requests, found.notes) == ({"p02": "line 40 is right"}, ())
    (tmp_path / "problems" / P02).write_text("import os\n")  # refused, which it may be about
    code, out, _ = grader("submit", "--submission", "problems")
    assert code == 1 and "asks    for another look at p02\n" in out
    assert submit.read(tmp_path / "submission.zip").requests
    (tmp_path / "problems" / "regrade.md").write_text("look at p02 please\n")
    code, out, err = grader("submit", "--submission", "problems")
    assert (code, out) == (2, "") and "regrade.md has no request: expected a heading" in err


def parts_of(path):
    """The files of each student, by problem."""
    with Store(path) as store:
        return {who: hand_in.files for who, hand_in in store.hand_ins().items()}


def test_a_request_alone_is_a_submission_that_changes_no_answer(course, tmp_path):
    assert collected(course, tmp_path)[0] == 0
    again = write(tmp_path / "again", {"ada.zip": packed({"regrade.md": "# p02\nand line 41?\n"})})
    path = course / DATABASE
    before = parts_of(path)
    assert set(before) == {"ada", "bob"} and all(before.values())
    code, out = run(course, "collect", str(again))
    assert code == 0, out
    assert "asks: and line 41?" in run(course, "requests", "--all")[1]
    assert parts_of(path) == before
    assert "2, 2 have handed in" in run(course, "status")[1]
    # Who hands in nothing else has not handed in.
    (tmp_path / "roster.csv").write_text("id\nada\nbob\nzoe\n")
    zoe = write(tmp_path / "zoe", {"zoe.zip": packed({"regrade.md": "# p02\nwhy?\n"})})
    code, out = run(course, "collect", str(zoe), "--roster", str(tmp_path / "roster.csv"))
    assert code == 0, out
    out = run(course, "status")[1]
    assert "3, 2 have handed in" in out and "not handed in 1: zoe" in out
    # No request, or an answer under another name, which nobody is to miss: refused as before.
    misnamed = {"regrade.md": "# p02\nx\n", "p02/mine.py": "x"}
    for files in ({"regrade.md": "please look\n"}, {"regrade.md": "# p44\nx\n"}, misnamed):
        bad = write(tmp_path / "bad", {"bob.zip": packed(files)})
        out = run(course, "collect", str(bad))[1]
        assert "got no answer" in out, out


def collected(course, tmp_path, text="# p02\nline 40 is right\n"):
    files = {P02: "x", "regrade.md": text}
    source = write(tmp_path / "in", {"ada.zip": packed(files), "bob.zip": packed({P02: "y"})})
    csv = tmp_path / "roster.csv"
    csv.write_text("id\nada\nbob\n")
    return run(course, "collect", str(source), "--roster", str(csv))


def test_a_request_is_listed_once_answered_and_in_the_report(course, tmp_path):
    assert collected(course, tmp_path)[0] == 0
    assert collected(course, tmp_path)[0] == 0  # the same archive asks the same
    shown = run(course, "requests")[1]
    assert shown.startswith("ada  p02  ") and shown.count("asks: line 40 is right\n") == 1
    who = ("--student", "ada", "--problem", "p02", "--author", "kim")
    assert run(course, "answer", *who, "--reason", "2 points more")[0] == 0
    assert run(course, "requests")[1] == "no requests\n"
    shown = run(course, "requests", "--all")[1]
    assert "asks: line 40 is right" in shown and "answer, kim: 2 points more" in shown
    collected(course, tmp_path, "# p02\nand line 41?\n")
    assert "and line 41?" in run(course, "requests")[1]
    run(course, "comment", *who, "--reason", "well done " * 40)
    assert run(course, "report")[0] == 0
    for ending in ("txt", "html"):
        text = " ".join((course / "reports" / f"ada.{ending}").read_text().split())
        for words in ("you asked, ", "line 40 is right", "answer by kim", "comment by kim"):
            assert words in text
        assert text.count("well done") == 40
        assert "line 40" not in (course / "reports" / f"bob.{ending}").read_text()


def test_an_answer_needs_a_request_and_a_comment_words(course, tmp_path):
    collected(course, tmp_path)
    for student, problem, words in (
        ("bob", "p02", "one for which bob has a request: there is none"),
        ("ada", "p04", "one for which ada has a request: p02"),
    ):
        who = ("--student", student, "--problem", problem, "--author", "kim", "--reason", "no")
        with pytest.raises(CourseError, match=words):
            run(course, "answer", *who)
    with pytest.raises(CourseError, match="--reason: got ''"):
        run(course, "comment", "--student", "ada", "--problem", "p02", "--author=k", "--reason= ")
    with Store(course / "class.db") as store:
        assert [d.kind for d in store.decisions()] == ["request"]


def test_an_override_is_at_most_what_is_possible_where_the_problem_is_graded(store, course):
    students(store, "ada")
    hand_in(store, "ada", {"p02": b"x"})
    store.set_versions({"p02": "v1", "p03": "v1"}, {"p02": 7, "p03": 12})
    store.save_results([result_of("p02", b"x", 3.0)])
    for problem, most in (("p02", 7), ("p03", 12)):
        assert load_problem(problem).total_points > most
        who = ("--student", "ada", "--problem", problem, "--author", "kim", "--reason", "x")
        assert run(course, "override", *who, "--points", f"{most}")[0] == 0
        with pytest.raises(CourseError, match=f"expected 0 to {most}$"):
            run(course, "override", *who, "--points", f"{most + 0.5}")


def test_a_report_says_when_until_when_with_what_and_what_was_published(store, course):
    policy = "deadline = 2026-11-18T12:00:00Z\nlate_days = 3\npercent_per_day = 10\n"
    (course / "course.toml").write_text(policy)
    students(store, "ada", "bob")
    give(store, "ada", full("p04"))
    data = store.data(store.hand_ins()["ada"].files["p04"])
    old = store.hand_ins()["ada"]
    part = old.parts_of("p04")[0].model_copy(update={"code": "c0de" * 4, "version": "0.24.0"})
    store.save_hand_in(old.model_copy(update={"parts": {"p04": (part,)}}), {"p04": data})
    run(course, "publish", "--author", "kim")
    store.save_results([stored(wrong(full("p04"), ["plain"]), data, "v2")])
    store.set_versions({"p04": "v2"})
    extend = ("--student", "ada", "--days", "1", "--author", "kim", "--reason", "ill")
    run(course, "extend", *extend, "--problem", "p04")
    run(course, "report")
    points = f"{wrong(full('p04'), ['plain']).points.earned:g}"
    for ending in ("txt", "html"):
        text = " ".join((course / "reports" / f"ada.{ending}").read_text().split())
        for words in (
            "late days: 1 of 3 used",
            "handed in 2026-11-20 12:00 UTC; receipt c0dec0dec0dec0de, version 0.24.0",
            "deadline 2026-11-19 12:00 UTC, extended by 1 day (kim: ill)",
            "1 day late, 1 paid with late days",
        ):
            assert words in text, words
        at = store.last_publication().at
        assert f"published {at[:10]} {at[11:16]} UTC: 15 points" in text and points in text
    assert "published" not in (course / "reports" / "bob.txt").read_text()


def test_hostile_words_of_a_student_stay_text(course, tmp_path):
    evil = EVIL.encode("utf-8", "replace").decode()
    collected(course, tmp_path, f"# p02\n<script>x</script> {evil}\n")
    shown = run(course, "requests")[1]
    assert "\x1b" not in shown and all(len(line) <= 80 for line in shown.splitlines())
    run(course, "report")
    assert "<script>" not in (course / "reports" / "ada.html").read_text()
    assert "\x1b" not in (course / "reports" / "ada.txt").read_text()


def test_whoever_is_forgotten_has_asked_nothing(store, course):
    students(store, "ada")
    given = {"problem": "p02", "author": "ada", "reason": "secret", "at": AT}
    store.add(Decision(kind="request", student="ada", **given))
    run(course, "forget", "--student", "ada", "--yes")
    assert not store.decisions() and b"secret" not in (course / "class.db").read_bytes()
