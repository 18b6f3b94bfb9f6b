"""Wrong kernels, one module for each problem; tests/test_wrong_kernels.py judges them."""

import importlib

from grader.spec.problem import problem_ids
from tests.mutants.common import Mutant

_MODULES = [importlib.import_module(f"tests.mutants.{id}") for id in problem_ids()]
MUTANTS: tuple[Mutant, ...] = tuple(mutant for module in _MODULES for mutant in module.MUTANTS)

__all__ = ["MUTANTS", "Mutant"]
