"""docs/errors: a page for each cause that the judge can name, no other, and `make explain`.

`python -m tests.errors` writes the pages anew.
"""

import re
from pathlib import Path

import pytest

from grader.commands import cli
from grader.commands.explain.view import render
from grader.report import cause_pages, history
from grader.report.cause_pages import FOLDER, INDEX, ExplainError, look_up, page_ids
from grader.report.html import page as html
from grader.report.message import NOT_REPORTED, facts, head_line, remarks
from grader.report.score import told_causes
from grader.source.submission import step_regions
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.errors import pictures
from tests.errors.causes import about_pairs, all_ids, cause, events, known, seen, written
from tests.errors.helps import helps, unknown
from tests.errors.pages import MADE, SECTIONS, _sentence, pages
from tests.exports import record
from tests.harness import model_answer
from tests.mutants import MUTANTS
from tests.mutants.seen import SEEN
from tests.test_render_html import Page

PAGES = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
each_page = pytest.mark.parametrize("id", sorted(all_ids()))


# -- the pages -----------------------------------------------------------------------------------


def test_there_is_one_page_for_each_cause_and_no_other():
    assert set(page_ids()) == all_ids() == set(written())
    assert not list(FOLDER.glob("*/*")) and {p.suffix for p in FOLDER.iterdir()} == {".md"}


def test_all_that_a_report_can_name_is_a_cause():
    assert {"DIAGONAL-EXCLUDED", "ROW-LSE-BASE-2", "DQ-OVERWRITTEN"} <= set(known())
    assert {"WRONG-STRIDE", "LAST-COLUMNS-NEVER-READ", "DELTA-SCALED"} <= seen()
    reported = {v for v in Verdict if v not in (*NOT_REPORTED, Verdict.FAIL)}
    assert events() == {*(str(v).upper() for v in reported), "COMPILES", "UNNAMED"}


def test_the_pages_are_up_to_date():
    assert pages() == PAGES


@each_page
def test_a_page_has_its_sections(id):
    text = PAGES[id]
    assert text.startswith(f"{MADE}\n\n# {id}: ") and "do not edit" in MADE
    headings = [name for name in re.findall("^## (.+)$", text, re.M) if name != "The picture"]
    assert headings == list(SECTIONS)
    for section in re.split("^## .+$", text, flags=re.M)[1:]:
        assert len(section.strip()) > 20
    why = cause(id).why
    assert len(why) >= 60 and why.endswith((".", "?")) and len(why.split()) <= 80
    assert (cause(id).wrong is None) == (cause(id).right is None)
    shared = len(cause(id).problems) > 1
    assert re.findall(r"^    make grade P=(\w+) X=1$", text, re.M) == [
        "pNN" if shared else cause(id).problems[0]
    ]


@each_page
def test_what_a_page_names_exists(id):
    text = PAGES[id]
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (FOLDER / target).exists(), target
    for problem, check in re.findall(r"^    pytest problems/(p\d\d) -x -k (\w+)$", text, re.M):
        assert load_problem(problem).check(check)
        assert problem in cause(id).problems
    assert set(cause(id).problems) <= set(problem_ids()) and cause(id).problems


def test_a_help_names_only_code_that_the_student_has():
    """Such as scale_log2 where the function of the step gets that, and not softmax_scale."""
    found = {
        (id, problem): unknown(id, load_problem(problem), text) for id, problem, text in helps()
    }
    assert len(found) > 600 and {key: names for key, names in found.items() if names} == {}
    p08 = load_problem("p08")
    assert unknown("DQ-SCORES-UNSCALED", p08, "softmax_scale * log2(e)") == {"softmax_scale"}
    assert unknown("WRONG-BATCH", p08, "batch * stride_kb, tl.nothing") == {
        "stride_kb",
        "tl.nothing",
    }


def test_a_page_says_how_the_judge_knows_the_cause():
    """In p01 there is no kernel to watch, and numbers do not tell of a line."""
    watched = {id for id, text in PAGES.items() if "while your kernel runs" in text}
    computed = {id for id, text in PAGES.items() if "by the numbers of the result" in text}
    assert {"TILE-SHARES", "OTHER-DELTA", "ROWS-OFFSET"} <= computed
    assert {"WRONG-STRIDE", "OTHER-PAIRS", "COLUMNS-NEVER-READ"} <= watched
    assert not watched & computed and watched | computed <= seen()
    assert not any("p01" in cause(id).problems for id in watched)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("dV = P^T dout", "dV = P^T dout."),
        ("kv head 0 is read", "kv head 0 is read."),
        ("lse is wrong", "lse is wrong."),
        ("add them up", "Add them up."),
        ("which one?", "Which one?"),
    ],
)
def test_a_name_keeps_its_case_at_the_start_of_a_sentence(told, sentence):
    assert _sentence(told) == sentence


def _bare(line):
    return re.sub(r"\s+", "", line)


def test_no_page_holds_a_line_of_a_model_answer():
    answers = set()
    for problem in problem_ids():
        lines = model_answer(problem).split("\n")
        for first, last in step_regions("\n".join(lines)).values():
            answers |= {_bare(line.split("#")[0]) for line in lines[first : last - 1]}
    told = "".join(path.read_text() for path in (ROOT / "grader" / "causes" / "rules").glob("*.py"))
    answers = {line for line in answers if len(line) >= 10 and line not in _bare(told)}
    assert len(answers) > 100
    for id, text in PAGES.items():
        rows = {_bare(re.sub(r"^ +(wrong|right) +", "", row)) for row in text.split("\n")}
        assert not rows & answers, id
        for line in answers:
            assert "=" not in line or line not in _bare(text), (id, line)


def test_causes_of_the_wrong_kernels_are_told_in_their_problems():
    for mutant in MUTANTS:
        id = mutant.expected_id or SEEN.get(mutant.id)
        if id is not None:
            assert mutant.problem in cause(id).problems, (mutant.id, id)


def test_pictures_show_what_a_mistake_takes():
    def drawn(id, problem):
        return pictures.pairs(known()[id][problem], problem)

    assert drawn("DIAGONAL-EXCLUDED", "p04")[1:3] == ["#x..........", "##x........."]
    assert drawn("WINDOW-ONE-LARGER", "p06")[6] == ".!#####....."
    assert drawn("SINKS-COUNTED-TWICE", "p07")[3] == "22##........"
    assert drawn("SKIPPED-WITHOUT-CAUSAL", "p01")[0] == "####xxxxxxxx"
    assert drawn("KEY-TILES-END-AT-TILE-Q", "p01")[4] == "###2#......."
    assert pictures.pairs(known()["SCALE-MISSING"]["p04"], "p04") == []  # takes the right keys
    heads = pictures.heads(known()["HEADS-INTERLEAVED"]["p05"], "p05")
    assert [row.split()[-6:] for row in heads[1:]] == [list("010101"), list("000111")]
    without = {"K-V-SWAPPED", "PADDED-KEYS-COUNTED", "BATCH-ZERO", "LOOP-OVER-SEQLEN-Q"}
    assert {id for id in about_pairs() if "## The picture" not in PAGES[id]} == without


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", ["P06-WINDOW-SHIFTED", "p06-window-shifted", " window_shifted ", "P07-Window-Shifted"]
)
def test_an_id_is_found_in_any_spelling(asked):
    assert look_up(asked).text == PAGES["WINDOW-SHIFTED"]


def test_the_id_of_a_check_leads_to_the_page_on_checks():
    page = look_up("P04-RAGGED")
    assert (page.text, page.problem, page.check) == (PAGES["UNNAMED"], "p04", "ragged")
    assert render(page).rstrip().endswith("pytest problems/p04 -x -k ragged")
    assert look_up("P03-ROW-LOGSUMEXP").check == "row_logsumexp"
    assert look_up("P04-TIMEOUT").text == PAGES["TIMEOUT"]
    assert look_up("P04-COMPILES").text == PAGES["COMPILES"]


@pytest.mark.parametrize(
    ("asked", "like"),
    [
        ("P06-WINDOW-SHFTED", "WINDOW-SHIFTED"),
        ("DIAGNAL-EXCLUDED", "DIAGONAL-EXCLUDED"),
        ("SCALE", "SCALE-MISSING"),
        ("P04-RAGED", "P04-RAGGED"),
    ],
)
def test_near_misses_are_suggested(asked, like):
    with pytest.raises(ExplainError, match=f"ID: got '{asked}', expected one that .*{like}"):
        look_up(asked)


@pytest.mark.parametrize(
    "asked", ["../README", "README", "/etc/passwd", "P04-../../README", "\x1b[2J", "x" * 9999, "-"]
)
def test_what_is_no_id_is_refused_in_one_line(asked):
    with pytest.raises(ExplainError) as refused:
        look_up(asked)
    assert len(str(refused.value)) < 300 and "\x1b" not in str(refused.value)


def test_the_commands_are_those_of_the_problem_that_was_asked_for():
    def commands(asked, **more):
        page = render(look_up(asked, **more))
        return re.findall(r"^ +(?:pytest|make) .*?(p\w\w)\b", page, re.M)

    assert commands("P06-CAUSAL-IGNORED") == ["p06", "p06"]
    assert commands("CAUSAL-IGNORED", problems=("p07",)) == ["p07", "p07"]
    assert commands("CAUSAL-IGNORED")[-2:] == ["p09", "pNN"]
    assert commands("CAUSAL-IGNORED", problems=("p02",))[-1] == "pNN"  # not there
    assert commands("P02-CAUSAL-IGNORED")[-1] == "pNN"
    assert commands("P04-TIMEOUT") == ["p04"] and commands("TIMEOUT") == ["pNN"]
    told = "pNN stands for the problem; with P=p04 the commands name it."
    assert told in render(look_up("TIMEOUT")).replace("`", "")
    assert "pNN" not in render(look_up("P04-TIMEOUT")) + render(look_up("WEIGHTS-IGNORED"))
    assert commands("P04-RAGGED") == ["p04", "p04"]
    assert set(commands("WEIGHTS-IGNORED")) == {"p02"}


def test_without_a_problem_it_is_that_of_the_last_failure(tmp_path):
    runs = tmp_path / "history.jsonl"

    def problem(asked):
        return look_up(asked, runs=runs).problem

    def graded(**causes):
        points = {id: (0.0, 1.0) for id in causes}
        run = history.Run(time="now", submission="s", points=points, causes=causes)
        history.append(runs, run)

    assert problem("CAUSAL-IGNORED") is None
    graded(p05=("CAUSAL-IGNORED", "TIMEOUT"), p06=("WINDOW-SHIFTED",))
    graded(p01=("ZEROS",), p04=("CAUSAL-IGNORED",))
    graded(p04=())
    assert (problem("CAUSAL-IGNORED"), problem("TIMEOUT")) == ("p04", "p05")
    assert (problem("P07-CAUSAL-IGNORED"), problem("WINDOW-IGNORED")) == ("p07", None)
    runs.write_bytes(b"\xff\n")
    assert problem("ZEROS") is None
    runs.unlink()
    runs.mkdir()
    assert problem("ZEROS") is None  # it cannot be read


def test_without_pages_the_message_says_so(tmp_path):
    with pytest.raises(ExplainError, match="got no pages"):
        look_up("ZEROS", folder=tmp_path)
    (tmp_path / "ZEROS.md").write_bytes(b"\xff")
    with pytest.raises(ExplainError, match="not UTF-8"):
        look_up("ZEROS", folder=tmp_path)


@each_page
def test_a_page_fits_80_columns(id):
    for color in (False, True):
        text = render(look_up(id), color=color)
        rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in text.splitlines()]
        assert max(map(len, rows)) <= 80 and id in rows[0]
        assert "generated from" not in text and "](" not in text


@pytest.fixture
def run(monkeypatch, capsys):
    def start(*words):
        code = cli.main(["explain", *words])
        return code, *capsys.readouterr()

    return start


def test_the_command(run):
    code, out, err = run("p07-window-shifted")
    assert (code, err) == (0, "") and "make grade P=p07 X=1" in out
    code, out, _ = run()
    assert code == 0 and all(id in out for id in all_ids())
    assert run("")[1] == out
    code, out, _ = run("--only", "2")
    assert "HALF-PRODUCTS" in out and "WINDOW-SHIFTED" not in out
    assert run("P02")[1] == out
    code, out, err = run("P01-NOPE")
    assert (code, out) == (2, "") and err.startswith("grader: ID: got 'P01-NOPE'")
    code, out, err = run("P06-WINDOW-SHIFTET")
    assert (code, out) == (2, "") and "; like it are WINDOW-SHIFTED" in err
    assert run("--only", "p77")[0] == 2


def test_the_folder_is_that_of_the_docs():
    assert Path(cause_pages.FOLDER) == ROOT / "docs" / "errors" and INDEX in PAGES


# -- the page of a report ------------------------------------------------------------------------


def test_a_cause_says_first_what_to_do_and_links_to_its_text():
    graded = record("a known mistake")
    page = Page(html.render(graded))
    (problem,) = graded.problems
    (told, *_), _ = told_causes(problem)
    _, _, after = page.text.partition(head_line(told))
    labels = [label for label, _ in (*remarks(problem.id, told), *facts(problem.id, told))]
    assert labels[:3] == ["note", "help", "where"]
    places = [after.index(f" {label} ") for label in labels[:3]]
    assert places == sorted(places) and places[0] == 0
    links = [given["href"][1:] for tag, given in page.elements if tag == "a" and "href" in given]
    assert "about-0" in links and ("h3", {"id": "about-0"}) in page.elements
    title = PAGES[told.id[4:]].splitlines()[2]
    assert title.removeprefix("# ") in page.text
