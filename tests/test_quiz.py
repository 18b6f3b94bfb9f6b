"""The quiz: its questions and their figures, its pages, and how answers are read."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from grader.commands.quiz import pages
from grader.commands.quiz.answers import Unreadable, is_right, letter
from grader.commands.quiz.questions import FOLDER, LEVELS, TOPICS, Choice, Number, Open, load_level
from grader.spec.problem import PROBLEMS, ROOT, ManifestError

LEVEL0, HARD = (load_level(name).questions for name in LEVELS)
QUESTIONS = {question.id: question for question in (*LEVEL0, *HARD)}
WIDTH = 80
STATE = Path("flash-attention-problems", "quiz.json")

each_question = pytest.mark.parametrize("question", QUESTIONS.values(), ids=list(QUESTIONS))
each_page = pytest.mark.parametrize("path", list(pages.pages()), ids=lambda path: path.name)


def test_the_questions_are_those_that_the_course_must_cover():
    assert {q.id for q in LEVEL0} == {*(f"Q{n}" for n in range(1, 12)), "dim"}
    parts = {part: 5 for part in range(1, 10)} | {10: 7}
    assert {q.id for q in HARD} == {f"H{p}.{n}" for p in parts for n in range(1, parts[p] + 1)}
    assert len(QUESTIONS) == len(LEVEL0) + len(HARD) == 64


@each_question
def test_figures_are_recomputed(question):
    torch.manual_seed(0)
    names = {"math": math, "torch": torch}
    exec(question.python, names)
    assert ("answer" in names) == isinstance(question, Number)
    if isinstance(question, Number):
        assert abs(names["answer"] - question.answer) <= question.tolerance
        # What is shown is the exact answer, rounded to the digits that it has.
        digits = len(f"{question.answer:.10g}".partition(".")[2])
        assert round(float(names["answer"]), digits) == pytest.approx(question.answer, rel=1e-9)


@each_question
def test_figures_of_the_explanation_are_in_the_code_that_recomputes_them(question):
    """Numbers with a point or with three digits; years of papers are no figures."""
    answer = question.answer if isinstance(question, Open) else ""
    text = plain_digits(f"{question.explanation} {answer}")
    known = plain_digits(f"{question.question} {question.python}")
    known_numbers = {question.answer} if isinstance(question, Number) else set()
    known_numbers |= {float(n) for n in re.findall(r"\d+\.?\d*(?:e[+-]?\d+)?", known)}
    for figure in re.findall(r"(?<![\w.])(?:\d+\.\d+(?:e[+-]\d+)?|\d{3,})(?![\w.]*\d)", text):
        year = re.search(rf",\s{figure}[),]", text) and re.fullmatch(r"20[12]\d", figure)
        assert year or float(figure) in known_numbers, figure


def plain_digits(text):
    """Numbers without separators of thousands."""
    return re.sub(r"(?<=\d)[,_](?=\d{3})", "", text)


@each_question
def test_a_link_leads_to_a_handout(question):
    assert question.see is None or (PROBLEMS / question.see / "README.md").is_file()


@each_question
def test_texts_are_short_and_ascii(question):
    assert 2 <= len(question.explanation.strip().splitlines()) <= 11
    options = question.options if isinstance(question, Choice) else ()
    for text in (question.title, question.question, question.explanation, *options):
        assert text.isascii()
    assert len(f"{question.id}  {question.title}  ({question.topic}, 64 of 64)") <= WIDTH


def test_right_options_are_spread_over_the_letters():
    right = [q.right for q in QUESTIONS.values() if isinstance(q, Choice)]
    for letter_ in "abcd":
        assert 0.15 * len(right) < right.count(letter_) < 0.35 * len(right), letter_


def test_the_right_option_is_seldom_the_longest():
    choices = [q for q in QUESTIONS.values() if isinstance(q, Choice)]
    longest = [q.id for q in choices if len(q.lettered[q.right]) == max(map(len, q.options))]
    assert len(longest) <= len(choices) / 4, longest


def test_every_topic_has_questions():
    assert {q.topic for q in QUESTIONS.values()} == set(TOPICS)


NUMBER = {
    "id": "Q1",
    "title": "Length",
    "topic": "vectors",
    "kind": "number",
    "question": "How long?",
    "answer": 5,
    "absolute": 0.1,
    "python": "answer = 5",
    "explanation": "So long.",
}
CHOICE = {k: NUMBER[k] for k in ("id", "title", "topic", "question", "explanation")} | {
    "kind": "choice",
    "options": ["one", "two"],
    "right": "b",
}
BROKEN = {
    "unknown key": (NUMBER | {"unti": "MiB"}, "Q1: unti: got an unknown key, expected one of id"),
    "id": (NUMBER | {"id": "X1"}, "X1: id: got 'X1', expected"),
    "topic": (NUMBER | {"topic": "cats"}, "Q1: topic: got 'cats', expected 'vectors', 'softmax'"),
    "kind": (NUMBER | {"kind": "essay"}, "Q1: kind: got 'essay', expected one of number, choice"),
    "no kind": ({"id": "Q1"}, "Q1: kind: got 'nothing', expected one of number, choice, open"),
    "no answer": ({k: v for k, v in NUMBER.items() if k != "answer"}, "Q1: answer: got nothing"),
    "words": (NUMBER | {"answer": "five"}, "Q1: answer: got 'five', expected"),
    "two tolerances": (NUMBER | {"relative": 0.01}, "relative, absolute: got both, expected one"),
    "not recomputed": (NUMBER | {"python": " "}, "Q1: python: got ' ', expected"),
    "no such option": (CHOICE | {"right": "c"}, "Q1: right: got 'c', expected one of a, b"),
    "twice": (CHOICE | {"options": ["one", "one"]}, "Q1: options: got one of them twice"),
    "empty": (NUMBER | {"question": "\n"}, "Q1: question: got '\\n', expected"),
}


def write_level(path, *tables, head='title = "T"\nintro = "I"\n'):
    rows = ("\n".join(f"{key} = {json.dumps(value)}" for key, value in t.items()) for t in tables)
    path.write_text(head + "".join(f"[[questions]]\n{row}\n" for row in rows))
    return path.with_suffix("")


def test_a_level_that_is_right_is_read(tmp_path):
    other = CHOICE | {"id": "Q2"}
    level = load_level(write_level(tmp_path / "level.toml", NUMBER, other))
    assert [type(q) for q in level.questions] == [Number, Choice]


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_question_is_named_with_got_and_expected(tmp_path, name):
    table, message = BROKEN[name]
    with pytest.raises(ManifestError) as refused:
        load_level(write_level(tmp_path / "level.toml", table))
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path / 'level.toml'}: ")


def test_a_file_that_is_no_level_is_named(tmp_path):
    path = tmp_path / "level.toml"
    for text, message in {
        "title =": "not valid TOML",
        'title = "T"': "questions: got None, expected tables [[questions]]",
        "questions = [1]": "questions: got 1, expected a table",
        'intro = "I"\nquestions = []': "title: got nothing, expected a value",
    }.items():
        path.write_text(text)
        with pytest.raises(ManifestError, match=re.escape(message)):
            load_level(path.with_suffix(""))
    with pytest.raises(ManifestError, match="Q1: got two questions of this id"):
        load_level(write_level(path, NUMBER, CHOICE))
    with pytest.raises(ManifestError, match="No such file"):
        load_level(tmp_path / "none")


@each_page
def test_pages_are_made_from_the_questions(path):
    """`python -m grader.commands.quiz.pages` makes them anew."""
    assert path.read_text(encoding="utf-8") == pages.pages()[path]


@pytest.mark.parametrize("path", [pages.README, ROOT / "README.md"])
def test_the_number_of_questions_is_told_right(path):
    assert f"{len(QUESTIONS)} questions with worked answers" in " ".join(path.read_text().split())


@each_page
def test_links_lead_to_headings(path):
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)", text)
    assert links
    for target, anchor in links:
        there = (path.parent / target).resolve()
        assert there.is_file(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert [pages.slug(h) for h in headings].count(anchor) == 1, anchor


@pytest.mark.parametrize("name", LEVELS)
def test_no_page_of_questions_tells_an_answer(name):
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    for question in load_level(name).questions:
        assert question.explanation.strip().splitlines()[0] not in text
        assert f"{name}-answers.md#{pages.slug(f'{question.id} {question.title}')}" in text


RIGHT = {
    "H1.3": ["4", "4.0", "4e0", "+4", "8/2", "2^2", "2**2", "4x", "4 times", "4 fold", " 4 ", "~4"],
    "H1.1": ["32", "32 MiB", "32mib", "32 MB", "33554432 B", "33,554,432 bytes", "1/32 GiB"],
    "H1.5": ["2048", "2,048", "2 048", "2_048 bytes", "2 KiB", "2 kB", "2^11", "2048 byte"],
    "H2.4": ["0.0099", ".0099", "9.9e-3", "9.9 x 10^-3", "9.9*10**-3", "0.99 %", "99/10000"],
    "H4.1": ["49.8", "49.8 %", "49.8%", "49.8 percent", "0.498", "32640/65536", "49.9"],
    "H4.2": ["51", "51 keys", "51 key", "51 Keys."],
    "H8.1": ["262144", "262,144", "262k", "2^18", "262144 weights", "0.262144 million"],
    "H7.1": ["0", "-0", "0.0", "\u22120"],
    "H10.3": ["6.55 GB", "6.1 GiB", "6553.6 MB", "6.5536e9 bytes"],
    "H10.5": ["0.12", "12 %", "0.1216", "3/25"],
}
WRONG = {
    "H1.3": ["2", "8", "-4", "3.9", "4 %", "4k"],
    "H1.1": ["8", "32 GiB", "32 B", "64", "-32"],
    "H4.1": ["50", "50.2", "0.5", "4.98"],
    "H10.5": ["0.9", "18", "12"],
}
UNREADABLE = [
    *("", "five", "4,5", "1/0", "0/0", "1e999", "9^9999", "(-8)^(1/3)", "-8^0.5", "nan", "inf"),
    *("4 cats", "4 MiB", "--4", "1,23", "1 / 2 / 3", "4 4", "9" * 70, "\x1b[31m4", "e5", "."),
]


@pytest.mark.parametrize(("id", "typed"), [(id, t) for id, ts in RIGHT.items() for t in ts])
def test_numbers_are_read_as_people_write_them(id, typed):
    assert is_right(QUESTIONS[id], typed)


@pytest.mark.parametrize(("id", "typed"), [(id, t) for id, ts in WRONG.items() for t in ts])
def test_other_numbers_are_wrong(id, typed):
    assert not is_right(QUESTIONS[id], typed)


@pytest.mark.parametrize("typed", UNREADABLE)
def test_what_is_no_number_is_refused(typed):
    with pytest.raises(Unreadable, match="expected"):
        is_right(QUESTIONS["H1.3"], typed)


def test_a_tolerance_includes_its_ends_and_nothing_beyond():
    number = Number.model_validate(NUMBER)
    assert is_right(number, "4.9") and is_right(number, "5.1")
    assert not is_right(number, "4.899") and not is_right(number, "5.101")


def test_each_right_answer_is_right_as_it_is_shown():
    for question in QUESTIONS.values():
        if isinstance(question, Number):
            assert is_right(question, question.shown)
        elif isinstance(question, Choice):
            assert letter(question, question.shown[:2]) == question.right


@pytest.mark.parametrize("typed", ["b", "B", " b ", "b)", "(b)", "b."])
def test_letters_are_read_in_every_spelling(typed):
    assert letter(QUESTIONS["Q9"], typed) == "b"


@pytest.mark.parametrize("typed", ["", "e", "ab", "1", "()"])
def test_other_letters_are_refused(typed):
    with pytest.raises(Unreadable, match="expected one of a, b, c, d"):
        letter(QUESTIONS["Q9"], typed)
