"""Wrong kernels, one module for each problem; tests/test_wrong_kernels.py judges them."""

from tests.mutants import p01, p02, p03, p04, p05, p06, p07, p08, p09
from tests.mutants.common import Mutant

_MODULES = (p01, p02, p03, p04, p05, p06, p07, p08, p09)
MUTANTS: tuple[Mutant, ...] = tuple(mutant for module in _MODULES for mutant in module.MUTANTS)

__all__ = ["MUTANTS", "Mutant"]
