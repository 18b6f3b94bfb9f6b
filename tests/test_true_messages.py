"""What a message says of a beginner's kernel is true, or is left unsaid.

Each of these kernels passed once, or was blamed for what it does not do.
"""

import re

import pytest

from grader.judge.case import CheckCase
from grader.report.state import state
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import SEED, Judged, cases_of, edited, judge, model_answer, whole_answer
from tests.mutants.forward import NEW_MAX
from tests.shares import drawn
from tests.tracing import trace
from tests.trials import last_is_wrong, right_answers

MASK = re.compile(r"^( +)if (?:not IS_EVEN|key_start >= full_end):.*\n(?:\1 {4}.*\n)+", re.M)
OVER_QUERIES = NEW_MAX.replace("(scores, 1)", "(scores, 0)")
UNSCALED = NEW_MAX.replace(" * scale_log2", "")

_quick = forked.quick


def changed(problem: str, *edits: tuple[str, str]) -> str:
    return edited(model_answer(problem), *edits)


def masked_late(problem: str) -> str:
    """The model answer, masked after the new maximum was taken."""
    source = model_answer(problem)
    (mask,) = (match[0] for match in MASK.finditer(source))
    (line,) = re.findall(rf" +{re.escape(NEW_MAX)}.*\n", source)
    return edited(source, (mask + line, line + mask))


def judged(problem: str, source: str, *checks: str) -> Judged:
    return judge(source, load_problem(problem), checks=checks)


def wrong_checks(found: Judged) -> set[str]:
    return {check for check, _ in found.wrong}


def test_a_whole_number_of_query_tiles_is_none_of_key_tiles():
    source = changed("p03", ('seqlen_k % tiles["BLOCK_N"]', 'seqlen_q % tiles["BLOCK_M"]'))
    found = judged("p03", source, "ragged", "unequal", "ragged_unequal", "lse_lengths")
    assert wrong_checks(found) == {"ragged_unequal"}


def test_missing_keys_may_not_raise_the_maximum():
    found = judged("p03", masked_late("p03"), "ragged", "ragged_unequal", "large_logits")
    assert wrong_checks(found) == {"ragged_unequal"}


@pytest.mark.parametrize(
    ("problem", "checks"), drawn([("p03", ("ragged_unequal",)), ("p04", ("half",))], 2)
)
def test_a_maximum_over_queries_is_not_told_as_rows_or_keys_that_it_met(problem, checks):
    found = judged(problem, changed(problem, (NEW_MAX, OVER_QUERIES)), *checks, "large_logits")
    assert wrong_checks(found) == {*checks, "large_logits"}
    assert found.named == {"REDUCED-OVER-QUERIES"}


@pytest.mark.parametrize(
    ("edit", "check", "title", "index"),
    drawn(
        [
            (("lse[:, None] * LOG2_E", "lse[None, :] * LOG2_E"), "dq", "lse", "lse[:, None]"),
            (("delta[:, None]", "delta[None, :]"), "dq", "delta", "delta[:, None]"),
            (("delta[None, :]", "delta[:, None]"), "plain", "delta", "delta[None, :]"),
        ],
        3,
    ),
)
def test_numbers_of_queries_along_the_keys_are_no_mask(edit, check, title, index):
    source = changed("p08", edit)
    source = source.replace('["dq"]\n', '["dq"] | {"BLOCK_M": 64, "BLOCK_N": 64}\n')
    source = source.replace('["dkdv"]\n', '["dkdv"] | {"BLOCK_M": 64, "BLOCK_N": 64}\n')
    found = judged("p08", source, check)
    (cause,) = found.findings.causes
    assert cause.diagnosis.id == "P08-ALONG-THE-KEYS"
    assert cause.diagnosis.title.startswith(title) and index in cause.diagnosis.help


OF_TILE = "query_start = tl.program_id(0) % num_query_tiles * BLOCK_M"
OF_HEAD = "batch_head = (tl.program_id(0) // num_query_tiles).to(tl.int64)"
TOO_SMALL = (("(batch * num_q_heads * triton", "(num_q_heads * triton"),)
TAKEN_APART = (
    (OF_TILE, "query_start = tl.program_id(0) // num_q_heads * BLOCK_M"),
    (OF_HEAD, "batch_head = (tl.program_id(0) % num_q_heads).to(tl.int64)"),
)


@pytest.mark.parametrize(
    ("edits", "words"),
    drawn([(TOO_SMALL, "the grid needs"), (TAKEN_APART, "the grid is large enough")], 2),
)
def test_a_grid_is_blamed_for_missing_heads_only_if_it_is_too_small(edits, words):
    found = judged("p03", changed("p03", *edits), "batch_heads")
    (cause,) = found.findings.causes
    assert cause.diagnosis.id == "P03-HEADS-NEVER-COMPUTED"
    assert cause.diagnosis.help.startswith(words)


@pytest.mark.parametrize(
    ("mask", "words"),
    [("", "positions past the end need a mask"), (", mask=tile_mask", "the mask lets")],
)
def test_a_load_without_a_mask_is_not_told_of_one(mask, words):
    source = model_answer("p02")
    (load,) = re.findall(r"x_tile = (tl\.load\(x_ptrs.*\))", source)
    source = source.replace(load, f"tl.load(x_ptrs{mask})")
    source = source.replace("row_mask = row_ids < rows", "row_mask = row_ids < rows + 1")
    message = judged("p02", source, "ragged_rows").of("ragged_rows").message
    assert message.headline == "read outside a tensor: past the end of argument x_ptr"
    assert message.help.startswith(words)
    assert message.extent.endswith("under a mask") == bool(mask)


def test_a_pointer_astray_is_named_though_the_backward_pass_fails_as_well():
    source = whole_answer("p08").replace("kv_head = q_head // group_size", "kv_head = q_head")
    source = source.replace(
        "delta = _launch_delta", "k = k.view(q.shape)\n        delta = _launch_delta"
    )
    found = judged("p08", source, "groups")
    assert found.of("groups").message.headline.startswith("read outside a tensor")
    assert found.named == {"WRONG-KV-HEAD"}


def test_the_first_nan_is_told_with_its_line_where_nothing_has_a_name():
    out = "out = (0.0 * acc) * (1.0 / (0.0 * running_sum))[:, None]"
    source = changed("p03", ("out = acc / running_sum[:, None]", out))
    message = judged("p03", source, "plain").of("plain").message
    assert out in source.splitlines()[message.line - 1]
    assert message.help == "the first NaN comes out of this line: 0 * inf"


LOAD_Q = "mask=queries[:, None] < seqlen_q, other=0.0)"
FIRST_KEY = "tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N"
SINK_PAIR = "(keys < num_sink_tokens) & (keys <= queries - window_size)"
TOLD_BY_WHAT_WAS_SEEN = {
    "p02 x_strides": ("w.stride(0), **tiles", "x.stride(0), **tiles", "the row stride of x"),
    "p03 ragged_unequal": ("keys[None, :] < seqlen_k", "keys[None, :] < seqlen_q", "the mask of"),
    "p03 unequal": (LOAD_Q, LOAD_Q.replace("seqlen_q", "seqlen_k"), "masked by the number of keys"),
    "p03 ragged": (
        LOAD_Q,
        LOAD_Q.replace("seqlen_q", "seqlen_q - 1"),
        "rows of q are never loaded",
    ),
    "p04 head_dims": ("k_ptr += BLOCK_N *", "k_ptr += k_offs.shape[1] *", "by 256 elements"),
    "p05 groups": ("q_head * q_strides[1]", "q_head // group_size * q_strides[1]", "from q of"),
    "p06 unaligned_window": (FIRST_KEY, FIRST_KEY[:-21], "begin at key 66, which is no multiple"),
    "p09 sinks": (SINK_PAIR, SINK_PAIR.replace(" - window_size", ""), "is a sink and lies in the"),
}


@pytest.mark.parametrize("place", drawn(TOLD_BY_WHAT_WAS_SEEN, 5))
def test_a_message_says_what_was_seen_of_its_cause(place):
    problem, check = place.split()
    old, new, words = TOLD_BY_WHAT_WAS_SEEN[place]
    found = judged(problem, changed(problem, (old, new)), check)
    texts = [c.diagnosis for c in found.findings.causes] or [found.of(check).message]
    assert words in " ".join(map(str, texts))


def test_an_error_outside_of_all_steps_is_told_as_what_a_step_left():
    source = changed("p08", ("(q, k, v, out, lse)", "(q, k, v, lse, out)"))
    message = judged("p08", source, "dq").of("dq").message
    assert message.headline.startswith("ValueError") and message.step == 2 and message.fed_by
    assert message.help.startswith("this line is in no step")
    inside = source.replace("ctx.save_for_backward", "ctx.save_it")
    message = judged("p08", inside, "dq").of("dq").message
    assert message.headline.startswith("AttributeError") and message.step == 2
    assert not message.help


def test_a_default_that_triton_cannot_read_is_told_as_such():
    last = "X_EVICTION: tl.constexpr,\n):  # fmt"
    source = changed("p02", (last, last.replace(",", ", SIDE: tl.constexpr = {0: 4}[0],")))
    headlines = {f.message.headline for f in judged("p02", source, "one_program").wrong.values()}
    assert len(headlines) == 1 and "Dict" in headlines.pop()


def first_number(call: int) -> float:
    problem = load_problem("p01")
    plain = CheckCase(problem, *cases_of(problem, ["plain"])[0])
    q = plain.inputs(SEED, call).tensors["q"]
    return float(q[0, 0, 0, 0])


@pytest.mark.parametrize("kept", [True, False])
def test_an_earlier_call_is_blamed_only_for_what_is_right_without_it(kept):
    problem = load_problem("p01")
    assert first_number(0) != first_number(1)
    name = re.search(r"return (out\.view\(q\.shape\)), lse", model_answer("p01"))[1]
    of_values = f"torch.where(q[0, 0, 0, 0] == {first_number(1)!r}, 2 * {name}, {name})"
    source = changed("p01", (name, f"LEFT.setdefault(q.shape, {name})" if kept else of_values))
    source = "LEFT = {}\n" + source
    (finding,) = judge(source, problem, checks=["plain"]).wrong.values()
    assert ("second call" in finding.message.headline) == kept
    assert kept or finding.message.headline == "out is wrong"


def test_a_maximum_in_another_unit_than_the_weights_does_not_stay_right():
    told = state(trace("p03", changed("p03", (NEW_MAX, UNSCALED)), "plain:2"))
    assert "running_max is 5.545 times the largest scaled score so far times log2(e)" in told
    assert "right" not in told


def test_a_maximum_of_scores_that_nobody_scaled_is_not_said_to_be_right():
    source = changed("p03", (NEW_MAX, UNSCALED)).replace(" * scale_log2 -", " -")
    told = state(trace("p03", source, "plain:1"))
    assert "running_sum and acc go wrong" in told and "running_max" not in told


def test_a_maximum_over_hidden_keys_is_told_where_what_is_relative_to_it_goes_wrong():
    told = state(trace("p04", masked_late("p04"), "half:3"))
    assert "running_max is larger than the largest score of the visible keys" in told


def test_a_maximum_that_makes_weights_of_fp16_tiny_is_named_and_not_their_rounding():
    assert judged("p04", masked_late("p04"), "half").named == {"STATE-PARTS"}


def test_a_mistake_in_what_joins_partial_results_is_not_said_to_be_behind_a_loop():
    _, source = right_answers("unusual")["p03-split_keys"]
    wrong = edited(source, ("row_ids = split * num_rows + rows", "row_ids = rows"))
    record = trace("p03", wrong, "plain:1")
    assert (record.result, record.parting) == ("wrong", None)
    assert "at what joins their results" in record.conclusion


def test_a_result_that_equals_the_one_row_of_v_is_not_read_by_the_stride_of_v():
    _, source = right_answers("unusual")["p03-split_keys"]
    split = "    split = tl.program_id(2)\n"
    ends = "    if split * keys_per_split >= seqlen_k:\n        return\n"
    found = judged("p03", edited(source, (split, split + ends)), "ragged_unequal")
    assert wrong_checks(found) == {"ragged_unequal"} and found.named == {"UNWRITTEN-READ"}


def one_tile_after_the_other(source: str, launch: str, first: str, end: str, *sums: str) -> str:
    """A kernel with two programs a head, which loop over its tiles; its `sums` begin just once."""
    (body,) = re.findall(rf"^ +{re.escape(first)}\n(?:.*\n)+? +{re.escape(end)}.*\n", source, re.M)
    inside = edited(body, (first, first.replace("tl.program_id(0)", "tile")))
    inside = "".join(f"    {line}\n" for line in inside.splitlines() if line.strip() not in sums)
    size = first.rpartition(" ")[2]
    begin = "".join(f"    {line}\n" for line in sums)
    over = f"    for tile in range(tl.program_id(0), tl.cdiv(N, {size}), tl.num_programs(0)):\n"
    grid = (f"{launch}[(triton.cdiv(n, 32), ", f"{launch}[(2, ")
    return edited(source, (body, begin + over + inside), grid)


TWO_QUERY_TILES = (
    *("_backward_q", "lo = tl.program_id(0) * BM", "tl.store(DQ"),
    "dq = tl.zeros([BM, D], tl.float32)",
)
TWO_KEY_TILES = (
    *("_backward_kv", "lo = tl.program_id(0) * BN", "tl.store(DV"),
    *("dk = tl.zeros([BN, D], tl.float32)", "dv = tl.zeros([BN, D], tl.float32)"),
)


@pytest.mark.parametrize(
    ("check", "kernel", "operand"),
    drawn([("dq", TWO_QUERY_TILES, "q"), ("dv", TWO_KEY_TILES, "k")], 2),
)
def test_a_gradient_that_a_program_does_not_reset_for_its_next_tile_is_told(check, kernel, operand):
    _, source = right_answers("unusual")["p08-heads_apart"]
    found = judged("p08", one_tile_after_the_other(source, *kernel), check)
    (cause,) = found.findings.causes
    assert (
        cause.diagnosis.id == "P08-ROWS-APART" and "accumulators for each" in cause.diagnosis.help
    )
    assert f"both were computed from {operand}" in cause.diagnosis.note


def test_keys_that_one_loop_masks_are_not_said_to_be_never_visited():
    _, source = right_answers("unusual")["p07-two_states"]
    wrong = edited(source, ("tl.minimum(S, hi - W)", "tl.minimum(S, lo - W)"))
    (cause,) = judged("p07", wrong, "early_sinks").findings.causes
    assert cause.diagnosis.id == "P07-VISIBLE-KEYS-MASKED"
    lines = [wrong.split("\n").index(line) + 1 for line in wrong.split("\n") if "lo - W)" in line]
    assert f"the loop of line {lines[0]} counts such pairs" in cause.diagnosis.note
    # Where no loop visits them, the end of the loop over the sinks is what is wrong.
    found = judged("p07", wrong, "early_sinks", "extreme_options")
    assert found.named == {"KEYS-NEVER-VISITED"} and found.findings.causes[0].line == lines[0]


def test_one_query_is_no_queries():
    source = changed("p03", (NEW_MAX, OVER_QUERIES))
    assert state(trace("p03", source, "ragged:2")).startswith("query 0 of head 0:")


def test_a_scale_of_zero_behind_the_softmax_is_no_mask():
    line = "running_sum = running_sum * rescale + tl.sum(p, 1)"
    source = whole_answer("p03").replace(line, "p *= scale_log2\n        " + line)
    source = source.replace("max(softmax_scale, _NEXT_TO_ZERO)", "softmax_scale")
    assert judged("p03", source, "odd_scales").named == {"SUM-OUT-OF-RANGE"}


def test_what_out_is_computed_with_is_told_without_a_gradient():
    load = "v = load_keys(v_ptr + v_offs, keys, seqlen_k, IS_EVEN)"
    found = judged("p03", changed("p03", (load, load.replace("v_ptr", "k_ptr"))), "plain")
    (cause,) = found.findings.causes
    assert cause.diagnosis.id == "P03-WRONG-PRODUCT"
    assert cause.diagnosis.help.startswith("out = P v")


SPLITS = "row_ids = (split * tl.num_programs(0) + batch_head) * seqlen_q + rows"
EARLY = "if split * keys_per_split >= seqlen_k:\n        return\n    " + SPLITS
PARTIAL_LSE = "lse = tl.load(partial_lse_ptr + row_ids, mask=exists, other=0.0)"


@pytest.mark.parametrize("by_pytorch", [False, True])
def test_elements_that_nobody_wrote_are_said_to_be_read_in_the_line_that_reads_them(by_pytorch):
    source = edited(right_answers("unusual")["p03-split_keys"][1], (SPLITS, EARLY))
    reads = PARTIAL_LSE
    if by_pytorch:
        reads, launch = "partial_lse = 1.0 * partial_lse", "_combine_kernel[(triton"
        source = source.replace(launch, f"{reads}\n    {launch}")
    checks = ["ragged", "ragged_unequal"]
    found = judge(source, load_problem("p03"), checks=checks, policy=not by_pytorch)
    (cause,) = found.findings.causes
    assert cause.diagnosis.id == "P03-UNWRITTEN-READ"
    assert cause.diagnosis.title.startswith(
        "PyTorch computes" if by_pytorch else "elements are read"
    )
    assert reads in source.splitlines()[cause.line - 1]
    assert {check for check, _ in cause.cases} == {"ragged", "ragged_unequal"}


def test_a_read_of_what_nobody_wrote_is_no_cause_where_nothing_is_made_from_it():
    known = PARTIAL_LSE + '\n        lse = tl.where(lse == lse, lse, float("-inf"))'
    weight = "weight = tl.exp2(lse - new_largest)"
    source = edited(
        right_answers("unusual")["p03-split_keys"][1],
        (SPLITS, EARLY),
        (PARTIAL_LSE, known),
        (weight, weight + "\n        partial = tl.where(partial == partial, partial, 0.0)"),
        ("total * rescale + weight", "total * rescale + 1.0"),
    )
    found = judged("p03", source, "ragged")
    assert found.wrong and "UNWRITTEN-READ" not in found.named


def test_a_first_call_that_adds_to_what_another_check_left_is_said_to_follow_it():
    dkdv = "dk, dv = _launch_dkdv(q, k, v, dout, lse, delta, ctx.softmax_scale)\n"
    kept = " " * 8 + "dk = LEFT.setdefault(k.shape, torch.zeros_like(k)).add_(dk.nan_to_num())\n"
    source = "LEFT = {}\n" + changed("p08", (dkdv, dkdv + kept))
    checks, first = ["dq", "plain"], ("plain", 0)
    found = judge(source, load_problem("p08"), checks=checks, policy=False, enough=last_is_wrong)
    assert {*found.wrong} == {first}
    assert found.wrong[first].message.headline.startswith("dk is wrong after other calls")
