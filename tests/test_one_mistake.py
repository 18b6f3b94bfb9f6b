"""One mistake is one error, with its name, its line and its step, wherever it shows."""

import re

import pytest

from grader.causes.rules.sighting import Sighting
from grader.spec.problem import load_problem
from tests.casebooks import casebooks
from tests.harness import edited, judge, model_answer
from tests.tracing import trace
from tests.trials import right_answers

PACKED = (
    "k_ptr += batch * k_strides[0] + kv_head * k_strides[1]\n"
    "    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]"
)
FLAT = (
    "flat = batch * (num_q_heads // group_size) + kv_head\n"
    "    k_ptr += flat * k_strides[1]\n"
    "    v_ptr += flat * v_strides[1]"
)
SINK_LAST = ("        o = o * a[:, None]\n        mx = new\n    z", "        mx = new\n    z")


def the_cause(problem, source, *checks):
    """Judge these checks; return the one cause, and its line of the source."""
    (cause,) = judge(source, load_problem(problem), checks=checks).findings.causes
    return cause, source.splitlines()[cause.line - 1].strip() if cause.line else ""


def test_a_case_that_cannot_be_watched_has_the_cause_that_others_show():
    source = edited(model_answer("p05"), (PACKED, FLAT))
    cause, _ = the_cause("p05", source, "layouts", "far_strides")
    assert cause.diagnosis.id == "P05-READ-OUTSIDE"
    assert {check for check, _ in cause.cases} == {"layouts", "far_strides"}


def test_a_16_bit_case_to_which_nothing_can_be_fitted_is_not_against_a_fit():
    source = edited(right_answers("unusual")["p09-logit_at_the_end"][1], SINK_LAST)
    cause, _ = the_cause("p09", source, "sink_logits", "forward_sink_logits", "half_dsink")
    assert cause.diagnosis.id == "P09-OTHER-SINK-LOGIT"
    assert "half_dsink" in {check for check, _ in cause.cases}


@pytest.mark.parametrize(("rows", "short"), [("::", "half"), ("::", "bfloat16"), ("::4", "half")])
def test_an_lse_that_holds_numbers_of_16_bits_is_rounded(rows, short):
    lse = "row_lse = running_max + running_sum.log()"
    rounded = f"row_lse[:, {rows}] = row_lse[:, {rows}].{short}()"
    source = edited(model_answer("p01"), (lse, f"{lse}; {rounded}"))
    cause, _ = the_cause("p01", source, "lse", "half_lse", "half")
    assert (cause.diagnosis.id, cause.step) == ("P01-ROUNDED-TO-16-BITS", 4)
    assert {check for check, _ in cause.cases} == {"half_lse"}


PRODUCT = "scores = tile_matmul(q_tile, k_tile.transpose(1, 2), softmax_scale)"
AGAIN = "q_tile = q_tile * softmax_scale\n            scores = tile_matmul(q_tile, k_tile.mT)"
AGAIN_IN_KERNEL = (
    ("scores = tl.dot(q,", "q = (q * scale_log2).to(k.dtype)\n        scores = tl.dot(q,"),
    ("tl.max(scores, 1) * scale_log2", "tl.max(scores, 1)"),
    ("scores * scale_log2 -", "scores -"),
)


@pytest.mark.parametrize(
    ("problem", "edits", "step", "factor"),
    [
        ("p01", [(PRODUCT, AGAIN)], 1, "0.125"),
        ("p03", AGAIN_IN_KERNEL, 4, "0.1803"),
    ],
)
def test_scores_of_a_later_tile_with_another_factor(problem, edits, step, factor):
    cause, line = the_cause(problem, edited(model_answer(problem), *edits), "plain")
    assert (cause.diagnosis.id, cause.step) == (f"{problem.upper()}-STATE-PARTS", step)
    said = f"the scores of tile 2 have {factor} times the factor of those of tile 1"
    assert said in cause.diagnosis.note
    assert line.startswith("scores = ")


def test_weights_that_are_relative_to_another_number_than_the_maximum():
    safe = 'safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)  # (BLOCK_M,)'
    wrong = "safe_max = tl.maximum(new_max, 0.0)"
    calls = (("safe_max = _safe", "safe = _safe"), ("running_max, safe_max,", "running_max, safe,"))
    cause, line = the_cause("p06", edited(model_answer("p06"), (safe, wrong), *calls), "lse")
    assert (cause.diagnosis.id, cause.step, line) == ("P06-STATE-PARTS", 2, wrong)


def test_a_state_that_is_the_log_sum_exp_is_not_called_a_wrong_sum():
    answer = right_answers("unusual")["p03-lse_is_the_state"][1]
    answer, share = re.sub(r"\blse\b", "total", answer), "share = tl.exp2(total - new)"
    source = edited(answer, (share, share.replace("= tl", "= 0.9 * tl")))
    record = trace("p03", source, "plain:2")
    assert record.result == "wrong"
    assert record.parting is None or "total" not in record.parting.names


def test_pairs_that_another_launch_counts_are_not_called_masked():
    answer = right_answers("unusual")["p07-kernel_for_the_sinks"][1]
    join = "tl.exp(b - total)[:, None]"
    source = edited(answer, (join, join.replace("exp", "exp2")))
    found = judge(source, load_problem("p07"), checks=["sinks"])
    (seen,) = [f.message.trace for f in found.wrong.values() if f.message.trace]
    assert not any("masked" in fact for tile in seen.rounds for fact in tile.facts)
    assert "look at the other programs" in seen.conclusion


@pytest.mark.parametrize("check", ["plain", "half"])
def test_what_atomics_add_to_begins_as_zeros(check):
    source = right_answers("unusual")["p02-column_atomics"][1]
    cause, line = the_cause("p02", edited(source, ("torch.zeros(rows", "torch.empty(rows")), check)
    assert cause.diagnosis.id == "P02-UNWRITTEN-READ"
    assert line.startswith("tl.atomic_add(")


@pytest.mark.parametrize(
    "line",
    [
        "scores * scale_log2 - new_max[:, None]",
        "acc * rescale[:, None]",
        "acc / running_sum[:, None]",
    ],
)
def test_a_number_per_query_along_the_other_axis_of_a_square_tile(line):
    wrong = line.replace("[:, None]", "[None, :]")
    cause, at = the_cause("p03", edited(model_answer("p03"), (line, wrong)), "plain")
    assert cause.diagnosis.id == "P03-ALONG-ANOTHER-AXIS"
    assert wrong in at


def test_a_line_of_a_kernel_without_steps_has_the_lines_that_it_depends_on():
    exchanged = "h = tl.program_id(2).to(tl.int64)\n    b = tl.program_id(1).to(tl.int64)"
    due = "h = tl.program_id(1).to(tl.int64)\n    b = tl.program_id(2).to(tl.int64)"
    source = edited(right_answers("unusual")["p05-grid_of_three"][1], (due, exchanged))
    source = source.replace("# >>> step", "# step")
    cause, _ = the_cause("p05", source, "batch_heads")
    lines = source.splitlines()
    assert any("tl.program_id(2)" in lines[n - 1] for n in cause.fed_by)


def test_a_program_that_reads_what_another_of_its_launch_stores():
    store = "tl.store(y_ptr + row_ids,"
    read = f"y_tile += tl.where(tl.load(y_ptr) == 12345.0, 1.0, 0.0)\n    {store}"
    cause, line = the_cause("p02", edited(model_answer("p02"), (store, read)), "plain", "x_strides")
    assert cause.diagnosis.id == "P02-PROGRAMS-RACE" and line.startswith(store)  # the later one
    assert "read in another that is launched after it" in cause.diagnosis.help
    assert {check for check, _ in cause.cases} == {"plain", "x_strides"}


def test_pairs_that_the_loop_of_another_kernel_should_count_are_not_called_masked():
    end = "tl.minimum(begin + chunk_size, seqlen)"
    source = edited(model_answer("p09"), (end, end.replace("seqlen", "seqlen - window_size")))
    cause, line = the_cause("p09", source, "window_lengths", "sinks")
    assert (cause.diagnosis.id, cause.step) == ("P09-KEYS-NEVER-VISITED", 6)
    assert line.startswith("for ")
    assert {check for check, _ in cause.cases} == {"window_lengths", "sinks"}


@pytest.mark.parametrize(
    ("problem", "option", "old", "new", "numbers"),
    [
        ("p06", "window_size", "seqlen)", "64)", "is 64 in the kernel, and "),
        ("p09", "num_sink_tokens", "q.shape[2] - window_size)", "window_size)", "in the call"),
    ],
)
def test_a_mask_that_is_right_for_the_option_that_the_kernel_gets(
    problem, option, old, new, numbers
):
    limit = f"{option} = min({option}, "
    source = edited(model_answer(problem), (limit + old, limit + new))
    cause, line = the_cause(problem, source, "window_lengths")
    assert cause.diagnosis.id == f"{problem.upper()}-OTHER-WINDOW"
    assert option in cause.diagnosis.title and numbers in cause.diagnosis.note
    assert line.startswith(limit + new)


@pytest.mark.parametrize("shown", ["KEYS-NEVER-VISITED", "VISIBLE-KEYS-MASKED"])
def test_other_cases_say_which_of_two_loops_is_at_fault(monkeypatch, shown):
    found = casebooks(monkeypatch)()
    shows = {
        ("plain", 0): Sighting("VISIBLE-KEYS-MASKED", either=True),
        ("half", 0): Sighting("OTHER-PAIRS"),
        ("lse", 0): Sighting(shown),
    }
    for place, seen in shows.items():
        found.wrong(place, lambda truth: 1.5 + truth)
        found.book.add_seen(place, seen)
    assert found.named() == {shown: tuple(sorted(shows))}
