"""Counts the kernels that a worker launches on a GPU."""

from __future__ import annotations

from typing import Any

from grader.kernel.lines import kernel_line


class LaunchCounter:
    """Counts the launches of Triton kernels; while `idle` it runs none of them.

    `lines` are the `def` lines of these kernels, 0 for one outside the file at `path`.
    """

    def __init__(self, path: str) -> None:
        self.count = 0
        self.lines: set[int] = set()
        self.idle = False
        self.path = path

    def install(self) -> None:
        """Hook Triton's launches."""
        _hook(self, counts_all=True)


def skip_while_idle(launches: Any) -> None:
    """Count launches and lines in `launches` while it is `idle`, and translate no kernel."""
    _hook(launches, counts_all=False)


def _hook(launches: Any, *, counts_all: bool) -> None:
    from triton.runtime import jit

    launch = jit.JITFunction.run

    def run(this: Any, *args: Any, **kwargs: Any) -> Any:
        skips = launches.idle and not kwargs.get("warmup")
        if skips or counts_all:
            launches.count += 1
            launches.lines.add(kernel_line(this, launches.path))
        return None if skips else launch(this, *args, **kwargs)

    jit.JITFunction.run = run
