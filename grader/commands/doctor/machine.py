"""All that `doctor` asks of a machine, in one class that a test can replace.

This module imports the standard library alone and suits an old Python: it runs where the set-up
has failed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

NEEDED = ("torch", "triton", "numpy", "pydantic", "pytest", "pytest-json-report", "rich")
_IMPORT_S = 300
_LOOP_TURNS = 100_000  # some milliseconds
# Each import has its own try, so that a broken torch does not hide the state of Triton.
_IMPORTS = """
import json, os, sys
found = {}
try:
    import torch
    found["torch"] = torch.__version__
    found["cuda_build"] = torch.version.cuda
    found["hip_build"] = getattr(torch.version, "hip", None)
    found["bytecode"] = os.path.exists(torch.__spec__.cached or "")
    found["folder"] = os.path.dirname(os.path.dirname(torch.__file__))
    if torch.version.cuda and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = list(torch.cuda.get_device_capability())
        found["gpu_bytes"] = torch.cuda.get_device_properties(0).total_memory
except Exception as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"
try:
    import triton
    import triton.language
    found["triton"] = triton.__version__
except Exception as error:
    found["triton_error"] = f"{type(error).__name__}: {error}"
sys.stdout.write("\\n" + json.dumps(found))
"""


@dataclasses.dataclass
class Machine:
    """This machine. A question that may fail returns None or a text then, and does not raise."""

    root: Path
    python: tuple[int, ...] = tuple(sys.version_info[:3])
    executable: str = sys.executable
    system: str = sys.platform
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    encoding: str = "utf-8"

    def read(self, path: str) -> str | None:
        """Return the text of a file, None where it cannot be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Whether a file, folder or device is there; a broken link counts."""
        return os.path.lexists(path)

    def is_older(self, path: str, other: str) -> bool:
        """Whether one file was last changed before another."""
        return os.stat(path).st_mtime < os.stat(other).st_mtime

    def writable(self, path: str) -> bool:
        """Whether files can be made in a folder, or if it is missing in the nearest above it."""
        folder = Path(path)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)

    def which(self, program: str) -> str | None:
        """Return the path of a program, None where it is not installed."""
        return shutil.which(program, path=self.environment.get("PATH"))

    def free_bytes(self, path: str) -> int:
        """Return the free bytes of the disk that a folder is on."""
        return shutil.disk_usage(path).free

    def installed(self, package: str) -> str | None:
        """Return the version of a package, None where it is not installed."""
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    @functools.cached_property
    def found(self) -> dict[str, Any]:
        """What a separate process finds out about torch and Triton by importing them.

        `torch` and `triton` are versions; `torch_error` and `triton_error` say why one is missing;
        `gpu`, `capability` and `gpu_bytes` are set where torch can use a GPU.
        """
        try:
            done = subprocess.run(
                [self.executable, "-c", _IMPORTS],
                cwd="/",
                env=dict(self.environment),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_IMPORT_S,
                check=False,
            )
            return json.loads((done.stdout.splitlines() or [""])[-1])
        except subprocess.TimeoutExpired:
            return {"torch_error": f"no end of `import torch` after {_IMPORT_S} s"}
        except ValueError:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            if done.returncode < 0:
                last = f"the process died with signal {-done.returncode}: {last}"
            return {"torch_error": last}

    @property
    def missing(self) -> list[str]:
        """The needed packages that are not installed."""
        return [name for name in NEEDED if self.installed(name) is None]

    @property
    def has_gpu(self) -> bool:
        """Whether an NVIDIA driver has made its device files; WSL's is /dev/dxg."""
        return self.exists("/dev/nvidiactl") or self.exists("/dev/dxg")

    def python_headers(self) -> str:
        """Return the path at which a compiler looks for Python.h."""
        return os.path.join(sysconfig.get_paths()["include"], "Python.h")

    def loop_ms(self, repeats: int) -> list[float]:
        """Return the times, in ms, of `repeats` runs of a fixed loop."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(_LOOP_TURNS):
                pass
            times.append(1000 * (time.perf_counter() - start))
        return times
