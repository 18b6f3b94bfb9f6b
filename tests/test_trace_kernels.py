"""`make trace` on kernels: right ones never diverge, wrong ones where a loop in numpy does."""

import re

import numpy as np
import pytest

from grader.causes.state.ran import _load
from grader.kernel.observers.rounds import LOAD
from grader.spec.problem import load_problem
from tests import forked, mutants
from tests.harness import edited, model_answer, whole_answer
from tests.mutants.forward import ACC, DIVIDE, NEW_MAX, SUM
from tests.shares import drawn
from tests.tracing import Mistake, first_wrong_tile, numbers_of, trace
from tests.unusual import ANSWERS

AGREES = "the state agrees with the reference after"

_quick = forked.quick


def changed(problem, *edits):
    """The model answer, with what it imports written out, and with edits."""
    return edited(whole_answer(problem), *edits)


def mutant(problem, name):
    (found,) = (m for m in mutants.MUTANTS if m.problem == problem and m.name == name)
    return found.applied_to(whole_answer(problem))


def unusual(problem, name):
    (found,) = (a for a in ANSWERS if (a.problem, a.name) == (problem, name))
    if found.lacks():
        pytest.skip(found.lacks())
    return found.applied_to(model_answer(problem))


def of_roles(record):
    """What is shown of variables that are compared."""
    return [s for tile in record.rounds for s in tile.shown if s.role is not None]


@pytest.mark.parametrize(
    ("problem", "case"),
    drawn([
        ("p03", "unequal:1"),
        ("p04", "ragged:14"),
        ("p05", "groups:1"),
        ("p06", "unaligned_window:10"),
        ("p07", "sinks:1"),
    ], 3),
)  # fmt: skip
def test_a_right_kernel_agrees_after_each_tile(problem, case):
    record = trace(problem, model_answer(problem), case)
    assert (record.result, record.parting) == ("right", None)
    assert record.conclusion.startswith(AGREES) and record.tiles >= 2
    shown = of_roles(record)
    assert len(shown) == record.tiles * 4 and all(s.agrees for s in shown)
    assert {s.role for s in shown} == {"maximum", "sum", "accumulator"}
    assert record.notes == () and not any(tile.facts for tile in record.rounds)


UNUSUAL = [
    ("p03", "natural exponential"),
    ("p03", "last keys first"),
    ("p03", "block pointers"),
    ("p03", "split keys"),
    ("p03", "finite masks of -1e6"),
    ("p04", "descriptors"),
    ("p05", "persistent"),
    ("p06", "three loops"),
    ("p07", "constants"),
]


@pytest.mark.parametrize(("problem", "name"), drawn(UNUSUAL, 5))
def test_a_right_kernel_that_is_written_otherwise_agrees(problem, name):
    case = {"p06": "window:2", "p07": "sinks:1"}.get(problem, "plain:1")
    record = trace(problem, unusual(problem, name), case)
    assert (record.result, record.parting) == ("right", None)
    assert record.conclusion.startswith(AGREES)
    assert all(s.agrees for s in of_roles(record))


def test_three_passes_are_not_compared_right_or_wrong():
    source = unusual("p03", "three passes")
    wrong = source.replace("largest + tl.log(total)", "largest").replace(
        "p = tl.exp(scores", "p = tl.exp(0.9 * scores"
    )
    assert wrong != source
    for text, result in ((source, "right"), (wrong, "wrong")):
        record = trace("p03", text, "plain:1")
        assert (record.result, record.parting) == (result, None)
        assert "has several loops over keys" in record.notes[0]
        assert all(s.agrees is None for s in of_roles(record))


@pytest.mark.parametrize(
    ("problem", "name", "behind"),
    drawn([
        ("p03", "natural exponential", "out = acc / running_sum[:, None]"),
        ("p03", "last keys first", "out = acc / running_sum[:, None]"),
        ("p05", "persistent", "(acc / total[:, None])"),
    ], 2),
)  # fmt: skip
def test_a_mistake_behind_the_loop_is_said_to_be_there(problem, name, behind):
    source = unusual(problem, name)
    if name == "persistent":
        wrong = source.replace(behind, "(acc / (total + 1.0)[:, None])")
    else:
        wrong = source.replace(behind, "out = acc")
    record = trace(problem, wrong, "plain:1")
    assert (record.result, record.parting) == ("wrong", None)
    assert "look at what comes behind the loop" in record.conclusion


DIVIDED = (
    (SUM, "old_sum = running_sum * rescale\n        running_sum = old_sum + tl.sum(p, 1)"),
    (
        ACC,
        "acc = acc * old_sum[:, None] + tl.dot(p.to(v.dtype), v, input_precision='ieee')\n"
        "        acc = acc / running_sum[:, None]",
    ),
    (DIVIDE, "out = acc"),
)
NO_MAXIMUM = (
    (NEW_MAX, "new_max = tl.zeros((BLOCK_M,), tl.float32)"),
    ('running_max = tl.full((BLOCK_M,), float("-inf")', "running_max = tl.full((BLOCK_M,), 0.0"),
)
LATE = ((SUM, SUM.replace("tl.sum(p, 1)", "tl.sum(p, 1) * 0.5 + tl.sum(p, 1) * 0.5")),)


@pytest.mark.parametrize("edits", drawn([DIVIDED, NO_MAXIMUM, LATE], 3))
def test_other_conventions_are_recognised_and_not_called_wrong(edits):
    """With a mistake behind the loop too, which must not be laid to them."""
    source = changed("p03", *edits)
    record = trace("p03", source, "plain:1")
    assert record.result == "right" and record.parting is None
    wrong = source.replace("out = acc", "out = 1.5 * acc")
    record = trace("p03", wrong, "plain:1")
    assert (record.result, record.parting) == ("wrong", None)


def shifted(case):
    """What a window that is shifted by one to the left sees."""
    n, window = case.seqlen_q, case.kwargs["window_size"]
    rows, keys = np.arange(n)[:, None], np.arange(n)[None, :]
    return (keys <= rows) & (keys >= rows - window)


def causal(case):
    return np.arange(case.seqlen_k)[None, :] <= np.arange(case.seqlen_q)[:, None]


def everything(case):
    return np.ones((case.seqlen_q, case.seqlen_k), bool)


def without_sinks(case):
    rows, keys = np.arange(case.seqlen_q)[:, None], np.arange(case.seqlen_k)[None, :]
    return (keys <= rows) & (keys > rows - case.kwargs["window_size"])


WRONG = [
    ("p03", "acc not rescaled", "plain:2", {"rescale_acc": False}, {"acc"}, "acc = "),
    (
        "p03",
        "sum not rescaled",
        "plain:2",
        {"rescale_sum": False},
        {"running_sum"},
        "running_sum =",
    ),
    ("p04", "sum not rescaled", "plain:2", {"rescale_sum": False}, {"running_sum"}, "add_tile"),
    ("p06", "acc not rescaled", "plain:2", {"rescale_acc": False}, {"acc"}, "add_tile"),
    ("p04", "diagonal tile not masked", "plain:2", {"visible": everything}, None, "scores = "),
    ("p06", "window one larger", "window:2", {"visible": shifted}, None, "visible = "),
    (
        "p06",
        "left edge of the window forgotten",
        "window:2",
        {"visible": causal},
        None,
        "visible =",
    ),
    ("p06", "window ignored", "window:2", {"visible": causal}, None, "visible = "),
    ("p07", "sinks ignored", "sinks:1", {"visible": without_sinks}, None, "visible = "),
]
DRAWN = drawn(WRONG, 5)


@pytest.mark.parametrize(
    ("problem", "name", "place", "mistake", "names", "line"),
    DRAWN,
    ids=[f"{w[0]} {w[1]}" for w in DRAWN],
)
def test_a_wrong_kernel_parts_where_a_walk_in_numpy_does(
    problem, name, place, mistake, names, line
):
    record = trace(problem, mutant(problem, name), place)
    assert record.result == "wrong" and record.parting is not None
    if "visible" in mistake:
        check, _, number = place.partition(":")
        whole = load_problem(problem)
        case = whole.cases(whole.check(check), record.seed)[int(number) - 1]
        mistake = {"visible": mistake["visible"](case)}
        tile = record.rounds[record.parting.number - 1]
        assert any("hidden pair" in f or "masked" in f for f in tile.facts)
    assert record.parting.number == first_wrong_tile(record, Mistake(**mistake))
    assert names is None or set(record.parting.names) == names
    assert any(line in shown.text for shown in record.parting.lines)
    earlier = [s for tile in record.rounds[: record.parting.number - 1] for s in tile.shown]
    assert all(s.agrees for s in earlier if s.role is not None)


def test_a_maximum_that_is_not_carried_parts_where_it_falls():
    source = changed("p03", (NEW_MAX, "new_max = tl.max(scores, 1) * scale_log2"))
    record = trace("p03", source, "large_logits:3")
    assert record.parting is not None and record.parting.names[0] == "running_max"
    assert record.parting.number == first_wrong_tile(record, Mistake(carry_max=False)) == 2
    assert "largest score of the visible keys" in record.parting.text
    assert {shown.text.partition(" ")[0] for shown in record.parting.lines} == {"new_max"}


def test_a_scale_that_is_missing_is_told_as_a_factor():
    record = trace("p03", mutant("p03", "no scale"), "plain:1")
    assert "running_max is 1.443 times the largest product of q and k" in record.parting.text
    assert record.parting.number == 1


def test_a_tile_that_meets_another_tile_of_v_is_told():
    record = trace("p03", mutant("p03", "v not advanced"), "plain:1")
    assert record.parting.number == 2
    assert record.rounds[1].facts == ("its weights met V from row 0 on, not V of its own keys",)


def test_keys_of_another_head_are_told():
    record = trace("p06", mutant("p06", "heads interleaved"), "groups:1")
    assert "its keys are of another kv head than these queries need" in record.rounds[0].facts


def test_keys_that_no_tile_holds_are_named():
    record = trace("p03", mutant("p03", "last tile dropped"), "ragged:1")
    assert record.parting is None
    assert "keys 192-199 are visible to queries" in record.conclusion
    assert "were in no tile" in record.conclusion


def test_nan_in_rows_without_a_key_is_seen_where_it_begins():
    record = trace("p06", mutant("p06", "no safe maximum"), "window:1")
    assert record.parting.number == 1
    assert any("nan" in s.yours for s in record.rounds[0].shown)


def test_a_maximum_that_never_moves_parts_and_nothing_agrees_with_infinity():
    record = trace("p03", mutant("p03", "running max forgotten"), "plain:1")
    assert (record.parting.number, record.parting.names) == (1, ("running_max",))
    second = {s.name: s.agrees for s in record.rounds[1].shown}
    assert second == {"running_max": False, "running_sum": False, "acc": False}


def test_a_tile_that_is_visited_twice_counts_where_it_was_taken():
    """Sinks in the window are masked in one of the two visits; which is the kernel's choice."""
    for case in ("overlap:1", "overlap:2"):
        record = trace("p07", unusual("p07", "constants"), case)
        assert (record.result, record.parting) == ("right", None)
        assert all(s.agrees for s in of_roles(record))


def test_keys_that_are_counted_twice_part_in_the_second_visit():
    record = trace("p07", mutant("p07", "sinks in the window counted twice"), "overlap")
    assert record.result == "wrong" and record.parting is not None
    (fact,) = (f for f in record.rounds[record.parting.number - 1].facts if "counted again" in f)
    key = int(fact.rpartition(" ")[2])
    held = [tile.number for tile in record.rounds if key in numbers_of(tile.keys)]
    assert record.parting.number == held[1]


def test_what_a_loop_makes_anew_is_not_taken_for_the_state():
    """The sum of one tile is the running sum in the first, and no other is right there."""
    source = changed(
        "p03",
        (SUM, "tile_sum = tl.sum(p, 1)\n        running_sum = running_sum * rescale + tile_sum"),
        (
            "scores * scale_log2 - new_max[:, None])",
            "scores * scale_log2 - new_max[:, None]) * 1.0",
        ),
        (
            "        new_max = tl.maximum(running_max",
            "        running_sum += tl.where(running_max == float('-inf'), 0.0, 0.5)\n"
            "        new_max = tl.maximum(running_max",
        ),
    )
    record = trace("p03", source, "plain:1")
    assert (record.parting.number, record.parting.names) == (2, ("running_sum",))
    begun = changed(
        "p03", (SUM, "tile_sum = tl.sum(p, 1)\n        running_sum = running_sum + tile_sum + 1.0")
    )
    record = trace("p03", begun, "plain:1")
    assert (record.parting.number, record.parting.names) == (1, ("running_sum",))


def with_other_names(source):
    kernel = source.index("def _attention_kernel(")
    head, body = source[:kernel], source[kernel:]
    for old, new in (("running_max", "aa"), ("running_sum", "bb"), ("acc", "cc")):
        body = re.sub(rf"\b{old}\b", new, body)
    return head + body


def test_names_do_not_matter_where_the_numbers_tell():
    record = trace("p03", with_other_names(mutant("p03", "sum not rescaled")), "plain:1")
    assert (record.parting.number, record.parting.names) == (2, ("bb",))
    assert {s.name for s in of_roles(record)} == {"aa", "bb", "cc"} and record.notes == ()


def test_what_is_not_known_is_shown_by_its_name_and_not_compared():
    source = with_other_names(mutant("p03", "exp of scores in log2"))
    two = source.replace("    cc = tl.zeros(", "    dd = bb\n    cc = tl.zeros(")
    two = two.replace(
        "        bb = bb * rescale", "        dd = dd + rescale\n        bb = bb * rescale"
    )
    two = two.replace("tl.log2(bb)", "tl.log2(bb + 0.0 * dd)")
    record = trace("p03", two, "plain:1")
    shown = {s.name: s for s in record.rounds[0].shown}
    assert shown["aa"].role == "maximum" and shown["aa"].agrees
    assert shown["bb"].role is None and shown["bb"].agrees is None and shown["bb"].oracle is None
    assert any("does not know which variable is the running sum" in note for note in record.notes)
    assert record.parting is None or "bb" not in record.parting.names


def test_what_is_left_where_the_others_are_known_is_compared():
    record = trace("p03", with_other_names(mutant("p03", "exp of scores in log2")), "plain:1")
    shown = {s.name: s for s in record.rounds[0].shown}
    assert shown["bb"].role == "sum" and not shown["bb"].agrees
    assert any("bb is read as the running sum" in note for note in record.notes)
    assert "bb" in record.parting.names and "aa" not in record.parting.names


def test_of_a_check_the_first_wrong_case_is_traced():
    record = trace("p03", mutant("p03", "strides of k for v"), "layouts")
    assert (record.check, record.number, record.result) == ("layouts", 3, "wrong")


def what_ran(told, number):
    """What the lines of a tile did, each with its line as it is written, cut to a few words."""
    return [line.text for line in told.rounds[number - 1].ran]


def test_a_tile_names_its_lines_in_helpers_too_and_only_a_mask_that_was_applied():
    told = trace("p04", whole_answer("p04"), "plain:1")
    texts = whole_answer("p04").split("\n")
    state = ["multiplies queries with keys", "sets running_max", "sets running_sum"]
    assert what_ran(told, 1) == [
        "loads q of head 0: rows 64-127, columns 0-63",
        "loads k of head 0: rows 0-63, columns 0-63",
        *state,
        "loads v of head 0: rows 0-63, columns 0-63",
        "multiplies the weights with V",
    ]
    assert what_ran(told, 2)[2] == "masks 2,016 of 4,096 pairs"
    by_text = {line.text: texts[line.line - 1].strip() for line in told.rounds[1].ran}
    assert by_text["sets running_sum"].startswith("running_sum = running_sum * rescale")
    assert by_text["loads v of head 0: rows 64-127, columns 0-63"].startswith("v = load_")
    assert by_text["masks 2,016 of 4,096 pairs"].startswith("visible = ")


def test_what_is_loaded_from_elsewhere_is_told():
    told = trace("p05", mutant("p05", "v advanced by the stride of k"), "layouts:3")
    (load,) = (text for text in what_ran(told, 2) if text.startswith("loads v"))
    assert load == "loads v of head 0, batch entry 0: " + (
        "rows 55-118, columns 0-47, 1,024 elements outside"
    )


@pytest.mark.parametrize(
    ("load", "text"),
    [
        ({"last": 1, "rows": 1}, "loads k of head 0: row 1"),
        ({"last": 99, "rows": 50}, "loads k of head 0: 50 rows from 1 to 99"),
        ({"last": 130, "rows": 9}, "loads k of head 0: rows 1 to 2 of the head 1 further on"),
        ({"apart": 256}, "rows 1-2, columns 0-63, neighbouring elements 256 bytes apart"),
        ({"masked": 1024}, "rows 1-2, columns 0-63, 1,024 elements masked"),
    ],
)
def test_loads_are_told_in_words(load, text):
    case = next(
        iter(load_problem("p03").cases(load_problem("p03").check("plain"), "5eed").values())
    )
    given = dict.fromkeys(LOAD.names, 0) | {"first": 1, "last": 2, "rows": 2, "last_column": 63}
    assert text in _load(case, "k", given | load)
