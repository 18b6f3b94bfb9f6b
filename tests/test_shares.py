"""What `make test` leaves out of the corpora other versions draw; `make sweep` runs all of it."""

import re
from collections import namedtuple

import pytest

from tests import shares, sweep

Item = namedtuple("Item", "problem id")
ITEMS = [Item(f"p{n % 3}", f"{n}") for n in range(40)]


def on(word, monkeypatch, one_in=5):
    monkeypatch.setattr(shares, "SHARE", word)
    return shares.drawn(ITEMS, one_in)


def test_a_share_has_every_family_and_is_the_same_for_one_word(monkeypatch):
    first = on("0.18.0", monkeypatch)
    assert first == on("0.18.0", monkeypatch) == sorted(first, key=ITEMS.index)
    assert len(first) == 9 and {item.problem for item in first} == {"p0", "p1", "p2"}
    assert {item.problem for item in on("0.18.0", monkeypatch, 1000)} == {"p0", "p1", "p2"}


def test_other_words_draw_other_shares_and_all_draws_everything(monkeypatch):
    drawn = [on(f"0.{n}.0", monkeypatch) for n in range(31)]
    assert set().union(*drawn) == set(ITEMS) and drawn[0] != drawn[1]
    assert on("all", monkeypatch) == ITEMS


def test_the_sweep_runs_whole_what_make_test_judges_a_share_of():
    # test_seeds.py draws from what the part `seeds` judges whole.
    drawing = {*sweep.PARTS["corpora"][2:], "tests/test_seeds.py"}
    assert drawing == {*shares.users()} > {"tests/test_hostile.py", "tests/test_steps.py"}


def test_the_sweep_goes_on_after_a_part_that_failed(monkeypatch, capsys):
    monkeypatch.setattr(sweep, "PARTS", {"bad": ("no_such_module",), "good": ("this", "x")})
    assert sweep.main([]) == 1
    assert re.search(r"bad +failed .*\ngood +ok", capsys.readouterr().out)
    assert sweep.main(["good"]) == 0
    with pytest.raises(SystemExit):
        sweep.main(["other"])
    assert "got other, expected of bad, good" in capsys.readouterr().err
