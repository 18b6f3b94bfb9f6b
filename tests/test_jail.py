"""The jail of an official run: it holds, and what would not is found before anything is graded."""

import ctypes
import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
import time

import pytest

from grader.base import scratch
from grader.commands import cli
from grader.isolate import inspection, jail, jail_entry, usage, warden
from grader.spec.grade_record import GradeRecord
from grader.spec.problem import ROOT
from tests import needs
from tests.shares import drawn


@pytest.fixture
def walls(monkeypatch):
    """Let `change` turn the command that makes a jail into another one."""
    needs.a_jail()
    whole = jail.enclose

    def change(alter):
        def enclose(command, folder, files, *, gpu):
            made = whole(command, folder, files, gpu=gpu)
            at = made.index("--")
            return [*alter(made[:at]), *made[at:]]

        monkeypatch.setattr(jail, "enclose", enclose)

    return change


def without(*names):
    """Leave options out, each with the arguments that stand behind it."""

    def alter(arguments):
        kept, left_out = [], False
        for argument in arguments:
            if argument.startswith("--"):
                left_out = argument in names
            if not left_out:
                kept.append(argument)
        return kept

    return alter


def also(*more):
    """Put options before the file system's root becomes read-only."""

    def alter(arguments):
        at = arguments.index("--remount-ro")
        return [*arguments[:at], *more, *arguments[at:]]

    return alter


def in_place(old, new):
    """Put another option or argument in the place of one; `--x=y` is one with an argument more."""
    return lambda arguments: [b for a in arguments for b in (new.split("=") if a == old else [a])]


def test_the_jail_holds():
    needs.a_jail()
    before = set(usage.descendants(os.getpid()))
    inspection.inspect(gpu=None)
    assert set(usage.descendants(os.getpid())) <= before
    assert "secret" not in os.listdir(scratch.folder())


HOLES = [
    ("net", without("--unshare-net"), "a network is in reach"),
    ("nested", without("--disable-userns"), "further user namespaces can be made"),
    ("root", without("--remount-ro"), "/ can be written to; /dev can be written to"),
    ("uid", in_place("65534", "0"), "it is root"),
    ("size", without("--size"), "/tmp has no limit"),
    ("caps", in_place("--cap-drop", "--cap-add"), "it has capabilities"),
    (
        "answers",
        also("--ro-bind", f"{ROOT}/solutions", f"{ROOT}/solutions"),
        "solutions is in view",
    ),
    ("ipc", without("--unshare-ipc"), "its ipc namespace is the judge's"),
    ("uts", without("--unshare-uts", "--hostname"), "its uts namespace is the judge's"),
    ("cgroup", without("--unshare-cgroup-try"), "its cgroup namespace is the judge's"),
    ("proc", in_place("--proc", "--ro-bind=/proc"), "other processes are in view"),
    ("dev", in_place("--dev", "--dev-bind=/dev"), "is in view"),
]
if os.geteuid() == 0:  # nobody else may write it anyway
    written = "/proc/sys/kernel/core_pattern can be written to"
    HOLES.append(("sys", lambda arguments: [*arguments, "--proc", "/proc"], written))


@pytest.mark.parametrize(("alter", "told"), [h[1:] for h in HOLES], ids=[h[0] for h in HOLES])
def test_a_hole_is_found(walls, alter, told):
    if told == "a network is in reach":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            try:
                one.connect(("192.0.2.1", 9))
            except OSError:
                pytest.skip("there is no network to be reached")
    walls(alter)
    with pytest.raises(inspection.JailFault, match="the jail does not hold") as fault:
        inspection.inspect(gpu=None)
    assert told in str(fault.value)


@pytest.fixture
def session():
    """Give this thread a session keyring of its own, as a login does."""
    needs.a_jail()
    libc = ctypes.CDLL(None)
    if libc.syscall(jail_entry.KEYCTL, 1, None) < 0:
        pytest.skip("there are no keyrings here")
    return libc


def test_a_session_keyring_that_jails_share_is_found(walls, session):
    walls(lambda arguments: arguments[arguments.index(jail.bubblewrap()) :])
    with pytest.raises(inspection.JailFault, match="two jails have one session keyring"):
        inspection.inspect(gpu=None)


_KEYS = f"""
import ctypes, sys
libc, keyctl = ctypes.CDLL(None), {jail_entry.KEYCTL}
add_key, search, name = keyctl - 2, 10, sys.argv[1].encode()
rings = [-3, -4, -5]  # of the session, of the user, of the user's sessions
try:
    lines = open("/proc/keys").read().splitlines()
except OSError:
    lines = []
rings += [int(line.split()[0], 16) for line in lines if " keyring " in line]
"""
_WRITES = f"{_KEYS}print(max(libc.syscall(add_key, b'user', name, b'x', 1, r) for r in rings))"
_READS = f"{_KEYS}print(max(libc.syscall(keyctl, search, r, b'user', name, 0) for r in rings))"


def test_a_key_is_found_neither_in_the_next_jail_nor_outside(tmp_path, session):
    session.syscall(jail_entry.KEYCTL, 0, -4, 0)  # the user's keyring is made when it is asked for

    def run(program, *, jailed=True):
        command = [sys.executable, "-I", "-S", "-c", program, f"test {tmp_path}"]
        command = jail.enclose(command, tmp_path, [], gpu=None) if jailed else command
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert run(_WRITES) > 0
    assert run(_READS) < 0 and run(_READS, jailed=False) < 0


@pytest.mark.parametrize(
    ("limit", "begins"), drawn([("memory", "its processes held"), ("processes", "it ran")], 2)
)
def test_a_limit_that_nobody_keeps_is_found(monkeypatch, limit, begins):
    needs.a_jail()
    whole = warden.Warden._excess

    def blind(this):
        excess = whole(this)
        return None if excess and excess.startswith(begins) else excess

    monkeypatch.setattr(warden.Warden, "_excess", blind)
    monkeypatch.setattr(inspection, "_TIMEOUT_S", 2.0)
    with pytest.raises(inspection.JailFault, match=f"the limit of {limit} is not kept"):
        inspection.inspect(gpu=None)


_KEPT = "import mmap, os, sys, time\nos.chdir(sys.argv[1])\nheld = []\n"
_NAMELESS = (
    "fd = os.open('x', os.O_CREAT | os.O_RDWR)\nos.unlink('x')\nos.posix_fallocate(fd, 0, 2**22)\n"
)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("open('x', 'wb').write(bytes(2**22))\n", "took 0.0 GiB of disk"),
        (_NAMELESS, "took 0.0 GiB of disk"),
        (
            f"{_NAMELESS}import ctypes\n"
            "ctypes.CDLL(None).mmap(None, 2**22, 1, 1, fd, 0)\nos.close(fd)\n",
            "took 0.0 GiB of disk",
        ),
        ("for n in range(20):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\n", "4 deep"),
        ("for n in range(60):\n    open(str(n), 'w').close()\n", "more than 50 files"),
        ("for n in range(60):\n    os.mkdir(str(n))\n", "more than 50 files"),
        # As Triton does: a folder is filled under another name and moved into place.
        (
            "for n in range(300):\n    os.mkdir('tmp')\n    open('tmp/x', 'wb').write(b'x')\n"
            "    os.rename('tmp', 'hash')\n    os.unlink('hash/x')\n    os.rmdir('hash')\n",
            None,
        ),
    ],
    ids=["files", "nameless", "mapped", "deep", "many", "folders", "as-triton"],
)
def test_what_is_written_as_compiled_kernels_has_limits(tmp_path, monkeypatch, program, told):
    needs.a_jail()
    folder, kernels = tmp_path / "own", tmp_path / "kernels"
    folder.mkdir()
    kernels.mkdir()
    monkeypatch.setattr(jail, "_kernels", kernels)
    monkeypatch.setattr(warden, "MOST_KERNEL_BYTES", 2**20)
    monkeypatch.setattr(warden, "MOST_KERNEL_FILES", 50)
    monkeypatch.setattr(warden, "_LOOKS_PER_MAPS", 2)
    end = "time.sleep(0.3)\n" if told is None else "time.sleep(60)\n"
    # It begins when the warden watches.
    begin = "sys.stdin.read(1)\n"
    command = [sys.executable, "-I", "-S", "-c", f"{_KEPT}{begin}{program}{end}", str(kernels)]
    child = subprocess.Popen(
        jail.enclose(command, folder, [], gpu=None), stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        first, _ = inspection._wait_for(lambda: warden.processes_of(child.pid))
        watch = warden.Warden(first, kernels=kernels)
        child.stdin.write(b"x")
        child.stdin.close()
        assert child.wait(30) == (0 if told is None else 137)
        watch.stop()
    finally:
        child.kill()
        child.wait()
        scratch.remove_tree(kernels)
    assert watch.over is None if told is None else told in watch.over


def test_a_compiler_that_does_not_work_in_the_jail_is_found(tmp_path, monkeypatch):
    needs.a_jail()
    folder = tmp_path / "folder"
    folder.mkdir()
    inspection._expect_compiler(folder)
    monkeypatch.setattr(jail, "compiler", lambda: "/usr/bin/false")
    with pytest.raises(inspection.JailFault, match="false does not work in the jail, and Triton"):
        inspection._expect_compiler(folder)
    monkeypatch.setattr(jail, "compiler", lambda: None)
    with pytest.raises(inspection.JailFault, match="install gcc, or set CC"):
        inspection._expect_compiler(folder)


UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
DRIVER = """#include <stdlib.h>
#include <string.h>
int cuInit(int flags) { return ERROR; }
int cuDeviceGetCount(int *count) {
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    *count = named && !strcmp(named, "GPU-" UUID);  /* by its number there is none in the jail */
    return 0;
}
int cuDeviceGet(int *device, int number) { return *device = 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    for (int i = 0; i < 16; i++) uuid[i] = i;
    return 0;
}
"""


@pytest.mark.parametrize(
    ("error", "gpu", "told"),
    [
        (0, UUID, None),
        (0, UUID.replace("0f", "1f"), "got nothing, expected GPU-00010203-0405"),
        (100, UUID, "got CUDA error 100"),
        (None, UUID, "got OSError: libcuda.so.1: cannot open shared object file"),
    ],
)
def test_a_gpu_that_cannot_be_used_in_the_jail_is_noticed(tmp_path, monkeypatch, error, gpu, told):
    needs.a_jail()
    folder = tmp_path / "own"
    libraries = tmp_path / "lib"
    folder.mkdir()
    libraries.mkdir()
    if error is not None:
        options = [f"-DERROR={error}", f'-DUUID="{UUID}"', "-shared", "-fPIC", "-xc", "-"]
        command = ["gcc", *options, "-o", str(libraries / "libcuda.so.1")]
        subprocess.run(command, input=DRIVER, text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    if told is None:
        inspection._expect_gpu(folder, gpu)
        return
    with pytest.raises(inspection.JailFault, match=told):
        inspection._expect_gpu(folder, gpu)


def test_a_process_that_outlives_the_jail_is_found(walls, monkeypatch):
    monkeypatch.setattr(inspection, "_GONE_S", 0.5)
    walls(without("--unshare-pid", "--disable-userns", "--die-with-parent"))
    with pytest.raises(inspection.JailFault, match="a process outlived it"):
        inspection.inspect(gpu=None)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'bwrap: Creating new namespace failed: Operation not permitted'; exit 1", "user n"),
        ("echo '{}'", "the jail"),
        ("echo '[1]'", "the jail"),
        ("exit 0", "it said nothing"),
        ("kill -9 $$", "it said nothing"),
    ],
)
def test_a_bubblewrap_that_makes_no_jail_is_told(tmp_path, monkeypatch, capsys, script, told):
    program = tmp_path / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert cli.main(["grade", "--official", "--only", "p02", "--device", "cpu"]) == 4
    out, err = capsys.readouterr()
    assert told in err and err.startswith("grader: no submission can be jailed") and not out


def test_without_bubblewrap_nothing_is_graded_for_credit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(jail.shutil, "which", lambda name: None)
    record = tmp_path / "record.json"
    options = ["grade", "--official", "--device", "cpu", "--json", str(record)]
    assert cli.main(options) == 4
    out, err = capsys.readouterr()
    assert "install the package bubblewrap" in err and not out and not record.exists()


@pytest.mark.parametrize("option", ["--quick", "--exitfirst", "--no-policy"])
def test_an_official_run_grades_everything(capsys, option):
    assert cli.main(["grade", "--official", option]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"grader: {option}") and "got it with --official" in err


def test_an_official_record_says_so(tmp_path):
    needs.a_jail()
    path = tmp_path / "record.json"
    command = [sys.executable, "-m", "grader", "grade", "--official", "--submission", "problems"]
    options = ["--only", "p02", "--device", "cpu", "--json", str(path)]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    record = GradeRecord.model_validate_json(path.read_bytes())
    assert (run.returncode, record.mode) == (1, "official")
    assert "mode official   seed" in run.stdout and "not for credit" not in run.stdout


@pytest.mark.parametrize("often", drawn([False, True], 2))
def test_a_judge_whose_processes_are_killed_blames_no_jailed_submission(tmp_path, often):
    needs.a_jail()
    path = tmp_path / "record.json"
    command = [sys.executable, "-m", "grader", "grade", "--jail", "--submission", "solutions"]
    options = ["--only", "p02", "--device", "cpu", "--quick", "--json", str(path)]
    run = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.DEVNULL)
    killed = set()
    while run.poll() is None:
        # What makes jails is a test process: its children are bubblewrap's.
        for pid in usage.descendants(run.pid):
            jails = [child for child in usage.children(pid) if command_of(child) == "bwrap"]
            if jails and command_of(pid) != "bwrap" and (often or not killed) and pid not in killed:
                time.sleep(2.0)  # until a case runs
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    (problem,) = GradeRecord.model_validate_json(path.read_bytes()).problems
    verdicts = {check.verdict for check in problem.checks}
    if often:
        assert run.returncode == 3 and len(killed) > 1
        assert "internal" in verdicts and verdicts <= {"internal", "pass", "not-measured"}
    else:
        assert run.returncode == 0 and verdicts <= {"pass", "not-measured"}
    assert problem.points.earned == problem.points.available


def command_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return None


def test_neither_answers_nor_stubs_are_in_view_whatever_python_is_told_to_search(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), str(ROOT / "problems"), "/", *sys.path])
    shown = jail._read_only()
    folders = [path for option, path in itertools.pairwise(shown) if "bind" in option]
    assert str(ROOT) not in folders and str(ROOT / "problems") not in folders
    assert "/" not in folders
