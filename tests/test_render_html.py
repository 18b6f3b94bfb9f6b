"""The page for a browser: what it tells, that it is safe whatever a submission says, its size."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from docs.pictures.palette import PALETTE
from grader.report import history
from grader.report.html import charts, grids, source
from grader.report.html.page import render
from grader.report.message import facts, head_line, remarks
from grader.report.score import run_words, shown_causes
from grader.spec.grade_record import ErrorMap, TileMap, Verdict
from grader.spec.problem import ROOT
from tests.exports import ANSWERS, EVIL, NAMES, evil, record
from tests.harness import model_answer

VOID = {"meta", "link", "br", "img", "input", "hr"}
ALLOWED = set(
    "html head meta title style body a header p h1 h2 h3 b ul li main section table caption thead"
    " tbody tr th td small span svg rect path line circle text figure figcaption details summary"
    " pre code div article dl dt dd button script".split()
)
STYLE = (ROOT / "grader/report/html/templates/style.css").read_text(encoding="utf-8")


class Page(HTMLParser):
    """The elements of a page, its visible text, and whether all that is opened is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.words, self.policy = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        assert len(given) == len(attributes), tag
        self.elements.append((tag, given))
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data + " ")


def sources_of(name):
    graded = record(name)
    found = {}
    for problem in graded.problems:
        data = ANSWERS.get(name, {}).get(problem.id, model_answer(problem.id)).encode()
        found[f"{problem.id}/answer.py"] = data
        assert hashlib.sha256(data).hexdigest() == problem.source_sha256
    return found


def run(number, **points):
    return history.PastRun(time=f"day {number}", submission="answers", points=points)


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_the_terminal_tells_is_told(name):
    graded = record(name)
    page = Page(render(graded))
    said = page.text
    first = " ".join(" ".join(run_words(graded)).split())
    assert f"Skip to the points {first}" in said
    assert f"required {graded.totals.earned:g} of {graded.totals.available:g} points" in said
    for problem in graded.problems:
        assert f"{problem.id} {problem.title} {problem.verdict}" in said
        for cause in shown_causes(problem)[0]:
            assert head_line(cause) in said
            for label, value in (*facts(problem.id, cause), *remarks(problem.id, cause)):
                assert f"{label} {' '.join(value.split())}" in said
    assert ("interrupted: what was not run" in said) is graded.interrupted
    assert ("fault of the judge: costs no points" in said) is any(
        p.verdict is Verdict.INTERNAL for p in graded.problems
    )


@pytest.mark.parametrize("name", NAMES)
def test_elements_are_closed_ids_are_unique_and_what_is_named_is_there(name):
    page = Page(render(record(name), history=[run(1, p02=(1, 7)), run(2, p02=(2, 7))]))
    assert {tag for tag, _ in page.elements} <= ALLOWED
    ids = [given["id"] for _, given in page.elements if "id" in given]
    assert len(set(ids)) == len(ids)
    for _, given in page.elements:
        for key in ("aria-describedby", "data-copy"):
            assert given.get(key, ids[0]) in ids
        if "href" in given:
            assert given["href"][0] == "#" and given["href"][1:] in ids


def test_every_map_and_chart_has_its_content_in_words():
    page = Page(render(record("mixed")))
    images = [given for tag, given in page.elements if given.get("role") == "img"]
    assert images and all(len(given["aria-label"]) > 20 for given in images)
    for tag, given in page.elements:
        if tag == "svg":
            assert given.get("role") == "img" or given.get("aria-hidden") == "true"


def test_nothing_can_be_loaded_and_only_this_style_and_this_script_apply():
    text = render(record("mixed"), sources=sources_of("a known mistake"))
    page = Page(text)
    rules = dict(part.strip().split(" ", 1) for part in page.policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert set(rules) == {"default-src", "style-src", "script-src", "base-uri", "form-action"}
    for kind in ("style", "script"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = hashlib.sha256(inside.encode()).digest()
        assert rules[f"{kind}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    attributes = {key for _, given in page.elements for key in given}
    assert not attributes & {"src", "srcset", "style", "background", "action"}
    assert not {key for key in attributes if key.startswith("on")}
    assert "http://" not in text and "https://" not in text and "@import" not in text


def test_text_of_a_submission_stays_text():
    graded = evil()
    hostile = EVIL.encode("utf-8", "replace") * 50
    (problem,) = graded.problems
    problem = problem.model_copy(update={"source_sha256": hashlib.sha256(hostile).hexdigest()})
    sources = {f"{problem.id}/{EVIL}": hostile}
    runs = [history.PastRun(time="<b>", submission="x", points={"<i>": (1, 2)})] * 2
    text = render(graded.model_copy(update={"problems": (problem,)}), sources=sources, history=runs)
    page = Page(text)
    assert {tag for tag, _ in page.elements} <= ALLOWED
    kinds = [tag for tag, _ in page.elements]
    assert kinds.count("script") == kinds.count("style") == 1
    assert "<script>alert(1)</script>" in page.text  # shown as it is
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2028\ufffe\ud800-\udfff]", text)
    text.encode("utf-8")


def test_an_id_of_a_problem_makes_no_anchor_that_it_chooses():
    (problem,) = record("a known mistake").problems
    bad = problem.model_copy(update={"id": '"><script>x</script>'})
    graded = record("a known mistake").model_copy(update={"problems": (bad, bad)})
    ids = [given.get("id") for _, given in Page(render(graded)).elements]
    assert {"problem-0", "problem-1"} <= set(ids)


def test_the_failing_line_is_marked_where_it_stands_and_far_lines_are_folded():
    name = "an exception with output"
    graded, text = record(name), render(record(name), sources=sources_of(name))
    told, _ = shown_causes(graded.problems[0])
    lines = {str(cause.message.line) for cause in told if cause.message.line}
    marked = re.findall(r'<span class="line wrong"><span class="at">(\d+)</span>', text)
    assert lines and set(marked) == lines
    assert "^ error[P02-ERROR]" in Page(text).text
    assert re.search(r"<summary>lines 1 to \d+</summary>", text)


def test_only_the_bytes_that_were_graded_are_shown():
    name = "a known mistake"
    (path,) = sources_of(name)
    text = render(record(name), sources={path: b"print('another file')\n"})
    assert "another file" not in text and 'class="line' not in text


def test_lines_are_those_that_python_counts():
    data = b"a = 1\r\nb = '\x0c'\rc = '''\n\xe2\x80\xa8'''\n\n\n"
    lines = [line for part in source.view(data, {3: ["here"]}).parts for line in part.lines]
    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert lines[1].code.striptags() == "b = '\\u000c'"
    assert "\\u2028" in lines[3].code and lines[2].notes == ("here",)


def test_what_hides_or_turns_text_is_shown_by_its_number():
    view = source.view("x = 1 # \u202e\u2066 \u200b\x1b[31m\x00\n".encode(), {})
    code = view.parts[0].lines[0].code.striptags()
    assert code == "x = 1 # \\u202e\\u2066 \\u200b\\u001b[31m\\u0000"


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1  # " + b"&<>\"'" * 26_000,
        b"&\n" * 64_000,
        b"x = (" * 26_000,
        b"'''" * 43_000,
        b"\xff\xfe\x00" * 43_000,
        b"\n" * 128_000 + b"x",
        (b"def f(): return '&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&'\n") * 2500,
        b"",
    ],
)
def test_a_huge_source_is_bounded_and_keeps_what_is_near_a_mistake(data):
    rows = data.count(b"\n") + 1
    view = source.view(data, {rows: ["here"], rows + 7: ["beyond the end"]})
    shown = sum(len(line.code) for part in view.parts for line in part.lines)
    assert shown <= 80_000
    lines = [line for part in view.parts for line in part.lines]
    assert view.left_out + len(lines) == view.num_lines
    if data[-1:] not in (b"\n", b""):
        assert any(line.notes == ("here",) for line in lines)


def test_nine_huge_sources_stay_below_a_megabyte():
    graded = record("measured on a GPU")
    problems = []
    data = b"value = [1, 2.0, '&&', None]  # &&&\n" * 3400
    for number in range(9):
        given = {"id": f"p0{number + 1}", "source_sha256": hashlib.sha256(data).hexdigest()}
        problems.append(graded.problems[1].model_copy(update=given))
    graded = graded.model_copy(update={"problems": tuple(problems)})
    sources = {f"p0{number + 1}/x.py": data for number in range(9)}
    runs = [run(n, **{f"p0{p}": (1, 2) for p in range(1, 10)}) for n in range(200)]
    text = render(graded, sources=sources, history=runs)
    assert "lines are left out" in text
    assert 300_000 < len(text.encode()) < 1_000_000


# Maps and charts.

TILES = TileMap(product="dk", batch=1, head=2, tile_q=64, tile_k=32, rows=("#/..", "x!2o", "##"))


def areas(grid):
    """The number of cells that each layer covers, read from its path."""
    found = {}
    for layer in grid.layers:
        boxes = re.findall(r"M[\d.]+ [\d.]+h(\d+)v(\d+)h-\d+z", layer.path)
        found[layer.letter] = sum(int(w) * int(h) for w, h in boxes)
    return found


def test_a_map_of_tiles_covers_each_tile_once_and_counts_them():
    grid = grids.tile_grid(TILES, line=71)
    (cell,) = {areas(grid)[letter] for letter in "x!2o/"}
    assert areas(grid) == {layer.letter: layer.count * cell for layer in grid.layers}
    assert {layer.letter: layer.count for layer in grid.layers} == {
        "#": 3, "/": 1, ".": 2, "x": 1, "!": 1, "2": 1, "o": 1,
    }  # fmt: skip
    assert "1 queries skipped" in grid.summary and "batch 1 head 2 for dk" in grid.title
    assert [label.text for label in grid.letters] == ["x", "!", "2", "o"]
    assert '"note": "the program of these keys, line 71"' in grid.data
    assert "x ! 2 o" in grid.text


def test_a_map_of_errors_says_how_far_each_cell_is_off():
    errors = ErrorMap(
        output="dq", batch=0, head=3, num_rows=100, num_columns=64, cell_rows=4, cell_columns=2,
        rows=(".1", "9N"),
    )  # fmt: skip
    grid = grids.error_grid(errors, "queries")
    assert grid.title.startswith("Error of dq, head 3: queries down, head_dim across, 4 x 2")
    words = {layer.letter: layer.word for layer in grid.layers}
    assert words == {
        ".": "within the tolerance",
        "1": "1 to 3.2 times what is allowed",
        "9": "10,000 times what is allowed, or more",
        "N": "NaN or infinite",
    }
    assert grids._factor(5) == "100" and grids._factor(6) == "320" and grids._factor(4) == "32"


def test_a_vector_lies_on_its_side():
    errors = ErrorMap(
        output="lse", num_rows=6, num_columns=1, cell_rows=2, cell_columns=1, rows=(".", "3", "3")
    )
    grid = grids.error_grid(errors, "queries")
    assert grid.width > grid.height and '"rows": [".33"]' in grid.data


@pytest.mark.parametrize("side", [1, 32, 96, 500])
def test_a_map_fits_a_phone_whatever_its_size(side):
    tiles = TILES.model_copy(update={"rows": ("#" * side,) * side})
    grid = grids.tile_grid(tiles)
    assert grid.width <= 356 and grid.height <= 340
    assert ("only the first cells" in grid.summary) is (side > 96)


def test_unknown_letters_of_a_map_are_nothing_and_an_empty_map_is_no_fault():
    grid = grids.tile_grid(TILES.model_copy(update={"rows": ('"><script>', "#")}))
    assert [layer.letter for layer in grid.layers] == ["#", "."] and "script" not in grid.data
    assert grids.tile_grid(TILES.model_copy(update={"rows": ()})).layers == ()


def test_a_chart_orders_its_values_and_draws_no_number_that_is_none():
    given = [
        charts.Measure("p03", 40.0, "40x", 1.0, 1.0, 20.0),
        charts.Measure("p04", 2.0, "2x", 1.0, 20.0, 1.0),
        charts.Measure("p05", float("nan"), "", None, float("inf"), 0.0),
        charts.Measure("p06", 1e300, "", -1.0),
    ]
    made = charts.dots(given, "{:g}".format)
    first, second, third, fourth = made.rows
    assert first.base < second.value < first.span[1] < first.value <= charts.WIDTH
    assert first.span == second.span and third.value is third.span is None
    assert fourth.value is None and fourth.base is None
    assert [tick.text for tick in made.ticks] == sorted((t.text for t in made.ticks), key=float)
    assert charts.dots(given[2:], str) is None and charts.dots([], str) is None


def test_points_over_the_runs_are_those_of_the_last_run_of_each_problem():
    runs = [run(1, p02=(7, 7)), run(2, p03=(5, 14)), run(3, p02=(1, 7)), run(4, p02=(7, 7))]
    page = Page(render(record("nothing"), history=runs))
    said = page.text
    assert "4 day 4 p02 7/7 12" in said and "3 day 3 p02 1/7 6" in said
    assert said.index("day 4") < said.index("day 1")
    heights = [y for _, y in charts.steps([7, 12, 6, 12], 21).marks]
    assert heights[1] == heights[3] < heights[0] < heights[2]
    assert charts.steps([3.0], 5) is None and charts.steps([0, 0], 0) is not None


def test_only_the_last_runs_are_listed():
    said = Page(render(record("nothing"), history=[run(n, p02=(1, 7)) for n in range(30)])).text
    assert "10 older ones are not listed" in said and said.count("p02 1/7") == 20


@pytest.mark.parametrize("mode", [0, 1])
def test_the_colours_are_those_of_the_pictures(mode):
    block = STYLE.split("@media screen and (prefers-color-scheme: dark)")[mode]
    found = dict(re.findall(r"--([a-z-]+):(#[0-9a-f]{6})", block))
    assert found == {name: pair[mode] for name, pair in PALETTE.items()}


def test_every_class_of_the_page_has_its_rules():
    text = render(
        record("mixed"), sources=sources_of("a known mistake"), history=[run(1, p02=(1, 7))] * 2
    )
    used = {name for tag in re.findall(r'class="([^"]+)"', text) for name in tag.split()}
    ruled = set(re.findall(r"\.([a-z][a-z0-9-]*)", text[: text.index("</style>")]))
    assert used <= ruled


def test_names_of_code_in_the_text_of_a_cause_keep_the_blanks_around_them():
    page = render(record("computed as NaN"))
    assert "lines <code>first</code>, <code>worst</code> and <code>extent</code> of" in page
