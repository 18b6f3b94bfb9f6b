"""The record of a run: hardware, versions, settings and every figure, as one JSON file."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


def new_record(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return an empty record; `kind` is for example benchmark, sweep, variants or chips."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "hardware": _hardware(),
        "versions": _versions(),
        "settings": settings,
        "ceilings": None,
        "results": [],
    }


def _hardware() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"machine": platform.machine(), "cpus": os.cpu_count()}
    if not torch.cuda.is_available():
        return found | {"device": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return found | {
        "device": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "driver": _nvidia_smi("driver_version"),
        "clocks_mhz": _nvidia_smi("clocks.sm,clocks.mem,clocks.max.sm"),
        "power_limit_w": _nvidia_smi("power.limit"),
    }


def _nvidia_smi(query: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _versions() -> dict[str, Any]:
    import torch

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    for name in ("triton", "numpy"):
        try:
            found[name] = __import__(name).__version__
        except ImportError:
            found[name] = None
    for name in ("flash-attn-4", "nvidia-cutlass-dsl"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def save(record: dict[str, Any], path: Path | None) -> None:
    """Write the record in one step: a failure leaves the file as it was."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    draft.replace(path)


def load(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        ValueError: the file is a record of another schema.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    if record.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{path}: got schema_version {record.get('schema_version')}, expected {SCHEMA_VERSION}"
        )
    return record
