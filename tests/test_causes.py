"""grader/spec/causes: a table for each cause that the judge can name, docs/causes.md and `explain`.

`python -m grader.commands.explain.page` writes the page anew.
"""

import ast
import functools
import inspect
import re
import string

import pytest

import reference
from grader.causes.rules.sighting import Sighting
from grader.commands.explain import page as causes_page
from grader.commands.explain.command import render
from grader.report import history
from grader.report.cause_pages import ExplainError, look_up, sections, sentence
from grader.report.html import page as html
from grader.report.message import NOT_REPORTED, facts, head_line, remarks
from grader.report.score import shown_causes
from grader.source.steps import step_regions
from grader.spec import causes
from grader.spec.causes import entries, entry_of
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT, ManifestError, load_problem, problem_ids
from tests import mistake_pictures
from tests.exports import record
from tests.harness import model_answer
from tests.helps import helps, unknown
from tests.mutants import MUTANTS
from tests.mutants.seen import SEEN
from tests.test_render_html import Page

RULES = ROOT / "grader" / "causes" / "rules"
PAGE = causes_page.PAGE.read_text("utf-8")


def known():
    """The known mistakes by id and problem, and every form in which one is said."""
    found, forms = {}, {}
    for problem in problem_ids():
        for mistake in (*reference.mistakes_for(problem), *reference.bridge_mistakes_for(problem)):
            found.setdefault(mistake.id, {}).setdefault(problem, mistake)
            given = {"tile", *mistake.figures}
            forms.setdefault((mistake.id, mistake.variant), set()).update(given)
    return found, forms


def events():
    """How a call can end, and a check that fails without a cause."""
    ends = {str(v).upper() for v in Verdict if v not in (*NOT_REPORTED, Verdict.FAIL)}
    return {*ends, "COMPILES", "UNNAMED"}


def strings(*nodes):
    return {n.value for node in nodes for n in ast.walk(node) if isinstance(n, ast.Constant)}


@functools.cache
def sightings():
    """Ids, variants, figures and whether it is traced, of each Sighting that a rule makes."""
    found = []
    for path in sorted(RULES.glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        partial = {"Sighting": [], "by_numbers": [ast.keyword("kind", ast.Name("NUMBERS"))]}
        for made in tree.body:
            if isinstance(made, ast.Assign) and "(by_numbers, " in ast.unparse(made.value):
                given = [*made.value.args[1:], *made.value.keywords]
                partial[ast.unparse(made.targets[0])] = [*given, *partial["by_numbers"]]
        for function in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
            for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
                given = partial.get(ast.unparse(call.func))
                if given is None:
                    continue
                given = [*given, *call.args, *call.keywords]
                named = {k.arg: k.value for k in given if isinstance(k, ast.keyword)}
                id = next(k for k in given if not isinstance(k, ast.keyword))
                variant = named.get("variant", ast.Constant(""))
                ids = strings(function if isinstance(id, ast.Name) else id) & entries().keys()
                variants = strings(function if isinstance(variant, ast.Name) else variant)
                figures = named.keys() - inspect.signature(Sighting).parameters.keys()
                found.append((path.name, ids, variants, figures, not _of_numbers(named)))
    return found


def _of_numbers(named):
    return "kind" in named and ast.unparse(named["kind"]) == "NUMBERS"


def fields(id, *forms):
    templates = entry_of(id).templates(*forms).values()
    return {name for text in templates for _, name, *_ in string.Formatter().parse(text) if name}


def test_each_table_is_of_a_rule_a_known_mistake_or_an_event_and_each_of_these_has_one():
    assert {id for id, entry in entries().items() if entry.file == "events"} == events()
    rules = {id for _, ids, *_ in sightings() for id in ids}
    assert entries().keys() == known()[0].keys() | rules | events()
    assert all(entry_of(id).table.get("problems") or entry_of(id).costs for id in rules)
    files = {entry_of(id).file for id in rules - known()[0].keys()}
    assert files == {"kernels", "pairs", "results"}
    computed = {id for id, entry in entries().items() if entry.file == "results"}
    assert computed == rules - {id for _, ids, _, _, traced in sightings() if traced for id in ids}


def test_rules_give_the_figures_that_the_forms_of_their_causes_ask_for_and_no_others():
    said = set()
    for file, ids, variants, figures, _ in sightings():
        assert ids, file
        asked = set()
        for id in ids:
            below = {form[1] for form in entry_of(id).forms() if form[0] == "seen" and form[1:]}
            for variant in variants & below | ({""} if "" in variants or not below else set()):
                assert fields(id, "seen", variant) <= figures, (file, id, variant)
                asked |= fields(id, "seen", variant)
                said.add((id, variant))
        assert asked == figures, (file, ids)
    seen = {(id, form[1]) for id, e in entries().items() for form in e.forms() if form[1:]}
    assert {(id, variant) for id, variant in said if variant} == seen


def test_known_mistakes_give_the_figures_of_their_forms():
    _, forms = known()
    for (id, variant), given in forms.items():
        assert given - {"tile"} <= fields(id, variant) <= given, (id, variant)
    others = {
        (id, form[0]) for id, e in entries().items() for form in e.forms() if form != ("seen",)
    }
    assert {(id, form) for id, form in others if form != "seen"} == {k for k in forms if k[1]}


@pytest.mark.parametrize("text", ["[A]\ntitle = 'x'", "[A]\ntitle", None])
def test_a_file_that_cannot_be_used_is_named(text, tmp_path, monkeypatch):
    for path in causes.FOLDER.glob("*.toml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if text is None:
        (tmp_path / "measured.toml").unlink()
    else:
        (tmp_path / "softmax.toml").write_text(text)
    monkeypatch.setattr(causes, "FOLDER", tmp_path)
    with pytest.raises(ManifestError, match=str(tmp_path)):
        entries.__wrapped__()


def test_a_cause_says_what_happens_why_and_what_to_do():
    for id, entry in entries().items():
        for text in (entry.text.title, entry.text.note, entry.text.help):
            assert len(text) > 8 and not text.endswith(".") and "{" not in text, id
        why = entry.table["why"]
        assert len(why) >= 60 and why.endswith((".", "?")) and len(why.split()) <= 80, id
        assert ("wrong" in entry.table) == ("right" in entry.table), id
        assert set(entry.table.get("problems", "").split()) <= {*problem_ids()} and entry.problems


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
    """Of p01 the judge follows the running state and its tiles, and no kernel."""
    pages = {id: look_up(id).text for id in entries()}
    watched = {id for id, text in pages.items() if "while your code runs" in text}
    computed = {id for id, text in pages.items() if "by the numbers of the result" in text}
    assert {"TILE-SHARES", "OTHER-DELTA", "ROWS-OFFSET"} <= computed
    assert {"WRONG-STRIDE", "OTHER-PAIRS", "COLUMNS-NEVER-READ"} <= watched
    assert not watched & computed
    of_p01 = {"ARGUMENTS-EXCHANGED", "STATE-PARTS", "KEYS-NEVER-VISITED", "WRONG-PRODUCT"}
    of_p01 |= {"KEYS-AFTER-THE-QUERY", "VISIBLE-KEYS-MASKED", "OTHER-PAIRS"}
    of_p01 |= {"WRONG-BATCH", "WRONG-KV-HEAD", "ROUNDED-TO-16-BITS"}
    assert {id for id in watched if "p01" in entry_of(id).problems} == of_p01


@pytest.mark.parametrize(
    ("told", "written"),
    [
        ("dV = P^T dout", "dV = P^T dout."),
        ("kv head 0 is read", "kv head 0 is read."),
        ("lse is wrong", "lse is wrong."),
        ("add them up", "Add them up."),
        ("which one?", "Which one?"),
    ],
)
def test_a_name_keeps_its_case_at_the_start_of_a_sentence(told, written):
    assert sentence(told) == written


WITHOUT_LENGTHS = {"LOOP-OVER-SEQLEN-Q"}


def _bare(line):
    return re.sub(r"\s+", "", line)


def test_no_text_holds_a_line_of_a_model_answer():
    answers = set()
    for problem in problem_ids():
        lines = model_answer(problem).split("\n")
        for first, last in step_regions("\n".join(lines)).values():
            answers |= {_bare(line.split("#")[0]) for line in lines[first : last - 1]}
    told = _bare("".join(e.templates("seen")["help"] for e in entries().values()))
    answers = {line for line in answers if len(line) >= 10 and line not in told}
    assert len(answers) > 100
    for id in entries():
        text = "\n".join(part for _, parts in sections(entry_of(id)) for part in parts)
        rows = {_bare(re.sub(r"^ +(wrong|right) +", "", row)) for row in text.split("\n")}
        assert not rows & answers, id
        for line in answers:
            assert "=" not in line or line not in _bare(text), (id, line)


def test_causes_of_the_wrong_kernels_are_told_in_their_problems():
    for mutant in MUTANTS:
        id = mutant.expected_id or SEEN.get(mutant.id)
        if id is not None:
            assert mutant.problem in entry_of(id).problems, (mutant.id, id)


def test_pictures_show_what_a_mistake_takes():
    mistakes, _ = known()

    def drawn(id, problem):
        return mistake_pictures.pairs(mistakes[id][problem], problem)

    assert drawn("DIAGONAL-EXCLUDED", "p04")[1:3] == ["#x..........", "##x........."]
    assert drawn("WINDOW-ONE-LARGER", "p06")[6] == ".!#####....."
    assert drawn("SINKS-COUNTED-TWICE", "p07")[3] == "22##........"
    assert drawn("SKIPPED-WITHOUT-CAUSAL", "p01")[0] == "####xxxxxxxx"
    assert drawn("KEY-TILES-END-AT-TILE-Q", "p01")[4] == "###2#......."
    assert drawn("SCALE-MISSING", "p04") == []  # takes the right keys
    heads = mistake_pictures.heads(mistakes["HEADS-INTERLEAVED"]["p05"], "p05")
    assert [row.split()[-6:] for row in heads[1:]] == [list("010101"), list("000111")]
    without = {id for id, e in entries().items() if e.file == "masks" and e.picture is None}
    assert without <= {"K-V-SWAPPED", "PADDED-KEYS-COUNTED", "BATCH-ZERO", *WITHOUT_LENGTHS}


def test_the_page_is_up_to_date_and_has_an_anchor_for_each_cause():
    assert causes_page.text(problem_ids()) == PAGE
    headings = re.findall(r"^#+ (.*)$", PAGE, re.M)
    assert [h for h in headings if h in entries()] == list(entries())
    anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
    assert len(set(anchors)) == len(anchors)
    assert {target[1:] for target in re.findall(r"\]\((#[^)]+)\)", PAGE)} <= set(anchors)
    for target in set(re.findall(r"\]\(([^)#]+)\)", PAGE)):
        assert (causes_page.PAGE.parent / target).exists(), target
    assert len(PAGE) < 500_000  # GitHub shows no more


def test_a_page_for_some_problems_speaks_of_no_other():
    page = causes_page.text(["p01", "p02"])
    assert set(re.findall(r"p0\d", page.partition("## p01")[2])) - {"p04"} == {"p01", "p02"}
    assert "### WEIGHTS-IGNORED" in page and "WINDOW-SHIFTED" not in page.partition("## p01")[2]


@pytest.mark.parametrize(
    "asked", ["P06-WINDOW-SHIFTED", "p06-window-shifted", " window_shifted ", "P07-Window-Shifted"]
)
def test_an_id_is_found_in_any_spelling(asked):
    assert look_up(asked).entry == entry_of("WINDOW-SHIFTED")


def test_the_id_of_a_check_leads_to_the_page_on_checks():
    page = look_up("P04-RAGGED")
    assert (page.entry.id, page.problem, page.check) == ("UNNAMED", "p04", "ragged")
    assert render(page).rstrip().endswith("pytest problems/p04 -x -k ragged")
    assert look_up("P03-ROW-LOGSUMEXP").check == "row_logsumexp"
    assert look_up("P04-TIMEOUT").entry.id == "TIMEOUT"
    assert look_up("P04-COMPILES").entry.id == "COMPILES"


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
    told = "pNN stands for the problem; with P=p01 the commands name it."
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
        run = history.PastRun(time="now", submission="s", points=points, causes=causes)
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


def test_a_page_fits_80_columns():
    pages = [(id, look_up(id)) for id in entries()]
    for number, (id, page) in enumerate(pages):
        text = render(page, color=number % 2 == 0)
        rows = [re.sub(r"\x1b\[[0-9;]*m", "", row) for row in text.splitlines()]
        assert max(map(len, rows)) <= 80 and id in rows[0]
        assert "](" not in text


@pytest.fixture
def run(grader):
    return functools.partial(grader, "explain")


def test_the_command(run):
    code, out, err = run("p07-window-shifted")
    assert (code, err) == (0, "") and "make grade P=p07 X=1" in out
    code, out, _ = run()
    assert code == 0 and all(id in out for id in entries())
    assert run("")[1] == out
    code, out, _ = run("--only", "2")
    assert "HALF-PRODUCTS" in out and "WINDOW-SHIFTED" not in out
    assert run("P02")[1] == out
    code, out, err = run("P01-NOPE")
    assert (code, out) == (2, "") and err.startswith("grader: ID: got 'P01-NOPE'")
    code, out, err = run("P06-WINDOW-SHIFTET")
    assert (code, out) == (2, "") and "; like it are WINDOW-SHIFTED" in err
    assert run("--only", "p77")[0] == 2


def test_a_cause_says_first_what_to_do_and_links_to_its_text():
    graded = record("a known mistake")
    page = Page(html.render(graded))
    (problem,) = graded.problems
    (told, *_), _ = shown_causes(problem)
    _, _, after = page.text.partition(head_line(told))
    labels = [label for label, _ in (*remarks(problem.id, told), *facts(problem.id, told))]
    assert labels[:3] == ["note", "help", "where"]
    places = [after.index(f" {label} ") for label in labels[:3]]
    assert places == sorted(places) and places[0] == 0
    links = [given["href"][1:] for tag, given in page.elements if tag == "a" and "href" in given]
    assert "about-0" in links and ("h3", {"id": "about-0"}) in page.elements
    assert entry_of(told.id[4:]).text.title in page.text
