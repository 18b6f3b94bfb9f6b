"""Looks at a machine, one subject after another, and says what to type where something is amiss.

The standard library alone, as in `grader.commands.doctor.machine`: it must run where nothing is
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grader.commands.doctor import hardware, software, surroundings
from grader.commands.doctor.machine import Machine
from grader.commands.doctor.patient import WARNING, Line, Patient

CHECKS: dict[str, Callable[[Patient], tuple[str, ...]]] = {
    "python": software.python,
    "system": surroundings.system,
    "set-up": software.set_up,
    "packages": software.packages,
    "torch": software.torch,
    "triton": software.triton,
    "gpu": hardware.gpu,
    "driver": hardware.driver,
    "compiler": surroundings.compiler,
    "memory": hardware.memory,
    "disk": hardware.disk,
    "folders": surroundings.folders,
    "variables": surroundings.variables,
    "terminal": surroundings.terminal,
    "bubblewrap": surroundings.bubblewrap,
    "clock": hardware.clock,
}


def examine(machine: Machine) -> Iterable[Line]:
    """Return one line per subject; whatever goes wrong with one of them is its line."""
    patient = Patient(machine)
    for name, check in CHECKS.items():
        try:
            level, found, *remedy = check(patient)
        except Exception as error:
            level, found = WARNING, f"could not be looked at: {type(error).__name__}: {error}"
            remedy = []
        yield Line(name, level, found, *remedy)
