"""Mistakes in p10, the root mean square of a row."""

from functools import partial

from tests.mutants.common import READ_OUTSIDE, Mutant

_MUTANT = partial(Mutant, "p10")

MUTANTS = (
    _MUTANT(
        "mean forgotten",
        ("plain",),
        (("tl.sum(acc, axis=1) / cols", "tl.sum(acc, axis=1)"),),
        "RMS-OF-SUM",
        step=1,
    ),
    _MUTANT(
        "root forgotten",
        ("plain",),
        (("tl.sqrt(tl.sum(acc, axis=1) / cols)", "tl.sum(acc, axis=1) / cols"),),
        "RMS-NOT-ROOTED",
        step=1,
    ),
    _MUTANT(
        "columns not masked",
        ("ragged_cols",),
        (("        col_mask = col_ids < cols\n", ""),),
        "MASK-TOO-WIDE",
        caught_as=READ_OUTSIDE,
        keeps=0.5,
    ),
)
