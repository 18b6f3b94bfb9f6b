"""A trace in the report: what is left of it in a message, in the terminal and on the page."""

import re

import pytest

from grader.causes.state.program import MOST_SHOWN, trimmed
from grader.report.html import page
from grader.report.html.film import film
from grader.report.message import cause_of, causes, facts, message_lines
from grader.report.state import state
from grader.spec.grade_record import (
    CheckResult,
    Diagnosis,
    Message,
    Points,
    ProblemResult,
    TileMap,
    Verdict,
)
from grader.spec.trace_record import SourceLine
from tests.exports import EVIL, with_problems
from tests.exports import record as graded
from tests.tracing import evil, record

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("count", "part", "kept"),
    [
        (40, 20, [1, *range(15, 25), 40]),
        (40, 1, [*range(1, 12), 40]),
        (40, 40, [1, *range(30, 41)]),
        (40, None, [*range(1, 12), 40]),
        (12, 3, [*range(1, 13)]),
        (1, 1, [1]),
    ],
)
def test_a_message_keeps_the_first_tile_those_around_the_parting_and_the_last(count, part, kept):
    few = trimmed(record(count, part))
    assert [tile.number for tile in few.rounds] == kept and len(kept) <= MOST_SHOWN
    assert few.tiles == count and few.parting == record(count, part).parting


def test_without_a_parting_the_tiles_with_something_to_tell_are_kept():
    whole = record(40, None)
    odd = whole.rounds[29].model_copy(update={"facts": ("its keys are of another kv head",)})
    whole = whole.model_copy(update={"rounds": (*whole.rounds[:29], odd, *whole.rounds[30:])})
    assert {1, 29, 30, 31, 40} <= {tile.number for tile in trimmed(whole).rounds}


def problem_with(*told, id="p03"):
    """A problem with a check for each trace, or for each None."""
    checks = tuple(
        CheckResult(
            id=f"check{n}",
            title="a check",
            verdict=Verdict.FAIL,
            message=Message(headline="out is wrong", first="out[0]", trace=each, repeat="make"),
        )
        for n, each in enumerate(told)
    )
    return ProblemResult(
        id=id,
        title="Attention",
        bonus=False,
        verdict=Verdict.FAIL,
        points=Points(),
        components={},
        checks=checks,
    )


def test_the_message_says_where_it_parts_shows_the_line_and_names_the_command():
    (cause,) = causes(problem_with(record()))
    first, _, result, _, *rest = message_lines("p03", cause, 80)
    assert first.endswith(": l goes wrong in tile 20 (line 118)") and "out is wrong" in result
    assert rest == [
        "  state   queries 64-127 of head 2: right up to tile 19 (keys 1152-1215), wrong",
        "          in tile 20 (keys 1216-1279): l goes wrong; m stays right",
        "  line    118  l = l + tl.sum(p, 1)",
        "  repeat  make",
        "  trace   make trace P=p03 CASE=unequal:1 SEED=5eed PROGRAM=1,0,0",
    ]


def test_a_first_tile_and_a_fact_and_no_parting_have_words_of_their_own():
    assert state(record(3, 1)) == (
        "queries 64-127 of head 2: wrong in tile 1 (keys 0-63): l goes wrong; m stays right"
    )
    whole = record(3, 2)
    odd = whole.rounds[1].model_copy(update={"facts": ("64 pairs are not visible", "second")})
    told = state(whole.model_copy(update={"rounds": (whole.rounds[0], odd, whole.rounds[2])}))
    assert told.endswith("(keys 64-127): 64 pairs are not visible")
    behind = record(3, None)
    assert state(behind) == f"queries 64-127 of head 2: {behind.conclusion}"
    assert [label for label, _ in facts("p03", causes(problem_with(behind))[0])][-3:] == [
        "state", "repeat", "trace",
    ]  # fmt: skip


def test_where_the_line_of_the_mistake_is_known_no_other_is_shown():
    problem = problem_with(record())
    (check,) = problem.checks
    named = Diagnosis(id="P03-X", title="x", note="note", help="help")
    for line, shown in ((None, True), (7, False)):
        message = check.message.model_copy(update={"line": line})
        found = check.model_copy(update={"diagnosis": named, "message": message})
        cause = cause_of(problem, [found])
        assert ("line" in dict(facts("p03", cause))) == shown
        text = page_of(problem.model_copy(update={"checks": (found,)}))
        assert ("l = l + tl.sum(p, 1)" in text) == shown


def test_a_message_without_a_trace_says_nothing_of_it():
    (cause,) = causes(problem_with(None))
    assert not {"state", "line", "trace"} & {label for label, _ in facts("p03", cause)}


def test_hostile_names_are_cleaned_in_the_terminal_and_escaped_on_the_page():
    problem = problem_with(evil(EVIL))
    lines = message_lines("p03", causes(problem)[0], 80)
    assert not any(CONTROL.search(line) or len(line) > 80 for line in lines)
    text = page_of(problem)
    assert "<script>alert" not in text and "\x1b" not in text and "\u202e" not in text
    assert text.count("<script>") == 1 and "&lt;script&gt;alert" in text


def page_of(*problems):
    return page.render(with_problems(graded("not implemented"), *problems))


def test_the_page_shows_each_tile_with_a_table_and_marks_the_one_where_it_parts():
    text = page_of(problem_with(trimmed(record())), problem_with(record(2, 2), id="p04"))
    assert len(re.findall(r'<details class="trace" open>', text)) == 1
    assert len(re.findall(r'<details class="trace">', text)) == 1
    assert len(re.findall(r'<div class="round( parts)?" ', text)) == 12 + 2
    assert (
        len(
            re.findall(r'<div class="round parts" [^>]*>\s*<table class="stack">\s*<caption>', text)
        )
        == 2
    )
    assert text.count(">diverges here</span>") == 2
    assert "tiles 2 to 14 are not shown" in text and "tiles 25 to 39 are not shown" in text
    assert "<b>differs in 2 queries</b>" in text and "not compared" in text
    assert '<th scope="col">yours</th><th scope="col">reference</th>' in text
    assert text.count("l = l + tl.sum(p, 1)") == 2
    assert 'data-copy="p03-trace-1"' in text and 'id="p03-trace-1"' in text
    assert len(text) < 200_000


def test_tiles_behind_the_last_that_was_kept_are_named():
    assert "tiles 4 to 300 are not shown" in page_of(problem_with(record(3, 2, tiles=300)))
    assert "not shown" not in page_of(problem_with(record(3, 2)))


def test_a_film_has_the_map_of_its_head():
    maps = [TileMap(product=p, batch=0, head=h, tile_q=64, tile_k=64, rows=("#.", "##"))
            for p, h in (("dq", 2), ("out", 1), ("out", 2))]  # fmt: skip
    shown = film(record(3, 2), [None, *maps], b"")
    assert "head 2:" in shown.grid.title and shown.parts == ()
    assert film(record(3, 2), maps[:2], b"").grid is None


def test_a_film_has_the_steps_and_what_is_around_the_lines_that_ran_or_are_wrong():
    lines = [f"x{n} = {n}" for n in range(1, 401)]
    lines[99:103] = ["# >>> step 1", "a = 1", "b = 2", "# <<< step 1"]
    tile = record(3, 2).rounds[0].model_copy(update={"ran": (SourceLine(line=40, text="loads k"),)})
    told = record(3, 2).model_copy(update={"rounds": (tile,)})
    shown = film(told, [], "\n".join(lines).encode(), (SourceLine(line=50, text="x"),), known=200)
    spans = [(part.lines[0].number, part.lines[-1].number) for part in shown.parts]
    assert spans == [(36, 44), (46, 54), (100, 103), (196, 204)]
    assert shown.wrong_lines == {50, 200}
    many = [SourceLine(line=n, text="x") for n in range(1, 400, 2)]
    long = film(told, [], "\n".join(lines).encode(), tuple(many))
    assert sum(len(part.lines) for part in long.parts) <= 160


@pytest.mark.parametrize(
    ("id", "verdict", "said"),
    [
        ("p06", Verdict.CRASH, "none was followed, for a call did not come back"),
        ("p06", Verdict.TIMEOUT, "make trace P=p06 follows one up to where it ends"),
        ("p06", Verdict.FAIL, "none was followed in this run; make trace P=p06"),
        ("p02", Verdict.PASS, "have no running maximum"),
        ("p08", Verdict.PASS, "a backward kernel sums gradients over tiles"),
        ("p06", Verdict.NOT_IMPLEMENTED, None),
    ],
)
def test_where_no_program_was_followed_the_page_says_why(id, verdict, said):
    problem = problem_with(None, id=id).model_copy(update={"verdict": verdict})
    assert (said is None) == ("One program, tile by tile: " not in page_of(problem))
    assert said is None or said in page_of(problem)
