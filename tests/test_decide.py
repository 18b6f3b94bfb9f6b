"""Which hypotheses are named: tables of cases, and what each of them shows."""

import pytest

from grader.causes.decide import Hypothesis, Kind, decide
from grader.spec.causes import Text

TEXT = Text("title", "note", "help")


def places(text):
    """`plain*3 half` is three plain cases and one of half; a number goes on where one ended."""
    found = set()
    for word in text.split():
        check, _, number = word.partition("*")
        first, _, last = (number or "1").rpartition("-")
        found |= {(check, n) for n in range(int(first or 0), int(last))}
    return frozenset(found)


def hypothesis(text):
    """`NAME kind: cases that show it; cases that it implies; cases against it`."""
    head, _, rest = text.partition(":")
    name, kind = head.split()
    shown, implied, against = (places(part) for part in (rest + ";;").split(";")[:3])
    return Hypothesis(name, Kind[kind.upper()], TEXT, shown, implied - shown, against)


# What is named, of which hypotheses, where these cases are wrong, and these failed.
TABLE = {
    "nothing is said": ("", "plain*3", "", []),
    "one mistake explains all": ("A", "plain*3", "", ["A predicted: plain*3"]),
    "one thing is seen": ("A", "half*3", "", ["A seen: half; half*3"]),
    "two mistakes in different cases": (
        "A B", "scale*2 heads*2", "", ["A predicted: scale*2", "B predicted: heads*2"],
    ),
    # For and against.
    "three cases for it, one against": (
        "", "half*4", "", ["A predicted: half*3;; half*3-4"],
    ),
    "four cases for it, one against": (
        "A", "half*5", "", ["A predicted: half*4;; half*4-5"],
    ),
    "half of the numbers": ("", "half*4", "", ["A numbers: half*2;; half*2-4"]),
    "more than half of the numbers": ("A", "half*4", "", ["A numbers: half*3;; half*3-4"]),
    "half of the numbers, the plain ones among them": (
        "A", "plain*2 half*4", "", ["A numbers: plain*2 half*1;; half*1-4"],
    ),
    "half of the numbers, one of the plain ones among them": (
        "", "plain*2 half*4", "", ["A numbers: plain*1 half*2;; plain*1-2 half*2-4"],
    ),
    # What goes before what.
    "a mistake before what was seen": (
        "A", "plain*3", "", ["A predicted: plain*3", "B seen: plain; plain*3"],
    ),
    "a proof before a mistake of the same numbers": (
        "B", "groups*4", "", ["A predicted: groups*4", "B proved: groups; groups*4"],
    ),
    "what was seen before numbers": (
        "B", "half*4", "", ["A numbers: half*3", "B seen: half*3-4; half*4"],
    ),
    "many numbers before what was seen in one case": (
        "A", "sinks*8 absent", "", ["A numbers: sinks*8; absent", "B seen: absent"],
    ),
    "what was seen in the plain case before what fits few": (
        "B", "plain*3 half*9 ragged*2", "",
        ["A predicted: ragged*2", "B seen: plain half; plain*3 half*9 ragged*2"],
    ),
    "what was seen in more cases than a mistake fits by chance": (
        "B", "lse ragged*4 half*4", "",
        ["A predicted: lse", "B seen: lse ragged half; ragged*4 half*4"],
    ),
    # One mistake is told once.
    "what was seen shows a mistake in most cases": (
        "A", "half*9 lse*3", "", ["A predicted: half*9", "B seen: half lse; half*9 lse*3"],
    ),
    "numbers are no second cause": (
        "A", "scale ragged", "", ["A predicted: scale", "B numbers: ragged;; scale"],
    ),
    "a second cause costs as much as one case seen": (
        "A", "scale*2 half", "", ["A predicted: scale*2", "B seen: half"],
    ),
    "a second cause in an option, beside one at the core": (
        "A B", "plain*3 half*9 scale", "", ["A predicted: plain*3 half*9", "B predicted: scale"],
    ),
    # Rivals.
    "two that explain the same": ("", "plain", "", ["A predicted: plain", "B predicted: plain"]),
    "two that explain nearly the same": (
        "C", "plain*3 half*9", "",
        [
            "A predicted: plain*3 half*8",
            "B predicted: plain*3 half*3-9",
            "C seen: plain; plain*3 half*9",
        ],
    ),
    "a mistake and what was seen in other cases too": (
        "A B", "ragged*4 heads*9", "",
        ["A predicted: ragged*4", "B seen: ragged heads; heads*9"],
    ),
    "one that explains a part of the other": (
        "A", "half*9", "", ["A predicted: half*9", "B predicted: half*8"],
    ),
    "the same by other evidence": (
        "A", "half*9", "", ["A numbers: half*6; half*9", "A numbers: half*2-8;; half*1"],
    ),
    # Beside the plain case.
    "a few cases where the plain one failed": ("", "ragged", "plain*3 half*5", ["A seen: ragged"]),
    "a few cases where others failed": ("A", "ragged", "heads*8", ["A seen: ragged"]),
    "most cases where the plain one failed": (
        "A", "ragged*6", "plain*3", ["A seen: ragged; ragged*6"],
    ),
    "a few cases where the plain one is wrong": (
        "B", "plain*3 half*9 ragged", "",
        ["A seen: ragged", "B predicted: plain*3 half*9"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("named", "wrong", "failed", "said"), TABLE.values(), ids=TABLE)
def test_a_hypothesis_is_named_where_most_speaks_for_it(named, wrong, failed, said):
    hypotheses = [hypothesis(text) for text in said]
    for order in (hypotheses, hypotheses[::-1]):
        found = decide(order, places(wrong), places(failed))
        assert sorted(h.id for h, _ in found) == named.split()


def test_each_case_goes_to_one_cause():
    said = [hypothesis("A predicted: half*4 lse"), hypothesis("B seen: ragged; ragged*5 half*6")]
    found = {h.id: cases for h, cases in decide(said, places("half*6 lse ragged*5"), ())}
    assert found == {"A": places("half*4 lse"), "B": places("ragged*5 half*4-6")}
