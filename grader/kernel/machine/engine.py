"""Runs the launches of this process on the machine: what a worker installs.

Launches of several threads run one behind the other, as on one stream. What the machine computes
with PyTorch is not the submission's: no mode of PyTorch's sees it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from grader.kernel.machine import capture
from grader.kernel.machine.parse import parse
from grader.kernel.machine.program import Program
from grader.kernel.machine.steps import Limits


class Engine:
    """Translates each kernel once, and runs its launches."""

    def __init__(
        self,
        *,
        tf32: bool = False,
        observe: Callable[[Any], None] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._tf32 = tf32
        self._observe = observe
        self._limits = limits
        self._programs: weakref.WeakKeyDictionary[capture.Kernel, Program] = (
            weakref.WeakKeyDictionary()
        )
        self._one_at_a_time = threading.RLock()

    def install(self) -> None:
        """Take all launches of this process from now on."""
        capture.install(self.launch)

    def launch(self, launch: capture.Launch) -> None:
        """Run one launch."""
        with (
            self._one_at_a_time,
            torch.no_grad(),
            torch._C.DisableTorchFunction(),
            _disable_current_modes(),
        ):
            program = self.program(launch.kernel)
            program.launch(
                launch.grid, launch.arguments, observe=self._observe, limits=self._limits
            )

    def program(self, kernel: capture.Kernel) -> Program:
        """Return what a kernel is translated into."""
        found = self._programs.get(kernel)
        if found is None:
            overflow = self._observe is not None
            found = Program(parse(kernel.text), tf32=self._tf32, overflow=overflow)
            self._programs[kernel] = found
        return found
