"""Looks at a machine, one subject after another, and says what to type where something is amiss.

The standard library alone, as in `grader.desk.machine`: it must run where nothing is installed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Callable, Iterable  # noqa: UP035 - see grader.desk.machine

from grader.desk.machine import Machine

OK, WARNING, ERROR = "ok", "warning", "error"
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
TRITONS = ((3, 6), (3, 9))
NUMPY_TOO_NEW = (2, 4)  # for the interpreter of Triton 3.6
GIB = 2**30
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4 * GIB, 1.5 * GIB
REPEATS = 20
NOISY = 1.1  # 90th percentile over median
# The oldest driver for the builds of CUDA 12 and 13: NVIDIA's page "CUDA Compatibility",
# https://docs.nvidia.com/deploy/cuda-compatibility/
DRIVERS = {12: 525, 13: 580}
NEEDED = ("torch", "triton", "numpy", "pydantic", "pytest", "pytest-json-report", "rich")
REDO = "make clean && make setup"


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


def version(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def python(patient: Patient) -> tuple[str, ...]:
    got = ".".join(map(str, patient.machine.python[:3]))
    if patient.machine.python[:2] < OLDEST_PYTHON:
        said = f"got {got}, expected 3.11 or newer"
        return ERROR, said, "install Python 3.12, then: make setup PYTHON=python3.12"
    return OK, f"{got}, {patient.machine.executable}"


def system(patient: Patient) -> tuple[str, ...]:
    if patient.machine.system != "linux":
        said = f"got {patient.machine.system}, expected Linux: Triton is made for Linux alone"
        return ERROR, said, "on Windows: wsl --install; else use a Linux machine or container"
    if not patient.in_wsl:
        return OK, "Linux"
    if "wsl2" not in patient.linux.lower():
        return ERROR, "WSL 1, which has no Linux kernel", "in PowerShell: wsl --set-version NAME 2"
    found = "WSL 2: on its GPU neither speed nor memory can be measured; all else can"
    if str(patient.machine.root).startswith("/mnt/"):
        found += ". This folder is on a Windows disk, which is slow"
        return WARNING, found, f"cp -r '{patient.machine.root}' ~"
    return WARNING, found, "for the points for speed, grade on a Linux machine"


def set_up(patient: Patient) -> tuple[str, ...]:
    machine, folder = patient.machine, patient.machine.root / ".venv"
    ready = machine.exists(f"{folder}/.ready")
    if not str(machine.executable).startswith(f"{folder}/"):
        if ready:
            return WARNING, "this Python is not the one of .venv", "make doctor"
        if patient.missing:
            return ERROR, "there is no .venv yet", "make setup"
        return OK, "no .venv: the packages of this Python are used"
    if not ready:
        return ERROR, ".venv is not finished", REDO
    for name in ("requirements.txt", "pyproject.toml"):
        if machine.is_older(f"{folder}/.ready", str(machine.root / name)):
            return WARNING, f".venv is older than {name}", "make setup"
    return OK, ".venv is up to date"


def packages(patient: Patient) -> tuple[str, ...]:
    machine = patient.machine
    if patient.missing:
        return ERROR, f"not installed: {', '.join(patient.missing)}", "make setup"
    pins = re.findall(
        r"^([\w.-]+)==(\S+)", machine.read(f"{machine.root}/requirements.txt") or "", re.MULTILINE
    )
    others = []
    for name, pinned in pins:
        got = machine.installed(name)
        if got is not None and got.partition("+")[0] != pinned:
            others.append(f"{name} {got} (tested: {pinned})")
    if not others:
        return OK, "the versions of requirements.txt"
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return WARNING, f"other versions than those that are tested: {shown}", REDO


def torch(patient: Patient) -> tuple[str, ...]:
    machine, found = patient.machine, patient.imports
    if machine.installed("torch") is None and "torch" not in found:
        return ERROR, "not installed", "make setup"
    if "torch" not in found:
        return ERROR, f"cannot be imported: {found.get('torch_error')}", REDO
    got, build = found["torch"], found.get("cuda_build")
    if version(got) < OLDEST_TORCH:
        return ERROR, f"got {got}, expected 2.11 or newer", REDO
    if found.get("hip_build"):
        return WARNING, f"{got} is a build for AMD's GPUs, which are not used here", REDO
    if patient.has_gpu and not build:
        return WARNING, f"{got} is a build for the CPU: it does not use the NVIDIA GPU", REDO
    return OK, f"{got}, {f'CUDA {build}' if build else 'a build for the CPU'}"


def triton(patient: Patient) -> tuple[str, ...]:
    machine, found = patient.machine, patient.imports
    if machine.installed("triton") is None and "triton" not in found:
        return ERROR, "not installed", "make setup"
    if "triton" not in found:
        why = found.get("triton_error") or "the process that tried to ended"
        return ERROR, f"cannot be imported: {why}", REDO
    got, numpy = found["triton"], machine.installed("numpy")
    if not TRITONS[0] <= version(got)[:2] <= TRITONS[1]:
        return WARNING, f"{got} is untested here: expected 3.6 to 3.9", REDO
    if version(got)[:2] < (3, 7) and version(numpy)[:2] >= NUMPY_TOO_NEW:
        said = f"{got} with numpy {numpy}: its interpreter fails on loops with a runtime bound"
        return ERROR, said, f"{machine.executable} -m pip install 'numpy<2.4'"
    return OK, f"{got}, with numpy {numpy}"


def gpu(patient: Patient) -> tuple[str, ...]:
    found = patient.imports
    if "gpu" in found:
        capability = tuple(found["capability"])
        said = f"{found['gpu']}, compute capability {'.'.join(map(str, capability))},"
        said += f" {found.get('gpu_bytes', 0) / GIB:.0f} GiB"
        if capability < (7, 5):
            return WARNING, f"{said}; expected 7.5 or newer", "make grade DEVICE=cpu"
        if capability < (8, 0):
            return WARNING, f"{said}; it has no bf16: those cases are not run", "make grade"
        return OK, said
    without = "kernels run in Triton's interpreter, speed is not measured"
    if patient.has_gpu:
        return WARNING, f"there is one, and torch cannot use it: {without}", "see torch, driver"
    if _nvidia_card(patient.machine):
        remedy = "install NVIDIA's driver: https://www.nvidia.com/drivers"
        return WARNING, f"an NVIDIA card without a driver: {without}", remedy
    return OK, f"none: {without}"


def _nvidia_card(machine: Machine) -> bool:
    """Whether /proc/bus/pci/devices lists a device of NVIDIA's (vendor 10de)."""
    listed = machine.read("/proc/bus/pci/devices") or ""
    return any(re.match(r"\S+\s+10de", row, re.IGNORECASE) for row in listed.splitlines())


def driver(patient: Patient) -> tuple[str, ...]:
    text = patient.machine.read("/proc/driver/nvidia/version") or ""
    match = re.search(r"\bKernel Module\b.*?\s(\d+)\.(\d+(?:\.\d+)?)\s", text)
    build = version(patient.imports.get("cuda_build"))
    if match is None:
        return OK, "none" if not patient.has_gpu else "its version cannot be read here"
    got, oldest = f"{match[1]}.{match[2]}", DRIVERS.get(build[0]) if build else None
    if oldest is not None and int(match[1]) < oldest:
        said = f"{got}, CUDA {build[0]} needs {oldest} or newer"
        return WARNING, said, "update NVIDIA's driver: https://www.nvidia.com/drivers"
    return OK, got


def compiler(patient: Patient) -> tuple[str, ...]:
    """Triton compiles a launcher for each kernel; without a GPU it launches none."""
    machine = patient.machine
    level = ERROR if "gpu" in patient.imports else WARNING
    chosen = machine.environment.get("CC")
    if chosen and machine.which(chosen) is None:
        return level, f"CC={chosen} is not installed", "unset CC"
    found = next(filter(None, map(machine.which, filter(None, (chosen, "gcc", "clang")))), None)
    if found is None:
        said = "no gcc: Triton needs a C compiler to launch kernels on a GPU"
        return level, said, "sudo apt-get install gcc"
    headers = machine.python_headers()
    if not machine.exists(headers):
        said = f"{found}, but {headers} is missing: Triton needs it on a GPU"
        return level, said, "sudo apt-get install python3-dev"
    return OK, found


def memory(patient: Patient) -> tuple[str, ...]:
    machine = patient.machine
    text = machine.read("/proc/meminfo") or ""
    kib = {name: int(n) for name, n in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    if "MemTotal" not in kib:
        return WARNING, "/proc/meminfo cannot be read", "ls -l /proc/meminfo"
    total, free = (1024 * kib.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    limit = (machine.read("/sys/fs/cgroup/memory.max") or "").strip()
    of = ""
    if limit.isdigit() and int(limit) < total:
        total, of = int(limit), " (the limit of this container)"
        free = min(free, total - int(machine.read("/sys/fs/cgroup/memory.current") or "0"))
    said = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB{of}"
    if free < TOO_LITTLE_MEMORY:
        return ERROR, f"{said}; a problem takes up to 1.5 GiB", "close other programs"
    if total < LITTLE_MEMORY:
        return WARNING, f"{said}: grade one problem at a time", "make grade P=p01"
    return OK, said


def disk(patient: Patient) -> tuple[str, ...]:
    machine = patient.machine
    free = machine.free_bytes(str(machine.root))
    said = f"{free / GIB:.1f} GiB free"
    needed = (10 if patient.has_gpu else 2) if patient.missing else 1
    if free < needed * GIB:
        for_what = "for what is compiled" if needed == 1 else "for the set-up"
        said += f"; {needed} GiB are needed {for_what}"
        return (WARNING if needed == 1 else ERROR), said, "df -h . (and free some space)"
    return OK, said


def folders(patient: Patient) -> tuple[str, ...]:
    """The checkout, where Triton keeps what it compiles, and temporary files."""
    machine, environment = patient.machine, patient.machine.environment
    home = environment.get("TRITON_HOME") or environment.get("HOME", "")
    cache = environment.get("TRITON_CACHE_DIR") or f"{home}/.triton"
    temporary = environment.get("TMPDIR") or "/tmp"
    for path, what in ((str(machine.root), "this folder"), (temporary, "temporary files")):
        if not machine.writable(path):
            return ERROR, f"{what}: no write access to {path}", f"ls -ld '{path}'"
    if not machine.writable(cache):
        said = f"Triton cannot keep what it compiles in {cache}"
        return WARNING, said, "export TRITON_CACHE_DIR=/tmp/triton"
    return OK, "writable"


def variables(patient: Patient) -> tuple[str, ...]:
    """What is set in the shell and changes what Python or Triton does."""
    environment, said, unset = patient.machine.environment, [], []
    if environment.get("TRITON_INTERPRET", "0").lower() not in ("", "0", "false", "off", "no"):
        said.append("TRITON_INTERPRET: your own programs run in the interpreter, on a GPU too")
        unset.append("TRITON_INTERPRET")
    if environment.get("PYTHONPATH"):
        said.append("PYTHONPATH: its packages come before those of .venv")
        unset.append("PYTHONPATH")
    if environment.get("PYTHONOPTIMIZE"):
        said.append("PYTHONOPTIMIZE: Python leaves assertions out")
        unset.append("PYTHONOPTIMIZE")
    if environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") and patient.has_gpu:
        said.append("CUDA_VISIBLE_DEVICES: it hides the GPU")
        unset.append("CUDA_VISIBLE_DEVICES")
    if said:
        return WARNING, "set in this shell: " + "; ".join(said), f"unset {' '.join(unset)}"
    return OK, "nothing that disturbs is set in this shell"


def terminal(patient: Patient) -> tuple[str, ...]:
    encoding = patient.machine.encoding
    if encoding.lower().replace("-", "").replace("_", "") != "utf8":
        said = f"got the encoding {encoding}, expected UTF-8: some letters become ?"
        return WARNING, said, "export LC_ALL=C.UTF-8"
    return OK, "UTF-8"


def bubblewrap(patient: Patient) -> tuple[str, ...]:
    machine, name = patient.machine, "kernel.apparmor_restrict_unprivileged_userns"
    use = "only OFFICIAL=1 needs it"
    found = machine.which("bwrap")
    if found is None:
        return WARNING, f"not installed; {use}", "sudo apt-get install bubblewrap"
    restricted = machine.read("/proc/sys/" + name.replace(".", "/")) or "0"
    if restricted.strip() == "1":
        return WARNING, f"AppArmor keeps it from making a jail; {use}", f"sudo sysctl {name}=0"
    return OK, found


def clock(patient: Patient) -> tuple[str, ...]:
    """How far one fixed loop varies: what is timed here varies as much."""
    times = sorted(patient.machine.loop_ms(REPEATS))
    ratio = times[int(0.9 * (len(times) - 1))] / times[len(times) // 2]
    said = f"a fixed loop takes up to {ratio:.2f} times its usual time"
    if ratio > NOISY:
        return WARNING, f"{said}: the machine is busy", "close other programs (top lists them)"
    return OK, said


CHECKS: dict[str, Callable[[Patient], tuple[str, ...]]] = {
    "python": python,
    "system": system,
    "set-up": set_up,
    "packages": packages,
    "torch": torch,
    "triton": triton,
    "gpu": gpu,
    "driver": driver,
    "compiler": compiler,
    "memory": memory,
    "disk": disk,
    "folders": folders,
    "variables": variables,
    "terminal": terminal,
    "bubblewrap": bubblewrap,
    "clock": clock,
}
