"""The page in a real browser: nothing runs over, nothing is loaded, and keys reach everything.

Needs Chromium (Debian: apt-get install chromium). One browser is started for all tests.
"""

import hashlib
import tempfile
from pathlib import Path

import pytest

from docs.pictures.palette import PALETTE
from grader.report import history
from grader.report.html.page import render
from tests import browser, needs
from tests.exports import ANSWERS, evil, record
from tests.harness import model_answer
from tests.records import graded as graded_answers
from tests.shares import drawn
from tests.test_render_kernels import compiled_twice
from tests.test_roofline import on_an_h200

# The elements that stick out of the window or of the box around them, or whose text is cut off.
RUNNING_OVER = """
[...document.body.querySelectorAll("*")].filter((e) => {
  if (e.closest("svg, .skip, thead, script") || !e.checkVisibility()) return false;
  if (getComputedStyle(e).overflowX === "auto") return false;
  const box = e.getBoundingClientRect(), around = e.parentElement.getBoundingClientRect();
  if (!box.width) return false;
  const scrolls = e.parentElement.closest(".scroll");
  const out = box.right > innerWidth + 1 || box.left < -1 ||
    (!scrolls && box.right > around.right + 1);
  const cut = getComputedStyle(e).display !== "inline" && e.scrollWidth > e.clientWidth + 1;
  return out || cut;
}).map((e) => e.outerHTML.slice(0, 120))
"""
# Pairs of boxes with text in them that lie on each other.
OVERLAPPING = """
(() => {
  const kinds = "h1, h2, h3, caption, td, th, dt, dd, li, p, summary, figcaption, .line, svg[role]";
  const found = [...document.querySelectorAll(kinds)].filter((e) => e.checkVisibility() &&
    !e.closest(".skip, thead, [hidden]") && e.getBoundingClientRect().height);
  const wrong = [];
  found.forEach((first, number) => found.slice(number + 1, number + 60).forEach((other) => {
    if (first.contains(other) || other.contains(first)) return;
    const a = first.getBoundingClientRect(), b = other.getBoundingClientRect();
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) wrong.push([first, other].map((e) => e.outerHTML.slice(0, 80)));
  }));
  return wrong;
})()
"""
FOCUSABLE = "[...document.querySelectorAll('a[href], button, summary, [tabindex]')]"
NAMES = (
    "full marks on the CPU",
    "tiles visited twice",
    "not implemented",
    "mixed",
    "an H200",
    "kernels compiled twice",
    "evil",
)


@pytest.fixture(scope="module")
def chromium():
    running = browser.Browser(needs.a_browser())
    yield running
    running.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return a function that writes the page of a record and returns its path."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}

    def write(name):
        if name not in made:
            made[name] = folder / f"{len(made)}.html"
            made[name].write_text(text_of(name), encoding="utf-8")
        return made[name]

    return write


def text_of(name):
    if name == "evil":
        return render(evil())
    if name == "an H200":
        return render(on_an_h200())
    if name == "kernels compiled twice":
        return render(compiled_twice())
    graded = record(name) if name != "tiles visited twice" else twice()
    sources = {
        f"{p.id}/answer.py": ANSWERS.get(name, {}).get(p.id, model_answer(p.id)).encode()
        for p in graded.problems
    }
    hashes = {hashlib.sha256(data).hexdigest() for data in sources.values()}
    assert name == "mixed" or {p.source_sha256 for p in graded.problems} == hashes
    runs = [
        history.PastRun(time=f"2026-11-{n:02d} 09:00", submission="x", points={"p02": (n % 8, 7)})
        for n in range(1, 31)
    ]
    return render(graded, sources=sources, history=runs)


def twice():
    with tempfile.TemporaryDirectory() as folder:
        return graded_answers(Path(folder), ANSWERS["tiles visited twice"])


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", drawn(NAMES, 8))
def test_nothing_runs_over_overlaps_or_is_loaded(chromium, page, name, width):
    chromium.show(page(name), width=width, dark=width == 390)
    for unfolded in (False, True):
        if unfolded:
            chromium.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert chromium.run("document.scrollingElement.scrollWidth") <= width
        assert chromium.run(RUNNING_OVER) == []
        assert chromium.run(OVERLAPPING) == []
    assert chromium.errors == []
    assert [*chromium.requests.values()] == [page(name).as_uri()]


def rgb(name, dark):
    text = PALETTE[name][dark]
    return f"rgb({int(text[1:3], 16)}, {int(text[3:5], 16)}, {int(text[5:7], 16)})"


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_dark_where_it_is_wanted_and_light_on_paper(chromium, page, dark):
    colours = (
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"
    )
    chromium.show(page("mixed"), width=1280, dark=dark)
    assert chromium.run(colours) == [rgb("ink", dark), rgb("paper", dark)]
    chromium.show(page("mixed"), width=700, dark=dark, media="print")
    assert chromium.run(colours) == [rgb("ink", False), rgb("paper", False)]
    assert chromium.run(RUNNING_OVER) == []
    assert not chromium.run("document.querySelector('button').checkVisibility()")


def test_the_tab_key_reaches_everything_that_can_be_opened_read_or_pressed(chromium, page):
    chromium.show(page("tiles visited twice"), width=1280)
    count = chromium.run(f"{FOCUSABLE}.filter((e) => e.checkVisibility()).length")
    assert count > 8
    reached = []
    for _ in range(count):
        for kind in ("rawKeyDown", "keyUp"):
            chromium.send("Input.dispatchKeyEvent", type=kind, key="Tab", windowsVirtualKeyCode=9)
        reached.append(chromium.run(f"{FOCUSABLE}.indexOf(document.activeElement)"))
        outline = chromium.run("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert len(set(reached)) == count and -1 not in reached
    assert reached == sorted(reached)


def test_a_cell_of_a_map_tells_of_itself_to_the_pointer_and_to_the_arrow_keys(chromium, page):
    chromium.show(page("tiles visited twice"), width=390)
    first = "document.querySelector('svg[data-map]')"
    told = f"document.getElementById({first}.getAttribute('aria-describedby')).textContent"
    assert chromium.run(told) == ""
    chromium.run(f"{first}.focus()")
    press = {"type": "rawKeyDown", "key": "ArrowDown", "windowsVirtualKeyCode": 40}
    chromium.send("Input.dispatchKeyEvent", **press)
    second = chromium.run(f"JSON.parse({first}.dataset.map).rows[1][0]")
    word = chromium.run(f"JSON.parse({first}.dataset.map).words[{second!r}]")
    size = chromium.run(f"JSON.parse({first}.dataset.map).down[1]")
    assert chromium.run(told).startswith(f"queries {size}-{2 * size - 1}, keys 0-")
    assert f": {word} (the program of these queries" in chromium.run(told)
    chromium.run(f"{first}.scrollIntoView({{block: 'center'}})")
    x, y = chromium.run(
        f"(({{left, top}}) => {{ const m = JSON.parse({first}.dataset.map);"
        f"return [left + m.left + 1, top + m.top + 1]; }})({first}.getBoundingClientRect())"
    )
    chromium.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert chromium.run(told).startswith("queries 0-")


FILM = "document.querySelector('.film')"


def tile_shown(chromium):
    """What the film shows: its status, the tiles that are visible, marked lines, the outline."""
    return chromium.run(
        f"(film => [film.querySelector('.now').textContent,"
        " [...film.querySelectorAll('.round')].filter((e) => e.checkVisibility())"
        "   .map((e) => e.querySelector('caption').textContent.split(':')[0]),"
        " [...film.querySelectorAll('.ran-now .at')].map((e) => e.textContent),"
        " ['x', 'y', 'width'].map((n) => +film.querySelector('.outline').getAttribute(n))])"
        f"({FILM})"
    )


def test_a_film_goes_from_tile_to_tile_by_buttons_and_by_keys(chromium, page):
    chromium.show(page("full marks on the CPU"), width=1280)
    chromium.run(f"{FILM}.closest('details').open = true")
    status, tiles, lines, box = tile_shown(chromium)
    assert status == "tile 1 of 3" and tiles == ["tile 1"] and len(lines) > 4
    chromium.run(f"{FILM}.querySelector('[data-go=next]').focus()")
    for key, code, number in (("ArrowRight", 39, 2), ("End", 35, 3), ("ArrowLeft", 37, 2)):
        press = {"type": "rawKeyDown", "key": key, "windowsVirtualKeyCode": code}
        chromium.send("Input.dispatchKeyEvent", **press)
        assert tile_shown(chromium)[:2] == [f"tile {number} of 3", [f"tile {number}"]]
    _, _, second, moved = tile_shown(chromium)
    assert (
        box[0] > 0 and moved == [box[0] + box[2], *box[1:]] and set(second) < set(lines)
    )  # q was loaded before the first
    for go, number in (("last", 3), ("first", 1), ("previous", 1), ("play", 1), ("play", 1)):
        chromium.run(f"{FILM}.querySelector('[data-go={go}]').click()")
        assert tile_shown(chromium)[0] == f"tile {number} of 3"
    assert chromium.run(f"{FILM}.querySelector('[data-go=play]').textContent") == "play"
    assert chromium.errors == []


def test_a_film_of_a_wrong_kernel_begins_where_it_parts(chromium, page):
    chromium.show(page("tiles visited twice"), width=390)
    part = chromium.run(f"{FILM}.dataset.part")
    assert tile_shown(chromium)[0].startswith(f"tile {part} of ")
    assert tile_shown(chromium)[0].endswith(", diverges here")
    chromium.run(f"{FILM}.querySelector('[data-go=first]').click()")
    chromium.run(f"{FILM}.querySelector('[data-go=part]').click()")
    assert tile_shown(chromium)[0].startswith(f"tile {part} of ")


def test_without_motion_script_or_screen_all_tiles_are_there(chromium, page):
    tiles = f"[...{FILM}.querySelectorAll('.round')].filter((e) => e.checkVisibility()).length"
    path, count = page("tiles visited twice"), f"{FILM}.querySelectorAll('.round').length"
    chromium.show(path, width=1280, media="print")
    assert chromium.run(tiles) == chromium.run(count) > 1
    assert not chromium.run(f"{FILM}.querySelector('.player').checkVisibility()")
    still = {"name": "prefers-reduced-motion", "value": "reduce"}
    chromium.send("Emulation.setEmulatedMedia", media="", features=[still])
    chromium.send("Page.reload")
    while not chromium.run(f"document.readyState === 'complete' && {FILM}.matches('.on')"):
        pass
    assert chromium.run(f"{FILM}.querySelector('[data-go=play]').hidden")
    chromium.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.show(path, width=1280)
        assert chromium.run(tiles) == chromium.run(count)
        assert not chromium.run(f"{FILM}.querySelector('.player').checkVisibility()")
    finally:
        chromium.send("Emulation.setScriptExecutionDisabled", value=False)


def test_a_command_is_copied(chromium, page):
    chromium.show(page("tiles visited twice"), width=1280)
    chromium.run(
        "navigator.clipboard.writeText = (t) => { window.copied = t; return Promise.resolve(); }"
    )
    chromium.run("document.querySelector('[data-copy]').click()")
    assert chromium.run("window.copied").startswith("make grade P=p04 SEED=")
    assert chromium.run("document.querySelector('button').textContent") == "copied"


def test_a_screen_reader_is_told_of_headings_tables_and_images(chromium, page):
    chromium.show(page("mixed"), width=1280)
    nodes = chromium.send("Accessibility.getFullAXTree")["nodes"]
    named = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        named.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert len(named["heading"]) > 8 and all(named["heading"])
    assert all(named["image"]) and "Points" in named["table"]
    assert all(named["button"]) and all(named["link"])
    chromium.show(page("mixed"), width=390)
    nodes = chromium.send("Accessibility.getFullAXTree")["nodes"]
    on_a_phone = [n["name"]["value"] for n in nodes if n.get("role", {}).get("value") == "heading"]
    assert on_a_phone == named["heading"]


def test_what_gets_into_the_page_by_some_hole_does_not_run(chromium, page, tmp_path):
    """The policy of the page is a second wall: a script that is not its own is refused."""
    bad = tmp_path / "bad.html"
    hole = "<script>window.owned=1</script><img src=x onerror='window.owned=1'><style>*{}</style>"
    text = page("mixed").read_text(encoding="utf-8")
    bad.write_text(text.replace("<main>", f"<main>{hole}"), encoding="utf-8")
    chromium.show(bad, width=1280)
    assert chromium.run("window.owned === undefined")
    assert len([e for e in chromium.errors if "Content Security Policy" in e]) >= 3
    assert [*chromium.requests.values()] == [bad.as_uri()]


def test_without_its_script_the_page_tells_the_same(chromium, page):
    text = "document.body.innerText"
    chromium.show(page("mixed"), width=1280)
    whole = chromium.run(text)
    chromium.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.show(page("mixed"), width=1280)
        without = chromium.run(text)
        assert not chromium.run("document.querySelector('button').checkVisibility()")
    finally:
        chromium.send("Emulation.setScriptExecutionDisabled", value=False)
    assert [word for word in whole.split() if word != "copy"] == without.split()


def test_a_browser_that_is_missing_is_noticed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert browser.installed() is None
