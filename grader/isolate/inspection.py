"""Tries out whether the jail holds on this machine; an official run begins with it.

A probe in the jail tries what a hostile submission would; whatever succeeds is a hole. A jail that
cannot be made at all, or has a hole, is a `JailFault`: nothing is graded for credit then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grader.base import scratch
from grader.isolate import cgroup, jail, jail_entry, reaper, system_calls, usage, warden

_PROBE = Path(__file__).with_name("jail_probe.py")
_ROOT = _PROBE.parent.parent.parent
_HIDDEN = ("solutions", "tests", "reference", "problems/p01", "grader/judge/problem_run.py", ".git")
# Who can write to the second has the host's kernel run programs as root.
_OF_PROC = ("/proc", "/proc/sys/kernel/core_pattern")
_DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "console"}
_TIMEOUT_S = 30.0
_GONE_S = 5.0
_FEW_PROCESSES = 8
_LITTLE_BYTES = 256 * 2**20
_HOG = "import os, time; held = [b'x' * 2**20 for _ in range(2048)]; time.sleep(60)"
_BOMB = "import os, time\nfor _ in range(40): os.fork() or time.sleep(60)\ntime.sleep(60)"
# The UUIDs of the GPUs that CUDA sees, by its driver's library alone.
_GPUS_OF_CUDA = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
count, device, uuid = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
for code in (cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))):
    if code:
        sys.exit(f"CUDA error {code}")
for number in range(count.value):
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetUuid(uuid, device)
    print(bytes(uuid).hex())
"""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_REMEDY = (
    "bubblewrap needs unprivileged user namespaces and a /proc without covered parts: in a"
    " container start it with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
    " and, with Docker, --security-opt systempaths=unconfined, with Podman --security-opt"
    " unmask=ALL; on Ubuntu 24.04 allow namespaces with"
    " sysctl kernel.apparmor_restrict_unprivileged_userns=0"
)


class JailFault(Exception):
    """The jail cannot be made on this machine, or does not hold; says what to do."""


def inspect(*, gpu: str | None) -> None:
    """Let a probe try to break out.

    Raises:
        JailFault: it could, or there is no jail.
    """
    if jail.bubblewrap() is None:
        raise JailFault("bubblewrap is not installed: install the package bubblewrap (bwrap)")
    folder = Path(tempfile.mkdtemp(prefix="inspection-", dir=scratch.folder()))
    secret = scratch.folder() / "secret"
    try:
        secret.touch()
        jail.let_in(scratch.folder())
        _expect_walls(folder, secret, gpu=gpu)
        if gpu is not None:
            _expect_compiler(folder)
            _expect_gpu(folder, gpu)
        for name, program in (("memory", _HOG), ("processes", _BOMB)):
            _expect_limit(folder, name, program)
        if cgroup.limits() is None:
            _expect_group(folder)
    except system_calls.SystemCallFault as fault:
        raise JailFault(str(fault)) from None
    finally:
        secret.unlink(missing_ok=True)
        scratch.remove_tree(folder)


def _expect_walls(folder: Path, secret: Path, *, gpu: str | None) -> None:
    asked = {
        "hidden": [str(_ROOT / name) for name in _HIDDEN]
        + [str(secret), str(Path.home() / ".ssh"), f"/proc/{_judge()}"],
        "read_only": ["/", "/dev", "/usr", "/etc", *_OF_PROC, str(_PROBE.parent), sys.prefix],
        "limited": ["/tmp", "/dev/shm", str(folder)],
        "spare_bytes": jail.FOLDER_BYTES + 2**20,
        "judge": _judge(),
        "namespaces": _NAMESPACES,
        "refused": system_calls.numbers(),
        "newest": system_calls.NEWEST,
    }
    holes = _holes(_probed(asked, folder, gpu=gpu), gpu=gpu)
    if holes:
        raise JailFault(f"the jail does not hold: {'; '.join(holes)}")


def _judge() -> int:
    """Return the id of a process that the jail must not see: this one, or one that cannot exist.

    In a container this process may have an id as low as those of the jail's own: then the
    namespaces alone show that the jail cannot see it.
    """
    return os.getpid() if os.getpid() > _FEW_PROCESSES else 2**22 + 1  # above Linux's highest


def _probed(asked: dict[str, Any], folder: Path, *, gpu: str | None) -> dict[str, Any]:
    """Return what the probe finds."""
    command = [sys.executable, "-I", "-S", str(_PROBE), json.dumps(asked)]
    _, lines = _run(command, folder, gpu=gpu)
    with contextlib.suppress(ValueError, IndexError):
        found = json.loads(lines[-1])
        if isinstance(found, dict) and "allowed" in found:
            return found
    said = (lines or ["it said nothing"])[-1]
    if said.endswith(jail_entry.OPEN_FOLDERS):
        raise JailFault(said)
    raise JailFault(f"the jail cannot be made ({said[:200]}); {_REMEDY}")


def _holes(found: dict[str, Any], *, gpu: str | None) -> list[str]:
    """Return what the probe could do and must not be able to."""
    holes = [f"{path} is in view" for path in found["seen"]]
    holes += [f"{path} can be written to" for path in found["written"]]
    holes += [f"{path} has no limit" for path in found["unlimited"]]
    devices = set(found["devices"]) - _DEVICES
    if gpu is not None:
        devices = {name for name in devices if not name.startswith("nvidia")}
    holes += [f"/dev/{name} is in view" for name in sorted(devices)]
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES}
    shared = [name for name, id in found["namespaces"].items() if id == ours[name]]
    holes += [f"its {name} namespace is the judge's" for name in shared]
    if found["allowed"]:
        holes.append(f"the kernel does not refuse {', '.join(found['allowed'])}")
    open_ways = {
        "other processes are in view": found["processes"] > _FEW_PROCESSES,
        "the judge can be sent signals": found["signals"],
        "a network is in reach": found["networks"] or found["reaches"],
        "further user namespaces can be made": found["users"],
        "it has capabilities": int(found["capabilities"] or "1", 16) != 0,
        "it may gain privileges": found["may_gain"],
        "it is root": found["uid"] == 0,
    }
    return holes + [what for what, holds in open_ways.items() if holds]


def _expect_compiler(folder: Path) -> None:
    """Check that Triton can compile a kernel's launcher: a missing file is no student's fault."""
    compiler = jail.compiler()
    if compiler is None:
        raise JailFault("Triton needs a C compiler on a GPU: install gcc, or set CC")
    scheme = "posix_prefix"  # as Triton does: a distribution's own scheme may have no headers
    headers = sysconfig.get_paths(scheme=scheme)["include"]
    program = "#include <Python.h>\nint launch(void) { return Py_IsInitialized(); }"
    (folder / "launch.c").write_text(program)
    options = ["-shared", "-fPIC", "-I", headers, "-o", "launch.so"]
    command = [compiler, str(folder / "launch.c"), *options]
    code, lines = _run(command, folder, [folder / "launch.c"])
    if code != 0:
        said = (lines or ["it said nothing"])[0]
        raise JailFault(f"{compiler} does not work in the jail, and Triton needs it: {said[:200]}")


def _expect_gpu(folder: Path, gpu: str) -> None:
    """Check that CUDA finds the GPU in the jail: a worker without one is no student's fault."""
    command = [sys.executable, "-I", "-S", "-c", _GPUS_OF_CUDA]
    code, lines = _run(command, folder, gpu=gpu)
    if code != 0 or lines[-1:] != [gpu.replace("-", "")]:
        found = (lines or ["nothing"])[-1][:200]
        raise JailFault(f"the GPU cannot be used in the jail: got {found}, expected GPU-{gpu}")


def _expect_limit(folder: Path, name: str, program: str) -> None:
    """Check that the warden ends a program that takes too much, and all that it started."""
    with _jailed([sys.executable, "-I", "-S", "-c", program], folder) as child:
        first = _wait_for(lambda: warden.processes_of(child.pid))
        if first is None:
            raise JailFault(f"the jail cannot be watched; {_REMEDY}")
        if jail.user() is not None and usage.user_of(first[1]) == 0:
            raise JailFault("the jail does not hold: its user is root outside")
        watch = warden.Warden(first[0], processes=_FEW_PROCESSES, memory_bytes=_LITTLE_BYTES)
        ended = _wait_for(lambda: child.poll() is not None)
        watch.stop()
    if not ended or watch.over is None:
        raise JailFault(f"the jail does not hold: the limit of {name} is not kept")


def _expect_group(folder: Path) -> None:
    """Check that the kernel ends what takes more than its control group may, without a warden."""
    with _jailed([sys.executable, "-I", "-S", "-c", _HOG], folder) as child:
        first = _wait_for(lambda: warden.processes_of(child.pid))
        try:
            group = cgroup.Group(first or (), _LITTLE_BYTES)
        except cgroup.NoGroup as reason:
            raise JailFault(f"memory cannot be limited: {reason}") from None
        ended = _wait_for(lambda: child.poll() is not None, _GONE_S)
        kept = ended and group.is_over()
        group.close()
    if not kept:
        raise JailFault("the jail does not hold: its control group does not limit its memory")


def _run(
    command: list[str], folder: Path, files: Sequence[Path] = (), *, gpu: str | None = None
) -> tuple[int, list[str]]:
    """Run a command in the jail to its end; return its exit status and the lines it printed."""
    with _jailed(command, folder, files=files, gpu=gpu) as child:
        try:
            out, _ = child.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise JailFault("the jail was not made in time: is the machine busy?") from None
    return child.returncode, out.decode("utf-8", "replace").strip().splitlines()


@contextlib.contextmanager
def _jailed(
    command: list[str], folder: Path, files: Sequence[Path] = (), *, gpu: str | None = None
) -> Iterator[subprocess.Popen]:
    """Run a command in the jail, end it, and check that nothing of it is left.

    Raises:
        JailFault: a process outlived it.
    """
    before = set(usage.descendants(os.getpid()))
    libraries = {n: os.environ[n] for n in ("LD_LIBRARY_PATH",) if n in os.environ}
    named = jail.named_to_cuda(gpu) if gpu else {}
    child = reaper.start(
        jail.enclose(command, folder, files, gpu=gpu),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.environ.get("PATH", os.defpath)} | libraries | named,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()

    def is_gone() -> bool:
        left = set(usage.descendants(os.getpid())) - before
        return not any(map(usage.resident_bytes, left))

    gone = _wait_for(is_gone, _GONE_S)
    reaper.ended(child)
    if not gone:
        raise JailFault("the jail does not hold: a process outlived it")


def _wait_for(condition: Any, seconds: float | None = None) -> Any:
    deadline = time.monotonic() + (_TIMEOUT_S if seconds is None else seconds)
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    return None
