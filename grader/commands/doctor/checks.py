"""The checks of `doctor`: each returns a level, a sentence on what it found, and what to type.

This module, like machine.py, imports the standard library alone: it runs before the set-up.
"""

from __future__ import annotations

import re

from grader.commands.doctor.machine import Machine

OK, WARNING, ERROR = "ok", "warning", "error"
GIB = 2**30
REDO = "make clean && make setup"
_NVIDIA = "NVIDIA's driver: https://www.nvidia.com/drivers"
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
TRITONS = ((3, 6), (3, 9))
NUMPY_TOO_NEW = (2, 4)  # for the interpreter of Triton 3.6
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4 * GIB, 1.5 * GIB
REPEATS = 20
NOISY = 1.1  # 90th percentile over median
# The oldest driver for the builds of CUDA 12 and 13: NVIDIA's page "CUDA Compatibility",
# https://docs.nvidia.com/deploy/cuda-compatibility/
DRIVERS = {12: 525, 13: 580}


def version(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, match[0].split("."))) if match else ()


def python(m: Machine) -> tuple[str, ...]:
    got = ".".join(map(str, m.python[:3]))
    if m.python[:2] < OLDEST_PYTHON:
        said = f"got {got}, expected 3.11 or newer"
        return ERROR, said, "install Python 3.12, then: make setup PYTHON=python3.12"
    return OK, f"{got}, {m.executable}"


def set_up(m: Machine) -> tuple[str, ...]:
    folder = m.root / ".venv"
    ready = m.exists(f"{folder}/.ready")
    if not str(m.executable).startswith(f"{folder}/"):
        if ready:
            return WARNING, "this Python is not the one of .venv", "make doctor"
        if m.missing:
            return ERROR, "there is no .venv yet", "make setup"
        return OK, "no .venv: the packages of this Python are used"
    if not ready:
        return ERROR, ".venv is not finished", REDO
    for name in ("requirements.txt", "pyproject.toml"):
        if m.is_older(f"{folder}/.ready", str(m.root / name)):
            return WARNING, f".venv is older than {name}", "make setup"
    return OK, ".venv is up to date"


def packages(m: Machine) -> tuple[str, ...]:
    if m.missing:
        return ERROR, f"not installed: {', '.join(m.missing)}", "make setup"
    pins = re.findall(
        r"^([\w.-]+)==(\S+)", m.read(f"{m.root}/requirements.txt") or "", re.MULTILINE
    )
    found = ((name, pinned, m.installed(name) or pinned) for name, pinned in pins)
    others = [f"{n} {got} (tested: {p})" for n, p, got in found if got.partition("+")[0] != p]
    if not others:
        return OK, "the versions of requirements.txt"
    shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return WARNING, f"other versions than those that are tested: {shown}", REDO


def torch(m: Machine) -> tuple[str, ...]:
    found = m.found
    if m.installed("torch") is None and "torch" not in found:
        return ERROR, "not installed", "make setup"
    if "torch" not in found:
        return ERROR, f"cannot be imported: {found.get('torch_error')}", REDO
    got, build = found["torch"], found.get("cuda_build")
    if version(got) < OLDEST_TORCH:
        return ERROR, f"got {got}, expected 2.11 or newer", REDO
    if found.get("hip_build"):
        return WARNING, f"{got} is a build for AMD's GPUs, which are not used here", REDO
    if m.has_gpu and not build:
        return WARNING, f"{got} is a build for the CPU: it does not use the NVIDIA GPU", REDO
    if not found.get("bytecode", True):
        said = f"{got} without bytecode: each worker of an official run compiles it, for seconds"
        return WARNING, said, f"{m.executable} -m compileall -q -j 0 {found['folder']}"
    return OK, f"{got}, {f'CUDA {build}' if build else 'a build for the CPU'}"


def triton(m: Machine) -> tuple[str, ...]:
    found = m.found
    if m.installed("triton") is None and "triton" not in found:
        return ERROR, "not installed", "make setup"
    if "triton" not in found:
        why = found.get("triton_error") or "the process that tried to ended"
        return ERROR, f"cannot be imported: {why}", REDO
    got, numpy = found["triton"], m.installed("numpy")
    if not TRITONS[0] <= version(got)[:2] <= TRITONS[1]:
        return WARNING, f"{got} is untested here: expected 3.6 to 3.9", REDO
    if version(got)[:2] < (3, 7) and version(numpy)[:2] >= NUMPY_TOO_NEW:
        said = f"{got} with numpy {numpy}: TRITON_INTERPRET=1 fails on loops with a runtime bound"
        return WARNING, said, f"{m.executable} -m pip install 'numpy<2.4'"
    return OK, f"{got}, with numpy {numpy}"


def gpu(m: Machine) -> tuple[str, ...]:
    found = m.found
    if "gpu" in found:
        capability = tuple(found["capability"])
        said = f"{found['gpu']}, compute capability {'.'.join(map(str, capability))},"
        said += f" {found.get('gpu_bytes', 0) / GIB:.0f} GiB"
        if capability < (7, 5):
            return WARNING, f"{said}; expected 7.5 or newer", "make grade DEVICE=cpu"
        if capability < (8, 0):
            return WARNING, f"{said}; it has no bf16: those cases are not run", "make grade"
        return OK, said
    without = "kernels run on the CPU, speed is not measured"
    if m.has_gpu:
        return WARNING, f"there is one, and torch cannot use it: {without}", "see torch, driver"
    listed = (m.read("/proc/bus/pci/devices") or "").splitlines()
    if any(re.match(r"\S+\s+10de", row, re.IGNORECASE) for row in listed):  # the vendor's number
        return WARNING, f"an NVIDIA card without a driver: {without}", f"install {_NVIDIA}"
    return OK, f"none: {without}"


def driver(m: Machine) -> tuple[str, ...]:
    text = m.read("/proc/driver/nvidia/version") or ""
    match = re.search(r"\bKernel Module\b.*?\s(\d+)\.(\d+(?:\.\d+)?)\s", text)
    build = version(m.found.get("cuda_build"))
    if match is None:
        return OK, "none" if not m.has_gpu else "its version cannot be read here"
    got, oldest = f"{match[1]}.{match[2]}", DRIVERS.get(build[0]) if build else None
    if oldest is not None and int(match[1]) < oldest:
        said = f"{got}, CUDA {build[0]} needs {oldest} or newer"
        return WARNING, said, f"update {_NVIDIA}"
    return OK, got


def memory(m: Machine) -> tuple[str, ...]:
    text = m.read("/proc/meminfo") or ""
    kib = {name: int(n) for name, n in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    if "MemTotal" not in kib:
        return WARNING, "/proc/meminfo cannot be read", "ls -l /proc/meminfo"
    total, free = (1024 * kib.get(name, 0) for name in ("MemTotal", "MemAvailable"))
    limit = (m.read("/sys/fs/cgroup/memory.max") or "").strip()
    of = ""
    if limit.isdigit() and int(limit) < total:
        total, of = int(limit), " (the limit of this container)"
        free = min(free, total - int(m.read("/sys/fs/cgroup/memory.current") or "0"))
    said = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB{of}"
    if free < TOO_LITTLE_MEMORY:
        return ERROR, f"{said}; a problem takes up to 1.5 GiB", "close other programs"
    if total < LITTLE_MEMORY:
        return WARNING, f"{said}: grade one problem at a time", "make grade P=p01"
    return OK, said


def disk(m: Machine) -> tuple[str, ...]:
    free = m.free_bytes(str(m.root))
    said = f"{free / GIB:.1f} GiB free"
    needed = (10 if m.has_gpu else 2) if m.missing else 1
    if free < needed * GIB:
        for_what = "for what is compiled" if needed == 1 else "for the set-up"
        said += f"; {needed} GiB are needed {for_what}"
        return (WARNING if needed == 1 else ERROR), said, "df -h . (and free some space)"
    return OK, said


def clock(m: Machine) -> tuple[str, ...]:
    """Check how much the time of a fixed loop varies: kernel times vary at least as much."""
    times = sorted(m.loop_ms(REPEATS))
    ratio = times[int(0.9 * (len(times) - 1))] / times[len(times) // 2]
    said = f"a fixed loop takes up to {ratio:.2f} times its usual time"
    if ratio > NOISY:
        return WARNING, f"{said}: the machine is busy", "close other programs (top lists them)"
    return OK, said


def system(m: Machine) -> tuple[str, ...]:
    if m.system != "linux":
        said = f"got {m.system}, expected Linux: Triton is made for Linux alone"
        return ERROR, said, "on Windows: wsl --install; else use a Linux machine or container"
    linux = (m.read("/proc/version") or "").lower()
    if "microsoft" not in linux:
        return OK, "Linux"
    if "wsl2" not in linux:
        return ERROR, "WSL 1, which has no Linux kernel", "in PowerShell: wsl --set-version NAME 2"
    found = "WSL 2: on its GPU neither speed nor memory can be measured; all else can"
    if str(m.root).startswith("/mnt/"):
        found += ". This folder is on a Windows disk, which is slow"
        return WARNING, found, f"cp -r '{m.root}' ~"
    return WARNING, found, "for the points for speed, grade on a Linux machine"


def compiler(m: Machine) -> tuple[str, ...]:
    """Check the C compiler, with which Triton builds the launcher of each kernel on a GPU."""
    level = ERROR if "gpu" in m.found else WARNING
    chosen = m.environment.get("CC")
    if chosen and m.which(chosen) is None:
        return level, f"CC={chosen} is not installed", "unset CC"
    found = next(filter(None, map(m.which, filter(None, (chosen, "gcc", "clang")))), None)
    if found is None:
        said = "no gcc: Triton needs a C compiler to launch kernels on a GPU"
        return level, said, "sudo apt-get install gcc"
    headers = m.python_headers()
    if not m.exists(headers):
        said = f"{found}, but {headers} is missing: Triton needs it on a GPU"
        return level, said, "sudo apt-get install python3-dev"
    return OK, found


def folders(m: Machine) -> tuple[str, ...]:
    """Check that the checkout, Triton's cache and the folder of temporary files are writable."""
    environment = m.environment
    home = environment.get("TRITON_HOME") or environment.get("HOME", "")
    cache = environment.get("TRITON_CACHE_DIR") or f"{home}/.triton"
    temporary = environment.get("TMPDIR") or "/tmp"
    for path, what in ((str(m.root), "this folder"), (temporary, "temporary files")):
        if not m.writable(path):
            return ERROR, f"{what}: no write access to {path}", f"ls -ld '{path}'"
    if not m.writable(cache):
        said = f"Triton cannot keep what it compiles in {cache}"
        return WARNING, said, "export TRITON_CACHE_DIR=/tmp/triton"
    return OK, "writable"


def variables(m: Machine) -> tuple[str, ...]:
    """Check for variables of the shell that change how Python or Triton runs."""
    environment, off = m.environment, ("", "0", "false", "off", "no")
    interpreted = environment.get("TRITON_INTERPRET", "").lower() not in off
    hidden = environment.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1") and m.has_gpu
    own = "your own programs run in the interpreter, on a GPU too"
    disturbing = {
        f"TRITON_INTERPRET: {own}": interpreted,
        "PYTHONPATH: its packages come before those of .venv": environment.get("PYTHONPATH"),
        "PYTHONOPTIMIZE: Python leaves assertions out": environment.get("PYTHONOPTIMIZE"),
        "CUDA_VISIBLE_DEVICES: it hides the GPU": hidden,
    }
    said = [text for text, disturbs in disturbing.items() if disturbs]
    if said:
        unset = " ".join(text.split(":")[0] for text in said)
        return WARNING, f"set in this shell: {'; '.join(said)}", f"unset {unset}"
    return OK, "nothing that disturbs is set in this shell"


def terminal(m: Machine) -> tuple[str, ...]:
    if m.encoding.lower().replace("-", "").replace("_", "") != "utf8":
        said = f"got the encoding {m.encoding}, expected UTF-8: some letters become ?"
        return WARNING, said, "export LC_ALL=C.UTF-8"
    return OK, "UTF-8"


def bubblewrap(m: Machine) -> tuple[str, ...]:
    name = "kernel.apparmor_restrict_unprivileged_userns"
    use = "only OFFICIAL=1 needs it"
    found = m.which("bwrap")
    if found is None:
        return WARNING, f"not installed; {use}", "sudo apt-get install bubblewrap"
    restricted = m.read("/proc/sys/" + name.replace(".", "/")) or "0"
    if restricted.strip() == "1":
        return WARNING, f"AppArmor keeps it from making a jail; {use}", f"sudo sysctl {name}=0"
    return OK, found


# By the names in the report, in its order.
CHECKS = {
    check.__name__.replace("_", "-"): check
    for check in (
        python, system, set_up, packages, torch, triton, gpu, driver, compiler, memory, disk,
        folders, variables, terminal, bubblewrap, clock,
    )
}  # fmt: skip
