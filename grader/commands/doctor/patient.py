"""A machine as `doctor` sees it, and a line about it."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

from grader.commands.doctor.machine import Machine

OK, WARNING, ERROR = "ok", "warning", "error"
GIB = 2**30
REDO = "make clean && make setup"
NEEDED = ("torch", "triton", "numpy", "pydantic", "pytest", "pytest-json-report", "rich")


@dataclasses.dataclass(frozen=True)
class Line:
    """One subject: `level` is ok, warning or error; `remedy` the command or step that mends it."""

    name: str
    level: str
    found: str
    remedy: str = ""


@dataclasses.dataclass
class Patient:
    """A machine and what torch and Triton said, asked once."""

    machine: Machine

    @functools.cached_property
    def imports(self) -> dict[str, Any]:
        """See `Machine.imports`."""
        return self.machine.imports()

    @property
    def missing(self) -> list[str]:
        """Packages that are needed and not installed."""
        return [name for name in NEEDED if self.machine.installed(name) is None]

    @property
    def has_gpu(self) -> bool:
        """Whether a driver has made the devices of an NVIDIA GPU."""
        return any(map(self.machine.exists, ("/dev/nvidiactl", "/dev/dxg")))

    @property
    def linux(self) -> str:
        """What the kernel says of itself."""
        return self.machine.read("/proc/version") or ""

    @property
    def in_wsl(self) -> bool:
        """Whether this is the Windows Subsystem for Linux."""
        return "microsoft" in self.linux.lower()


def version(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, match[0].split("."))) if match else ()
