"""How a mistake agrees with a result: the same by what is shared and by all of it computed anew."""

from unittest import mock

import pytest
import torch

import reference
from grader.causes import fitting
from grader.causes.fitting import Fit, best_fit
from grader.causes.outputs import Outputs
from grader.checks.correctness import element_errors, expect
from grader.spec.cases import resolve
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import load_problem
from reference import variants, variants_backward
from tests.shares import drawn

PLAIN = {"seqlen": 50, "num_q_heads": 2}
GROUPED = {"batch": 2, "seqlen": 40, "num_q_heads": 4, "num_kv_heads": 2}
WINDOW = {"window_size": 20, "num_sink_tokens": 3}
# By problem: cases, and the mistakes that their results show.
CASES = [
    ("p01", "fp32", PLAIN | {"is_causal": True, "tile_k": 32}, ("RESCALE-MISSING",)),
    ("p03", "fp16", PLAIN | {"softmax_scale": 0.3}, ("SCALE-OPTION-IGNORED", "LSE-BASE-2")),
    ("p05", "fp32", GROUPED, ("HEADS-INTERLEAVED", "LAST-KEY-TILE-DROPPED")),
    ("p07", "fp16", GROUPED | WINDOW, ("SINKS-IGNORED", "WINDOW-ONE-LARGER")),
    ("p08", "fp32", GROUPED, ("GROUP-MEAN", "DV-OF-DS")),
    ("p09", "fp16", PLAIN | WINDOW, ("BACKWARD-DIAGONAL-EXCLUDED",)),
    ("p09", "fp32", GROUPED | WINDOW | {"sink_logits": True}, ("DSINK-MEAN", "SINK-LOGIT-SCALED")),
]
_COMPARE = fitting._compare
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def setup_module():
    torch.set_num_threads(1)


class Made:
    """A case of a problem, and results of it."""

    def __init__(self, problem_id, given, dtype):
        self.problem, self.dtype = load_problem(problem_id), DTYPES[dtype]
        self.case = resolve(given, dtype, "")
        self.inputs = make_inputs(self.problem, self.case, case_seed("5eed", self.case))
        names = self.problem.returns + self.problem.gradients
        self.expected = expect(self.problem, self.case, self.inputs, names)
        self.mistakes = reference.mistakes_for(problem_id)

    def predicted(self, mistake):
        return mistake.predict(dict(self.inputs.all), self.case.kwargs)

    def result(self, changes):
        """The right result with some outputs replaced, as a submission returns it."""
        truth = self.expected.truth
        got = truth | {name: value for name, value in changes.items() if name in truth}
        got = {n: torch.where(t.isnan(), truth[n], t) for n, t in got.items()}
        kept = {n: t.to(torch.float32 if n == "lse" else self.dtype) for n, t in got.items()}
        return Outputs(self.problem.id, self.case, self.inputs, kept, self.expected)

    def results(self, ids):
        """Results by what shows in them: a mistake, and the last mistake in half of the rows."""
        for id in ids:
            mistake = next(m for m in self.mistakes if m.id == id and m.tile in (None, 32))
            made = {name: value.clone() for name, value in self.predicted(mistake).items()}
            yield id, self.result(made)
        made = {n: t for n, t in made.items() if n in self.expected.truth and t.dim() > 1}
        for name, value in made.items():
            value[..., ::2] = self.expected.truth[name][..., ::2]
        yield "half", self.result(made)


def wholly(wrong, result):
    """The fit when every output is compared, each by itself."""

    def compared(close):
        names = [name for name in result.expected.truth if name in wrong]
        return [fitting._compare(name, wrong[name].clone(), result, close) for name in names]

    def share(close):
        parts = compared(close)
        changed = sum(part.changed for part in parts)
        if not changed:
            return None
        held = all(part.consistent for part in parts)
        return sum(part.followed for part in parts) / changed if held else 0.0

    if result.tight is not None and share(result.tight) == 1.0:
        return Fit.EXACTLY
    found = share(result.expected)
    if found is None:
        parts = compared(result.expected)
        infinite = all(p.consistent for p in parts) and any(p.is_infinite for p in parts)
        return Fit.INFINITE if infinite else Fit.SILENT
    if found == 1.0:
        return Fit.EXACTLY if result.expected.precision == "fp32" else Fit.WHOLE
    return Fit.PARTLY if found >= 0.75 else Fit.CONTRADICTED


def anew(self, compute, **changes):
    return compute(self, **{name: c for name, c in changes.items() if c is not None})


@pytest.mark.parametrize(("problem_id", "dtype", "given", "ids"), drawn(CASES, 3))
def test_what_is_shared_changes_no_fit(problem_id, dtype, given, ids):
    made = Made(problem_id, given, dtype)
    results = dict(made.results(ids))
    fast = {
        (what, mistake.id, mistake.tile): best_fit([mistake], result)[0]
        for what, result in results.items()
        for mistake in made.mistakes
    }
    whole = {}
    with (
        mock.patch.object(variants.Case, "once", anew),
        mock.patch.object(variants, "unless", lambda given, own: given),
        mock.patch.object(variants_backward, "unless", lambda given, own: given),
    ):
        variants._case.cache_clear()
        for mistake in made.mistakes:
            wrong = made.predicted(mistake)
            for what, result in results.items():
                fit = Fit.SILENT if wrong is None else wholly(wrong, result)
                whole[what, mistake.id, mistake.tile] = fit
    variants._case.cache_clear()
    assert fast == whole
    assert {Fit.CONTRADICTED, Fit.SILENT} < set(fast.values())
    for id in ids:
        assert max(fit for (what, other, _), fit in fast.items() if (what, other) == (id, id)) > 1


def test_most_mistakes_of_the_backward_pass_return_the_very_tensors_that_are_right():
    made = Made("p09", PLAIN | {"window_size": 1024}, "fp32")
    right = reference.shared_answer("p09", dict(made.inputs.all), made.case.kwargs)
    found = [made.predicted(m) for m in made.mistakes]
    shared = [f for f in found if f and all(value is right[name] for name, value in f.items())]
    assert len(shared) >= 50
    assert reference.shared_answer("p02", {"x": torch.ones(2, 2)}, {}) == {}


def test_a_tensor_is_compared_once_for_as_long_as_it_lives():
    made = Made("p08", PLAIN, "fp32")
    result = made.result({})
    dq = made.expected.truth["dq"] + 1.0
    compared = []

    def compare(name, wrong, result, close):
        compared.append((name, close.precision))
        return _COMPARE(name, wrong, result, close)

    with mock.patch.object(fitting, "_compare", compare):
        for _ in range(2):
            assert not fitting._compared("dq", dq, result, result.expected).consistent
            fitting._compared("dq", dq, result, result.tight)
            fitting._compared("dk", dq, result, result.expected)
        assert compared == [("dq", "tf32"), ("dq", "fp32"), ("dk", "tf32")]
        fitting._compared("dq", dq.clone(), result, result.expected)
    assert len(compared) == 4
    assert len(result.compared) == 1
    del dq
    assert len(result.compared) == 0


@pytest.mark.parametrize("changes", [{"dq": 0.0}, {}])
def test_what_was_expected_is_asked_for_a_mistake_that_changes_something(changes):
    made = Made("p08", PLAIN, "fp32")
    mistake = next(m for m in made.mistakes if m.id == ("DQ-ZERO" if changes else "GROUP-MEAN"))
    expected = mock.Mock(return_value=made.expected)
    moved = fitting.moves("p08", made.case, made.inputs, expected, mistake)
    assert moved is bool(changes)
    assert expected.called is bool(changes)


def test_a_change_reaches_every_output_that_it_enters():
    made = Made("p09", GROUPED | WINDOW | {"sink_logits": True, "softmax_scale": 0.3}, "fp32")
    inputs, options = dict(made.inputs.all), made.case.kwargs
    ones = torch.ones_like(inputs["dout"])
    changed = {
        "DOUT-IGNORED": (inputs | {"dout": ones}, options),
        "SINK-LOGIT-IGNORED": ({n: t for n, t in inputs.items() if n != "sink_logits"}, options),
        "SCALE-OPTION-IGNORED": (inputs, {n: o for n, o in options.items() if "scale" not in n}),
    }
    for id, given in changed.items():
        wrong = made.predicted(next(m for m in made.mistakes if m.id == id))
        right = reference.shared_answer("p09", *given)
        for name in wrong:
            torch.testing.assert_close(wrong[name], right[name])
            assert not torch.allclose(wrong[name], made.expected.truth[name]) or name == "out"


def test_a_result_that_stops_short_of_a_mistake_does_not_show_it():
    made = Made("p08", {"seqlen": 50, "num_q_heads": 2}, "fp32")
    (mistake,) = (m for m in made.mistakes if m.id == "DELTA-MISSING")
    wrong = {name: value.double() for name, value in made.predicted(mistake).items()}
    truth = made.expected.truth
    by_head_dim = {n: v + (truth[n] - v) / 64 for n, v in wrong.items() if n in truth}
    for changes, shown in ((wrong, True), (by_head_dim, False)):
        fit, _ = best_fit([mistake], made.result(changes))
        assert (fit >= Fit.WHOLE) is shown


@pytest.mark.parametrize(("size", "fit"), [(1e9, Fit.INFINITE), (10.0, Fit.CONTRADICTED)])
def test_numbers_that_a_mistake_makes_far_too_large_do_not_contradict_it(size, fit):
    made = Made("p08", {"seqlen": 50, "num_q_heads": 2}, "fp32")
    truth = made.expected.truth["dk"]
    predicted = {"dk": size * (1.0 + truth.abs())}
    off_by_a_half = {"dk": 1.5 * predicted["dk"]}
    assert fitting._fit(predicted, made.result(predicted)) is Fit.EXACTLY
    assert fitting._fit(predicted, made.result(off_by_a_half)) is fit


def test_a_number_where_a_mistake_makes_infinity_contradicts_it():
    made = Made("p04", {"seqlen": 50}, "fp32")
    lse = torch.full_like(made.expected.truth["lse"], -float("inf"))
    assert fitting._fit({"lse": lse}, made.result({"lse": lse})) is Fit.INFINITE
    others = made.result({"lse": torch.full_like(lse, 3.0)})
    assert fitting._fit({"lse": lse}, others) is Fit.CONTRADICTED


def test_what_a_mistake_hardly_changes_shows_it_where_all_that_is_wrong_is_next_to_it():
    made = Made("p06", {"seqlen": 256, "window_size": 128}, "fp32")
    (mistake,) = (m for m in made.mistakes if m.id == "WINDOW-ONE-LARGER")
    expected, name = made.expected, "lse"
    truth, wrong = expected.truth[name], made.predicted(mistake)[name].double()
    little = element_errors(name, wrong, expected) < 3.0  # nowhere plainly wrong
    near, apart = torch.where(little, wrong, truth), 2 * torch.where(little, wrong, truth) - truth
    predicted = {name: near}
    assert 0 < int((element_errors(name, near, expected) > 1.0).sum()) < near.numel()
    assert fitting._fit(predicted, made.result({name: near})) is Fit.PARTLY
    assert fitting._fit(predicted, made.result({name: apart})) < Fit.PARTLY
    # Of an output that it says nothing of, and that is wrong too, it explains nothing.
    out = expected.truth["out"] + 9.0
    assert fitting._fit(predicted, made.result({name: near, "out": out})) < Fit.PARTLY


def test_what_16_bits_cannot_hold_is_infinite_in_a_result_that_follows_a_mistake():
    made = Made("p03", PLAIN, "fp16")
    factor = torch.full((made.case.head_dim,), 3.0, dtype=torch.float64)
    factor[0] = 1e9
    grown = made.expected.truth["out"] * factor
    result = made.result({"out": grown})
    assert result.got["out"].isinf().any() and not result.got["out"].isnan().any()
    mistake = reference.Mistake("GROWN", ("p03",), lambda inputs, options: {"out": grown})
    assert best_fit([mistake], result)[0] is Fit.WHOLE
    finite = result.got | {"out": result.got["out"].clamp(-3e4, 3e4)}
    other = Outputs("p03", made.case, made.inputs, finite, made.expected)
    assert best_fit([mistake], other)[0] is Fit.CONTRADICTED
