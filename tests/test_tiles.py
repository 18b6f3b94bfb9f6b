"""The tile map: its letters, coarse maps of long sequences, and lines that fit a terminal."""

import dataclasses

import numpy as np
import pytest

from grader.checks.counted_pairs import CountedPairs, tile_map
from grader.report.message import walk_as_due
from grader.report.terminal import MIN_WIDTH
from grader.report.tiles import is_as_due, tile_lines
from grader.spec.grade_record import Message, TileMap

TILE = 4
CAUSAL = np.tril(np.ones((3 * TILE, 3 * TILE), bool))


def walk(due=CAUSAL, tile=(TILE, TILE), heads=(1, 1), **given):
    """A walk over the tiles that hold a pair that is due, masked as it should be."""
    shape = (*heads, *due.shape)
    arrays = {
        "visited": np.broadcast_to(due, shape).copy(),
        "met": np.broadcast_to(due, shape).copy(),
        "taken": np.broadcast_to(due, shape).copy(),
        "twice": np.zeros(shape, bool),
        "shared": np.zeros(shape, bool),
        **{n: np.zeros(shape, np.uint8) for n in ("masks", "masked_at", "taken_at", "again_at")},
    }
    lines = {f.name: 1 for f in dataclasses.fields(CountedPairs) if f.name.endswith("_line")}
    return CountedPairs(
        product="out", case=None, trace=None, due=due, tile=tile, **(arrays | given), **lines
    )


def changed(name, where, value=True):
    """The map of the counted in which `name` is `value` for one pair."""
    found = walk()
    getattr(found, name)[0, 0][where] = value
    return tile_map(found)


class Group:
    """In place of a trace of four query heads and two kv heads."""

    class shape:
        num_q_heads, num_kv_heads = 4, 2


def wrong_in(*places, **given):
    """A counted that missed some pairs: batch, head, query, key."""
    found = dataclasses.replace(walk(heads=(2, 4)), trace=Group, **given)
    for place in places:
        found.taken[place] = False
    return found


def test_the_map_and_the_example_are_of_the_head_that_the_message_speaks_of():
    places = (0, 1, 3, 2), (0, 1, 9, 4), (1, 3, 5, 1), (1, 3, 5, 4), (1, 2, 8, 4), (1, 2, 9, 5)
    most = (1, 3, 7, 0), (1, 3, 8, 0)
    found = wrong_in(*places, *most)
    assert (tile_map(found).batch, tile_map(found).head) == (1, 3)  # where most went wrong
    assert found.example(found.missing) == (1, 3, 5, 1)
    near = wrong_in(*places, *most, near=(0, 1, 9))
    assert (tile_map(near).batch, tile_map(near).head) == (0, 1)
    assert near.example(near.missing) == (0, 1, 9, 4)
    assert wrong_in(*places, near=(0, 1, 5)).example(found.missing & ~most_of(found)) == (
        0,
        1,
        3,
        2,
    )
    right = wrong_in(*places, *most, near=(0, 0, 9))
    assert right.shown_head == (1, 3)  # what is wrong there is of another walk


def most_of(found):
    """The pairs of the head in which most went wrong."""
    pairs = np.zeros_like(found.missing)
    pairs[1, 3] = True
    return pairs


def test_a_key_of_dk_is_one_of_the_heads_of_its_group():
    places = (0, 1, 9, 4), (1, 3, 5, 1), (1, 3, 8, 4), (1, 2, 8, 4)
    found = wrong_in(*places, near=(1, 1, 4), product="dk")
    assert found.shown_head == (1, 3) and found.example(found.missing) == (1, 3, 8, 4)
    found = wrong_in(*places, near=(0, 0, 2), product="dv")
    assert found.example(found.missing) == (0, 1, 9, 4)
    elsewhere = np.zeros_like(found.missing)
    elsewhere[1, 0, 2, 1] = True
    assert found.example(elsewhere) == (1, 0, 2, 1)


def test_a_causal_walk_is_whole_below_the_diagonal_and_masked_on_it():
    found = tile_map(walk())
    assert found.rows == ("/..", "#/.", "##/")
    assert is_as_due(found)
    assert (found.product, found.tile_q, found.tile_k) == ("out", TILE, TILE)


@pytest.mark.parametrize(
    ("name", "where", "value", "rows"),
    [
        ("taken", (9, 5), False, ("/..", "#/.", "#x/")),
        ("taken", (5, 5), False, ("/..", "#x.", "##/")),
        ("taken", (5, 6), True, ("/..", "#!.", "##/")),
        ("taken", (0, 11), True, ("/.!", "#/.", "##/")),
        ("twice", (9, 0), True, ("/..", "#/.", "2#/")),
        ("visited", (0, 11), True, ("/.o", "#/.", "##/")),
    ],
)
def test_one_pair_that_is_wrong_gives_its_tile_a_letter(name, where, value, rows):
    found = changed(name, where, value)
    assert found.rows == rows
    assert not is_as_due(found)


def test_the_worst_letter_of_a_tile_is_shown():
    found = walk()
    found.taken[0, 0, 9, 5] = False
    found.taken[0, 0, 9, 6] = True
    assert tile_map(found).rows[2] == "#x/"
    found = walk()
    found.taken[0, 0, 5, 7] = True
    assert tile_map(found).rows[1] == "#!."
    found.twice[0, 0, 5, 4] = True
    assert tile_map(found).rows[1] == "#2."


def test_a_tile_in_the_diagonal_that_is_visited_in_vain_above_it_is_no_waste():
    found = walk(visited=np.ones((1, 1, *CAUSAL.shape), bool))
    assert tile_map(found).rows == ("/oo", "#/o", "##/")


def test_the_head_in_which_most_went_wrong_is_shown():
    found = walk(heads=(2, 3))
    found.taken[0, 1, 9, :2] = False
    found.twice[1, 2, 8:, :4] = True
    shown = tile_map(found)
    assert (shown.batch, shown.head, shown.rows[2]) == (1, 2, "2#/")


def test_the_last_tiles_may_be_smaller():
    due = np.ones((6, 9), bool)
    assert tile_map(walk(due)).rows == ("###", "###")


@pytest.mark.parametrize(
    ("seqlen", "tile", "letters", "shown"),
    [
        (48 * 4, (4, 4), (48, 48), (4, 4)),
        (48 * 4 + 1, (4, 4), (25, 25), (8, 8)),
        (200, (64, 1), (1, 25), (512, 8)),
        (1000, (1, 1), (32, 32), (32, 32)),
    ],
)
def test_a_map_of_more_than_48_tiles_is_coarse(seqlen, tile, letters, shown):
    found = tile_map(walk(np.tril(np.ones((seqlen, seqlen), bool)), tile))
    assert (len(found.rows), len(found.rows[0])) == letters
    assert {len(row) for row in found.rows} == {letters[1]}
    assert (found.tile_q, found.tile_k) == shown


def made(side, letters="#/ox!2.", **given):
    row = (letters * side)[:side]
    shape = {"product": "out", "batch": 0, "head": 0, "tile_q": 128, "tile_k": 128}
    return TileMap(rows=(row,) * side, **(shape | given))


@pytest.mark.parametrize("side", [1, 28, 29, 47, 48])
def test_lines_fit_the_narrowest_report_with_the_message_around_them(side):
    first, *lines = tile_lines(made(side, batch=3, head=127, product="dk"))
    assert first.startswith("batch 3 head 127 for dk: queries down, keys across, 128 x 128 ")
    assert len(first) <= 80  # it is wrapped
    assert all(len(line) + 8 <= MIN_WIDTH for line in lines)
    assert all(line == line.rstrip() and line.isascii() for line in lines)


def test_each_row_begins_with_its_first_query():
    _, *lines = tile_lines(tile_map(walk()))
    assert lines == [
        "     0  / . .",
        "     4  # / .",
        "     8  # # /",
        "        # all counted   / part counted",
    ]


def test_letters_of_a_wide_map_stand_side_by_side():
    narrow, wide = tile_lines(made(28)), tile_lines(made(29))
    assert narrow[1].split(maxsplit=1)[1].startswith("# / o x ! 2 .")
    assert wide[1].split(maxsplit=1)[1].startswith("#/ox!2.#/ox")


@pytest.mark.parametrize("letter", "#/ox!2")
def test_the_legend_names_the_letters_that_occur(letter):
    _, row, *legend = tile_lines(made(1, letter))
    assert row == f"     0  {letter}"
    assert len(legend) == 1 and legend[0].strip().startswith(f"{letter} ")
    assert is_as_due(made(1, letter)) == (letter in "#/")


def test_a_map_without_a_tile_that_is_due_has_no_legend():
    assert tile_lines(made(1, "."))[1:] == ["     0  ."]


def test_a_map_travels_in_a_message():
    message = Message(headline="out is wrong", tiles=tile_map(walk()))
    assert Message.model_validate_json(message.model_dump_json()) == message


def test_in_dk_and_dv_it_is_queries_that_are_missed():
    found = wrong_in((0, 0, 5, 1))
    for product, words in (
        ("dk", "queries skipped"),
        ("dv", "queries skipped"),
        ("dq", "keys skipped"),
    ):
        tiles = tile_map(dataclasses.replace(found, product=product))
        assert f"x {words}" in "\n".join(tile_lines(tiles))
        assert ("every visible key was" in walk_as_due(tiles)) is (product == "dq")
