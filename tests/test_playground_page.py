"""docs/playground.html in a real browser: the keyboard alone, wrong answers, absurd settings."""

import json
import re

import pytest

from tests import browser, needs
from tests.shares import drawn
from tests.test_playground import PAGE
from tests.test_report_page import OVERLAPPING, RUNNING_OVER


@pytest.fixture(scope="module")
def chromium():
    running = browser.Browser(needs.a_browser())
    yield running
    running.close()


def press(chromium, key, code=0):
    """Press a key as a hand does: a key that writes a character writes it."""
    text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
    code = code or ord(key.upper()) if len(key) == 1 else code
    given = {"key": key, "windowsVirtualKeyCode": code}
    chromium.send("Input.dispatchKeyEvent", type="keyDown", **given, **text)
    chromium.send("Input.dispatchKeyEvent", type="keyUp", **given)


def tab_to(chromium, id):
    for _ in range(40):
        press(chromium, "Tab", 9)
        if chromium.run("document.activeElement.id") == id:
            return
    raise AssertionError(f"Tab does not reach {id}")


def right_maximum(chromium):
    """Whether the maximum that is asked about grows, by the table of scores on the page."""
    query, scores, state = chromium.run(
        "[maximumOf(view.done.length).query, ...[...document.querySelectorAll('#numbers table')]"
        ".map((table) => [...table.querySelectorAll('tbody tr')].map((row) =>"
        "[...row.cells].map((cell) => cell.innerText)))]"
    )
    (row,) = [row[1:] for row in scores if row[0] == str(query)]
    (before,) = [row[1] for row in state if row[0] == str(query)]
    return "grows" if max(map(float, row)) > float(before) else "stays"


@pytest.mark.parametrize("example", ["p07", "p09"])
def test_the_keyboard_alone_completes_a_program(chromium, example):
    chromium.show(PAGE, width=1280)
    tab_to(chromium, "example")
    down = 0
    while chromium.run("document.getElementById('example').value") != example:
        press(chromium, "ArrowDown", 40)
        down += 1
        assert down < 10
    tab_to(chromium, "tile")
    before = chromium.run("view.number")
    press(chromium, "ArrowLeft", 37)
    assert chromium.run("view.number") == before - 1
    press(chromium, "ArrowRight", 39)
    kinds = chromium.run("asked().map((candidate) => candidate.kind)")
    maxima = 0
    for number, kind in enumerate(kinds):
        press(chromium, str(["full", "masked", "skipped"].index(kind) + 1))
        if chromium.run("asksMaximum()"):
            assert chromium.run("document.activeElement.id") == "question"
            assert " grow or stay?" in chromium.run("$('question').innerText")
            assert "was" not in chromium.run("$('numbers').innerText")  # the state before the tile
            press(chromium, str(["grows", "stays"].index(right_maximum(chromium)) + 1))
            maxima += 1
        assert chromium.run("document.activeElement.id") == "next"
        said = chromium.run("$('said').innerText")
        assert said.startswith("Right.") and "No," not in said
        press(chromium, "Enter" if number % 2 else "n", 13 if number % 2 else 0)
    text = chromium.run("document.getElementById('steps').innerText")
    visited = chromium.run("asked().filter((candidate) => candidate.visited).length")
    assert maxima == (visited if example == "p07" else 0)  # dK and dV need no running maximum
    answers = len(kinds) + maxima
    assert f"{answers} of {answers} answers were right." in text
    assert "What the program writes" in text and "NaN" not in text
    assert chromium.errors == [] and [*chromium.requests.values()] == [PAGE.as_uri()]


def test_a_wrong_answer_and_a_moved_bound_are_explained(chromium):
    chromium.show(PAGE, width=1280)
    tab_to(chromium, "tile")
    press(chromium, "s")
    press(chromium, "n")
    press(chromium, "f")
    assert chromium.run("[view.right, view.wrong]") == [1, 1]
    assert "No, not full. Masked: 3 of 8" in chromium.run("$('said').innerText")
    press(chromium, "n")  # does nothing: the maximum comes first
    press(chromium, "s" if right_maximum(chromium) == "grows" else "g")
    assert chromium.run("[view.right, view.wrong]") == [1, 2]
    assert re.match("No, it (grows|stays). ", chromium.run("$('said').innerText"))
    chromium.run("document.querySelector('[name=mode][value=bounds]').click()")
    assert "Right" in chromium.run("$('verdicts').innerText")
    tab_to(chromium, "bound-0")
    for _ in range(2):
        press(chromium, "ArrowRight", 39)
    assert "lost: keys 2, 3. The result is wrong." in chromium.run("$('verdicts').innerText")
    tab_to(chromium, "reset")
    press(chromium, "Enter", 13)
    assert "Right" in chromium.run("$('verdicts').innerText")
    assert chromium.errors == []


ABSURD = {
    "no window": ({"window": 0, "sinks": 3}, "window_size must be at least 1"),
    "one token": ({"seqlen": 1}, "one query, one key"),
    "large tiles": ({"seqlen": 3, "blockM": 8, "blockN": 8}, "one tile holds the whole sequence"),
    "sinks without end": ({"sinks": 48}, "every earlier key is visible"),
    "a window without end": ({"window": 48, "sinks": 48}, "Sinks change nothing"),
}


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("case", drawn(ABSURD, 3))
def test_absurd_settings_have_a_sentence_and_a_picture(chromium, case, width):
    given, sentence = ABSURD[case]
    chromium.show(PAGE, width=width, dark=width == 390)
    for example in ("p06", "p09"):
        for mode in ("steps", "bounds"):
            chromium.run(f"open('{example}'); view.mode = '{mode}'; change({json.dumps(given)})")
            if mode == "steps":
                chromium.run("answer('masked')")
                chromium.run("answerMaximum('stays')")
            text = chromium.run("document.body.innerText")
            assert sentence in text and not re.search("NaN|undefined|Infinity", text)
            assert chromium.run("document.querySelectorAll('#map rect').length") > 2
            assert "NaN" not in chromium.run("document.querySelector('#map').innerHTML")
            assert chromium.run("document.scrollingElement.scrollWidth") <= width
            assert (
                chromium.run(RUNNING_OVER.replace("svg", "svg, .scroll", 1)) == []
                and chromium.run(OVERLAPPING) == []
            )
    assert chromium.errors == []
