"""Finds out, without importing torch into the grader, what this machine can measure."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
import sys
from importlib import metadata
from typing import Any

_PROBE = """
import json
import torch
found = {"cuda_build": torch.version.cuda}
if torch.cuda.is_available():
    found["device"] = "cuda"
    found["device_name"] = torch.cuda.get_device_name()
    found["capability"] = list(torch.cuda.get_device_capability())
    found["device_bytes"] = torch.cuda.get_device_properties(0).total_memory
print(json.dumps(found))
"""


class EnvironmentFault(Exception):
    """This machine cannot run the grader; the message says what is missing and what to do."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """Versions and device of the run, as they go into the record."""

    device: str
    facts: dict[str, Any]

    @property
    def device_name(self) -> str:
        """GPU model, or "cpu"."""
        return self.facts["device_name"] if self.device == "cuda" else "cpu"

    @property
    def interpreter_works(self) -> bool:
        """Whether Triton's interpreter can run kernels with these versions."""
        return interpreter_works(self.facts.get("triton"), self.facts.get("numpy"))


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
    if wanted == "cuda" and facts["device"] != "cuda":
        raise EnvironmentFault(
            f"--device cuda: got no usable CUDA GPU (torch {facts['torch']}), expected one;"
            " use --device cpu"
        )
    capability = facts.get("capability")
    if facts["device"] == "cuda" and tuple(capability) < (7, 5):
        raise EnvironmentFault(
            f"{facts['device_name']}: got compute capability {capability}, expected 7.5 or newer;"
            " use --device cpu"
        )
    facts["python"] = platform.python_version()
    facts["platform"] = platform.platform(terse=True)
    environment = Environment(facts["device"], facts)
    if environment.device == "cpu" and not environment.interpreter_works:
        raise EnvironmentFault(
            f"Triton {facts['triton']} with numpy {facts['numpy']}: the interpreter fails on loops"
            " with a runtime bound; run `pip install 'numpy<2.4'` or install Triton 3.7 or newer"
        )
    return environment


def _probe_torch() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentFault(f"torch cannot be imported: {last}; run `make setup` again")
    return json.loads(done.stdout.strip().splitlines()[-1])


def interpreter_works(triton: str | None, numpy: str | None) -> bool:
    """Triton 3.6's interpreter does not run loops with a runtime bound under numpy >= 2.4."""
    return not (_version(triton) < (3, 7) and _version(numpy) >= (2, 4))


def _version(text: str | None) -> tuple[int, int]:
    try:
        major, minor = (text or "0.0").split(".")[:2]
        return int(major), int(minor)
    except ValueError:
        return 0, 0
