"""The walls around the workers of an official run: namespaces of their own, made by bubblewrap.

A worker in the jail sees the system's programs and libraries, this Python, the judge's own worker
and one submitted file, all read-only; folders of limited size that vanish with it; namespaces of
its own, with nobody else in them, for processes, network, IPC and users; and of devices the GPU
that is graded on and those without contents. The kernel refuses system calls that it does not need
(system_calls.py), and where the judge is root its user is another one outside, too (jail_entry.py).
The warden watches its memory and processes from outside (warden.py). Before anything is graded a
probe tries out whether all this holds (inspection.py). bubblewrap 0.8 or newer: `man bwrap`.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from grader.base import scratch
from grader.isolate import system_calls

_ENTRY = Path(__file__).with_name("jail_entry.py")
_ROOT = Path(__file__).parents[2]
_NOBODY = "65534"
_USER = 65533  # outside, where the judge is root: nobody has this id, which Debian reserves
TMP_BYTES = 64 * 2**20  # of each of /tmp and /dev/shm
FOLDER_BYTES = 256 * 2**20  # of the folder in which a worker runs
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_KEYS = ("/proc/keys", "/proc/key-users")  # they list the keys of the judge
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives")
_OWN = (
    *("grader/__init__.py", "grader/base", "grader/kernel", "grader/isolate", "problems/given"),
    *("grader/spec/__init__.py", "grader/spec/cases.py", "grader/spec/protocol.py"),
    "grader/spec/kernel_report.py",
)
_GPUS = Path("/proc/driver/nvidia/gpus")
_DRIVER = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")

_kernels: Path | None = None
_gpu: str | None = None


def require(gpu: str | None) -> None:
    """Put every worker that this process starts from now on into the jail, with this GPU (UUID)."""
    global _kernels, _gpu
    _gpu = gpu
    if _kernels is None:
        _kernels = scratch.folder() / "kernels"
        _make_kernels(_kernels)


def user() -> int | None:
    """Return the id of a jail's user outside, None where it is the user who runs the judge.

    Root becomes another user, unless it is root of a container that has no other.
    """
    if os.geteuid() != 0:
        return None
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text("ascii").splitlines()]
    known = any(int(first) <= _USER < int(first) + int(count) for first, _, count in ranges)
    return _USER if known else None


def let_in(path: Path) -> None:
    """Let the jail's user reach files in a folder of ours by their names, without listing it."""
    if user() is not None:
        path.chmod(0o711)


def _make_kernels(path: Path) -> None:
    path.mkdir(exist_ok=True)
    let_in(path.parent)
    if (owner := user()) is not None:
        os.chown(path, owner, owner)


def gpu() -> str | None:
    """Return the UUID of the GPU that jailed workers of this process may use."""
    return _gpu


def named_to_cuda(uuid: str) -> dict[str, str]:
    """Return the environment variables that name a GPU to CUDA.

    Its number may be another one in a jail, which has the device nodes of one GPU alone.
    """
    return {"CUDA_VISIBLE_DEVICES": f"GPU-{uuid}"}


def kernels() -> Path | None:
    """Return where jailed workers of this process keep what they compile; None without a jail."""
    return _kernels


def forget_kernels() -> None:
    """Empty that folder, so that no call pays for what another left in it."""
    if _kernels is not None:
        scratch.remove_tree(_kernels)
        _make_kernels(_kernels)


def bubblewrap() -> str | None:
    """Return the path of bubblewrap, None where it is not installed."""
    return shutil.which("bwrap")


def enclose(
    command: list[str], folder: Path, files: Sequence[Path], *, gpu: str | None
) -> list[str]:
    """Return the command that runs `command` in the jail, with the GPU of this UUID or with none.

    Its working directory is an empty one of its own at the path `folder`, in which, as elsewhere,
    it sees those of our `files`. Open descriptors and the environment are passed on.

    Raises:
        SystemCallFault: no filter of system calls can be made.
    """
    outside = user()
    walls = [
        *(sys.executable, "-I", "-S", str(_ENTRY), system_calls.program().hex()),
        *("" if outside is None else str(outside), bubblewrap() or "bwrap"),
        *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--unshare-cgroup-try", "--disable-userns", "--uid", _NOBODY, "--gid", _NOBODY),
        *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--hostname", "worker"),
        *("--size", str(TMP_BYTES), "--tmpfs", "/tmp"),
        *_read_only(),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(TMP_BYTES), "--tmpfs", "/dev/shm"),
    ]
    for path in filter(os.path.exists, _KEYS):
        walls += ["--ro-bind", os.devnull, path]
    for device in _devices(gpu) if gpu is not None else ():
        walls += ["--dev-bind", device, device]
    walls += ["--size", str(FOLDER_BYTES), "--tmpfs", str(folder)]
    if _kernels is not None:
        walls += ["--bind", str(_kernels), str(_kernels)]
    for file in files:
        walls += ["--ro-bind", str(file), str(file)]
    walls += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(folder)]
    return [*walls, "--", *command]


def _read_only() -> list[str]:
    """Bind what a worker reads: the system, this Python with its packages, the judge's worker."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    shown = [Path("/usr")]
    python = [sys.base_prefix, sys.prefix, *filter(os.path.isdir, sys.path)]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    tools = [os.environ.get(name, "") for name in ("TRITON_LIBCUDA_PATH", "CUDA_HOME")]
    if found := compiler():  # with its libraries: its folder's parent
        tools.append(os.path.dirname(os.path.dirname(os.path.realpath(found))))
    for name in (*python, *filter(os.path.isdir, [*libraries, *tools])):
        path = Path(os.path.abspath(name))
        # A folder above the checkout would show the answers, and so do most that lie in it.
        above = _ROOT.is_relative_to(path)
        within = path.is_relative_to(_ROOT) and not path.is_relative_to(sys.prefix)
        if above or within or any(path.is_relative_to(other) for other in shown):
            continue
        shown.append(path)
        arguments += ["--ro-bind", str(path), str(path)]
    for name in (*_SETTINGS, *(str(_ROOT / name) for name in _OWN)):
        arguments += ["--ro-bind-try", name, name]
    return arguments


def compiler() -> str | None:
    """Return the path of the C compiler that Triton calls, None where there is none."""
    known = (os.environ.get("CC"), "clang", "gcc")
    return next(filter(None, map(shutil.which, filter(None, known))), None)


@functools.cache
def _devices(uuid: str) -> list[str]:
    """Return the device nodes of one GPU, those of all where the driver does not know it."""
    nodes = [path for path in _DRIVER if os.path.exists(path)]
    for information in _GPUS.glob("*/information"):
        fields = dict(
            map(str.strip, line.split(":", 1))
            for line in information.read_text(encoding="utf-8").splitlines()
            if ":" in line
        )
        if fields.get("GPU UUID") == f"GPU-{uuid}":
            return [f"/dev/nvidia{fields['Device Minor']}", *nodes]
    return [*map(str, sorted(Path("/dev").glob("nvidia[0-9]*"))), *nodes]
