"""Compiles what a submission launches into Triton's cache, for a GPU that others will use.

Runs inside the worker. Triton binds and specialises the arguments as on that GPU, so that a launch
there finds its kernel; here nothing is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grader.kernel.compile import absent_gpu
from grader.kernel.compile.chips import Chip
from grader.kernel.machine import capture


class Filler:
    """Lets Triton compile and cache each kernel; `count` is the number of launches."""

    def __init__(self, chip: Chip) -> None:
        self.count = 0
        self.lines: set[int] = set()
        self.idle = False
        self._chip = chip

    def install(self) -> None:
        absent_gpu.install(self._chip, self._bench)
        capture.install(self._launch, self._compile)

    def watch(self, call: Callable[[], Any]) -> Exception | None:
        """Make a call; return the exception that ended it, None where none did."""
        try:
            call()
        except Exception as error:
            return error
        return None

    def _compile(self, source: Any, target: Any, options: dict[str, Any]) -> capture.Kernel:
        from triton.compiler import compiler

        compiler.compile(source, target=target, options=options)
        usage = capture.usage_of(options)
        return capture.Kernel(source.fn, source.name, "", source.signature, False, usage=usage)

    def _bench(self, kernel_call: Callable[[], Any], **_: Any) -> list[float]:
        """Compile a configuration, as the autotuner does with each before it times any."""
        kernel_call()
        return [0.0] * 3

    def _launch(self, launch: capture.Launch) -> None:
        self.count += 1
