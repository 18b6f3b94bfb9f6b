"""Finds out, without importing torch into the grader, what this machine can measure."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from grader.spec.grade_record import Environment

_DRIVER = Path("/proc/driver/nvidia/version")
OLDEST_TRITON, NEWEST_TRITON = Version("3.6"), Version("3.9")
_PROBE = """
import json
import torch
found = {"cuda_build": torch.version.cuda}
if torch.cuda.is_available():
    found["device"] = "cuda"
    found["device_name"] = torch.cuda.get_device_name()
    found["capability"] = list(torch.cuda.get_device_capability())
    properties = torch.cuda.get_device_properties(0)
    found["device_bytes"] = properties.total_memory
    found["device_uuid"] = str(properties.uuid)
    names = ("clock_rate", "memory_clock_rate", "memory_bus_width")
    rates = [getattr(properties, name, 0) or 0 for name in names]
    if all(rates):  # kHz, kHz and bits; a GPU without memory of its own has no such clock
        found["chip"] = {
            "multiprocessors": properties.multi_processor_count,
            "clock_mhz": rates[0] / 1000,
            "memory_clock_mhz": rates[1] / 1000,
            "memory_bus_bits": rates[2],
        }
print(json.dumps(found))
"""


class EnvironmentFault(Exception):
    """This machine cannot run the grader; the message says what is missing and what to do."""


class JudgeFault(Exception):
    """The judge itself failed: neither the submission nor this machine is to blame."""


def probe(wanted: str) -> Environment:
    """Look at python, torch, triton and the device; `wanted` is auto, cpu or cuda.

    torch is imported, in a process of its own, only where its build could have a GPU: a CPU build
    answers from its version, so that grading starts at once.

    Raises:
        EnvironmentFault: torch or triton is missing, or `cuda` was asked for and is not there.
    """
    facts: dict[str, Any] = {"device": "cpu", "device_name": platform.processor() or "cpu"}
    for package in ("torch", "triton", "numpy"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise EnvironmentFault(f"{package} is not installed; run `make setup` first") from None
    if wanted != "cpu" and not facts["torch"].endswith("+cpu"):
        facts |= _probe_torch()
    if facts["device"] == "cuda":
        facts["driver"] = _driver()
    if wanted == "cuda" and facts["device"] != "cuda":
        raise EnvironmentFault(
            f"--device cuda: got no usable CUDA GPU (torch {facts['torch']}), expected one;"
            " use --device cpu"
        )
    if facts["device"] == "cuda" and tuple(facts["capability"]) < (7, 5):
        raise EnvironmentFault(
            f"{facts['device_name']}: got compute capability {facts['capability']}, expected 7.5 or"
            " newer; use --device cpu"
        )
    return Environment(
        **{k: tuple(v) if k == "capability" else v for k, v in facts.items()},
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        notes=_notes(facts["triton"]),
    )


def _notes(triton: str) -> tuple[str, ...]:
    """Return a note on what a student misses with this version of Triton, if anything."""
    try:
        minor = Version(".".join(map(str, Version(triton).release[:2])))
    except InvalidVersion:
        minor = Version("0")
    if not OLDEST_TRITON <= minor <= NEWEST_TRITON:
        return (f"Triton {triton} is untested here: expected 3.6 to 3.9",)
    if minor >= Version("3.9"):
        return (f"Triton {triton} has no block pointers: tl.make_block_ptr raises",)
    return ()


def _probe_torch() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentFault(f"torch cannot be imported: {last}; run `make setup` again")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _driver() -> str | None:
    """Return the version of NVIDIA's kernel module, such as 580.159.04."""
    with contextlib.suppress(OSError):
        text = _DRIVER.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"\bKernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", text):
            return found[1]
    return None
