"""The pages of a class in a real browser: they fit a phone and a desk, in light and in dark.

With AXE=axe.min.js, which npm's axe-core has, its rules judge them too, and `report.html`.
"""

import os
from pathlib import Path

import pytest

from classroom.store import Store
from tests import browser, needs
from tests.class_commands import run
from tests.test_report_page import RUNNING_OVER, text_of
from tests.whole_class import fill

PAGES = ("class.html", "reports/s0003.html", "report.html")
AXE = "a file AXE, axe.min.js of npm's axe-core"
_VIOLATIONS = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((rule) =>
  rule.id + ": " + rule.nodes.map((node) => node.html.slice(0, 200)).join(" ")))
"""
# Code, output and the table of problems scroll in a frame of their own, which keys reach.
_FRAMES = (
    "[...document.querySelectorAll('pre, .wide')].filter((e) => e.scrollWidth > e.clientWidth)"
)


@pytest.fixture(scope="module")
def chromium():
    running = browser.Browser(needs.a_browser())
    yield running
    running.close()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The folder of a class with all its pages, and the page of a grading."""
    folder = tmp_path_factory.mktemp("course")
    with Store(folder / "class.db") as store:
        fill(store, 40)
    assert run(folder, "report")[0] == 0
    (folder / "report.html").write_text(text_of("mixed"), encoding="utf-8")
    return folder


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES[:-1])
def test_pages_of_a_class_run_over_nowhere_and_load_nothing(chromium, course, name, width):
    chromium.show(course / name, width=width, dark=width == 390)
    assert chromium.run("document.scrollingElement.scrollWidth") <= width
    over = chromium.run(RUNNING_OVER)
    assert all(text.startswith("<pre") for text in over), over
    assert chromium.run(f"{_FRAMES}.every((frame) => frame.tabIndex === 0 && frame.ariaLabel)")
    assert chromium.run("document.querySelectorAll('main').length") == 1
    assert chromium.errors == []
    assert [*chromium.requests.values()] == [(course / name).as_uri()]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(chromium, course, name, width, dark):
    if not (axe := os.environ.get("AXE")):
        needs.skip(AXE)
    chromium.show(course / name, width=width, dark=dark)
    chromium.run(Path(axe).read_text(encoding="utf-8") + "; 0")
    assert chromium.run(_VIOLATIONS) == []
