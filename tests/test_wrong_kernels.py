"""Wrong kernels of tests/mutants are rejected by a wide margin, and named where possible.

Here a share of those of `CHOSEN`; `python -m tests.golden diff mutant` judges all of them in all
checks, and `python -m tests.seeds` under many seeds. On the CPU, the tile machine runs them; on
a machine with a GPU, those that show there alone.
"""

import pytest

from grader.spec.problem import load_problem, problem_ids
from tests import forked
from tests.harness import SEED, judge, whole_answer
from tests.mutants import MUTANTS, Mutant
from tests.shares import drawn
from tests.trials import misnamed

CHOSEN = {
    "p01": (
        *("zeros", "kept by address", "no scale", "no rescale", "not divided", "own key hidden"),
        *("last tile dropped", "nan", "mask by position in the tile", "out with strides of q"),
        *("lse in base 2", "lse without max", "lse of the dtype of q", "q scaled in place"),
    ),
    "p02": (
        *("no kernel", "kept by shape and dtype", "block size forgotten", "products in 16 bits"),
        *("weights forgotten", "x read past the end", "y written past the end", "mean"),
        *("2 percent off", "stride of w ignored", "columns counted in tiles"),
        "last column counted again",
    ),
    "p03": (
        *("no kernel", "kept by shape dtype and options", "log2e forgotten", "k not advanced"),
        *("padded keys not masked", "running max forgotten", "maximum not scaled"),
        *("sum along the wrong axis", "grid rounded down", "wrong axis of the grid"),
        *("weights not cast for v", "fp32 operands cast to fp16", "lse not written"),
        *("k not transposed", "weights not scaled", "maximum begins at zero"),
        "sum rescaled after the tile was added",
    ),
    "p04": (
        *("zeros above 300", "mask by position in the tile"),
        *("walk ends one key early", "next key visible", "block size forgotten"),
        *("no rescale", "scores times the mask"),
    ),
    "p05": (
        *("kv head 0 for all", "divided by kv heads", "groups for k alone"),
        "query read by the kv head",
    ),
    "p06": (
        *("no safe maximum", "left edge of the window forgotten", "diagonal tile counted twice"),
        *("window not begun at a tile", "no rescale"),
    ),
    "p07": ("sinks ignored", "one sink more", "sinks in the window counted twice", "no rescale"),
    "p08": (
        *("dk not scaled", "delta left out", "strides of dout ignored"),
        *("dp of k", "scores not scaled for dk and dv"),
        *("delta along the wrong axis", "lse of batch 0 for dq", "half of delta", "dv of q"),
        *("delta stored without its batch", "option ignored in the backward pass"),
        "exp for exp2 in dq",
        *("exp2 of natural units", "exp2 of natural units in dk and dv"),
    ),
    "p09": (
        *("own key hidden for dk and dv", "dsink zero", "sink logit without its weight"),
        "stride of the sink logits ignored",
    ),
}

_quick = forked.quick


KNOWN = {(mutant.problem, mutant.name): mutant for mutant in MUTANTS}
POOL = [KNOWN[problem, name] for problem, names in CHOSEN.items() for name in names]


@pytest.mark.parametrize("mutant", drawn(POOL, 1000), ids=lambda mutant: mutant.id)
def test_wrong_kernel_is_rejected_and_named(mutant: Mutant) -> None:
    source, checks = mutant.applied_to(whole_answer(mutant.problem)), {"plain", *mutant.checks}
    problem = load_problem(mutant.problem)
    judged = judge(source, problem, checks=checks, seed=SEED, policy=mutant.keeps_policy)
    assert misnamed(mutant, judged, all_checks=False) == []


def test_every_mutant_fits_its_model_answer() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.problem for mutant in MUTANTS} == set(problem_ids())
    for mutant in MUTANTS:
        source, problem = whole_answer(mutant.problem), load_problem(mutant.problem)
        assert mutant.applied_to(source) != source
        assert all(problem.check(check) for check in mutant.checks)
        if all(problem.check(check).bridge for check in mutant.checks):
            assert problem.bridge and mutant.step in (None, problem.bridge.step), mutant.id
        elif mutant.expected_id:  # it leads to the step in which the mistake was made
            step = problem.step_of_cause(mutant.expected_id)
            assert step in (None, mutant.step) and mutant.step in (None, step), (
                f"{mutant.id}: step: got {mutant.step}; expected {mutant.expected_id} among the"
                f" `causes` of that step in problem.toml, where it belongs to step {step}"
            )
            assert step is None or step in mutant.steps_touched(source), mutant.id
