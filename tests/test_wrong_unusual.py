"""Mistakes in kernels that do not look like the model answer: each is named, or not named wrongly.

A right answer of tests/unusual with one mistake put into it. What the judge says of it must be what
was planted, whatever the kernel looks like.
"""

from __future__ import annotations

import dataclasses

import pytest

from grader.spec.findings import Finding
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from tests.forked import forked_workers
from tests.harness import judge, whole_answer
from tests.unusual import ANSWERS


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A right answer by its id, the mistake as edits, and the cause that is named in `checks`."""

    answer: str
    name: str
    edits: tuple[tuple[str, str], ...]
    cause: str
    checks: tuple[str, ...]

    @property
    def id(self) -> str:
        """Name of the test's case."""
        return f"{self.answer}-{self.name.replace(' ', '_')}"

    def source(self) -> str:
        """Return the wrong answer.

        Raises:
            ValueError: the right answer has changed, so that an edit no longer fits.
        """
        answer = next(a for a in ANSWERS if a.id == self.answer)
        source = answer.applied_to(whole_answer(answer.problem))
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"{self.id}: the right answer has changed: {old!r}")
            source = source.replace(old, new)
        return source


_OF_ONE_HEAD = """
        for start in range(lo // BM * BM, N, BM):
            q = _tile(Q + b * sq[0] + h * sq[1], start, sq[2], N, BM, D)
            do = _tile(DO + b * sd[0] + h * sd[1], start, sd[2], N, BM, D)
            stats"""
_ADD_DK = 'DK + place, tl.dot(tl.trans(ds), q, input_precision="ieee"), mask=ok)'
_P_OF_DQ = "p = tl.where(n[None, :] <= m[:, None], tl.exp2(s - lse[:, None]), 0.0)"
WRONG = (
    Wrong(
        "p02-clamped_while",
        "last column counted again",
        (("tl.where((c + col < cols)[None, :], xs * ws[None, :], 0.0)", "xs * ws[None, :]"),),
        "LAST-COLUMN-COUNTED-AGAIN",
        ("ragged_cols",),
    ),
    Wrong(
        "p02-clamped_while",
        "summed in 16 bits",
        (("sxn).to(tl.float32)", "sxn)"), ("c_in * sw).to(tl.float32)", "c_in * sw)")),
        "HALF-ACCUMULATED",
        ("products", "long_rows"),
    ),
    Wrong(
        "p02-by_dot",
        "stride of w ignored",
        (("w + c[:, None] * sw", "w + c[:, None]"),),
        "WRONG-STRIDE",
        ("w_stride",),
    ),
    # A last tile with one key, loaded transposed: its rows are columns of the tile all the same.
    Wrong(
        "p03-lazy_maximum",
        "one padded key counted",
        (("tl.where(n < N, 0.0", "tl.where(n <= N, 0.0"),),
        "PADDING-TAKEN",
        ("ragged", "ragged_unequal"),
    ),
    Wrong(
        "p03-clamped_indices",
        "last key counted again",
        (("tl.where(n[None, :] < N, tl.exp(s - now[:, None]), 0.0)", "tl.exp(s - now[:, None])"),),
        "FOLDED-IN-TWICE",
        ("ragged",),
    ),
    Wrong(
        "p03-clamped_indices",
        "maximum not carried",
        (("        top = now\n    o = tl.div_rn", "    o = tl.div_rn"),),
        "RUNNING-MAX-FORGOTTEN",
        ("plain", "ragged", "lse"),
    ),
    Wrong(
        "p03-clamped_indices",
        "batch missing for k",
        (("K += bh // H * skb +", "K += "),),
        "WRONG-BATCH",
        ("batch_heads",),
    ),
    Wrong(
        "p03-padded_head_dim",
        "sum rescaled after the tile was added",
        (("den = den * fade + tl.sum(p, 1)", "den = (den + tl.sum(p, 1)) * fade"),),
        "RESCALE-SUM-LATE",
        ("plain", "ragged"),
    ),
    Wrong(
        "p04-two_tiles_per_program",
        "own key hidden",
        (("m[:, None] >= n[None, :]", "m[:, None] > n[None, :]"),),
        "DIAGONAL-EXCLUDED",
        ("plain",),
    ),
    Wrong(
        "p04-halves_of_head_dim",
        "second half of q with the first of k",
        (("K + n[:, None] * skn + HALF + d", "K + n[:, None] * skn + d"),),
        "COLUMNS-APART",
        ("plain",),
    ),
    Wrong(
        "p04-halves_of_head_dim",
        "first half of v twice",
        (("V + n[:, None] * svn + HALF + d", "V + n[:, None] * svn + d"),),
        "COLUMNS-APART",
        ("plain",),
    ),
    Wrong(
        "p04-halves_of_head_dim",
        "half of the scores replaced",
        (("tl.trans(k1), s, input", "tl.trans(k1), input"),),
        "PRODUCT-LEFT-OUT",
        ("plain",),
    ),
    Wrong(
        "p05-launch_per_head",
        "heads interleaved",
        (("j * k.shape[1] // h", "j % k.shape[1]"),),
        "HEADS-INTERLEAVED",
        ("groups",),
    ),
    Wrong(
        "p06-unaligned_start",
        "begins one key late",
        (("tl.maximum(lo - W + 1, 0)", "tl.maximum(lo - W + 2, 0)"),),
        "KEYS-NEVER-VISITED",
        ("unaligned_window",),
    ),
    Wrong(
        "p07-two_states",
        "accumulator of the sinks left out",
        (("(acc * a[:, None] + sink_acc * c[:, None])", "(acc * a[:, None])"),),
        "PRODUCT-LEFT-OUT",
        ("sinks",),
    ),
    Wrong(
        "p07-gathered_keys",
        "sinks of the window in the list twice",
        (("before = tl.minimum(S, first)", "before = S"),),
        "SINKS-COUNTED-TWICE",
        ("overlap",),
    ),
    Wrong(
        "p08-heads_apart",
        "p not transposed for dv",
        (("tl.dot(tl.trans(p).to(do.dtype), do,", "tl.dot(p.to(do.dtype), do,"),),
        "WEIGHTS-NOT-TRANSPOSED",
        ("dv", "plain"),
    ),
    Wrong(
        "p08-heads_apart",
        "heads summed across groups",
        (
            ("group = (k.shape[1], h // k.shape[1])", "group = (h // k.shape[1], k.shape[1])"),
            ("unflatten(1, group).sum(2)", "unflatten(1, group).sum(1)"),
        ),
        "GROUP-SUM-INTERLEAVED",
        ("plain", "groups"),
    ),
    Wrong(
        "p08-heads_apart",
        "exp of what is in base 2",
        ((_P_OF_DQ, _P_OF_DQ.replace("exp2", "exp")),),
        "DQ-EXP-WITH-LOG2E",
        ("dq", "plain"),
    ),
    # dk is right: that one head is missing in both would be wrong.
    Wrong(
        "p08-kernel_per_gradient",
        "dv of the first head",
        (("hk * G + G):" + _OF_ONE_HEAD, "hk * G + 1):" + _OF_ONE_HEAD),),
        "GROUP-FIRST-HEAD-DV",
        ("plain", "groups"),
    ),
    Wrong(
        "p08-kernel_per_gradient",
        "grid of dq rounded down",
        (("_dq[(triton.cdiv(n, 32), h, b)](", "_dq[(max(n // 32, 1), h, b)]("),),
        "LAST-ROWS-LEFT-OUT",
        ("ragged",),
    ),
    Wrong(
        "p08-kernel_per_gradient",
        "grid of dv rounded down",
        (("_dv[(triton.cdiv(n, 32), hk, b)](", "_dv[(max(n // 32, 1), hk, b)]("),),
        "LAST-ROWS-LEFT-OUT",
        ("ragged",),
    ),
    Wrong(
        "p09-one_backward_kernel",
        "dk stored instead of added",
        (("tl.atomic_add(" + _ADD_DK, "tl.store(" + _ADD_DK),),
        "LAST-STORE-WINS",
        ("plain",),
    ),
)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.id)
def test_what_was_planted_is_named_and_nothing_else(wrong: Wrong) -> None:
    judged = judge(
        wrong.source(),
        load_problem(wrong.answer[:3]),
        checks=wrong.checks,
        enough=_last_is_wrong,
    )
    assert judged.wrong and judged.named == {wrong.cause}


def _last_is_wrong(found: dict[tuple[str, int], Finding]) -> bool:
    """The first wrong case of a check tells: leave out those behind it."""
    return list(found.values())[-1].verdict is not Verdict.PASS


def test_keys_of_the_first_sequence_are_no_heads_that_a_gradient_leaves_out() -> None:
    right = next(a for a in ANSWERS if a.id == "p05-one_row_of_tokens")
    source = right.applied_to(whole_answer("p05"))
    wrong = source.replace("k_ptr + (row[None, :] *", "k_ptr + (kpos[None, :] *")
    judged = judge(wrong, load_problem("p05"), checks=("batch_heads",), enough=_last_is_wrong)
    assert wrong != source and judged.wrong and "HEADS-NEVER-TAKEN" not in judged.named


def test_a_clamped_row_is_no_mistake_where_its_weight_is_zero() -> None:
    right = next(a for a in ANSWERS if a.id == "p03-clamped_indices")
    source = right.applied_to(whole_answer("p03")).replace("tl.log(den) + top", "tl.log(den)")
    judged = judge(source, load_problem("p03"), checks=("ragged", "lse"))
    assert judged.named == {"LSE-WITHOUT-MAX"}
