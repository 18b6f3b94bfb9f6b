"""The jail of an official run: it holds, and what would not is found before anything is graded."""

import ctypes
import itertools
import os
import socket
import subprocess
import sys

import pytest

from grader.base import scratch
from grader.commands import cli
from grader.isolate import cgroup, inspection, jail, system_calls, usage, warden
from grader.spec.problem import ROOT
from tests import needs
from tests.harness import PROMPT_S
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
    as_root = in_place(str(jail.user()), "")
    HOLES.append(("user", as_root, "/proc/sys/kernel/core_pattern can be written to"))


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


# A kernel that was built without these has none to refuse.
_ABSENT = {"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"}
_ABSENT |= {"nfsservctl", "uselib", "lookup_dcookie", "iopl", "ioperm"}


@pytest.fixture
def let_through(monkeypatch):
    """Leave some system calls out of the filter: by their names, or their numbers."""
    needs.a_jail()
    whole = system_calls._add

    def leave_out(*names):
        known = system_calls.numbers()
        left_out = {known.get(name, name.encode()) for name in names}

        def add(library, context, action, call, *rules):
            if call not in left_out:
                whole(library, context, action, call, *rules)

        monkeypatch.setattr(system_calls, "_add", add)
        system_calls.program.cache_clear()

    yield leave_out
    system_calls.program.cache_clear()


BY_ARGUMENT = {
    "socket": "socket of family 2",
    "personality": "personality",
    "prctl": "prctl, to be not dumpable",
    "clone": "clone of a user namespace",
}


@pytest.mark.parametrize("kind", [*system_calls.REFUSED, *BY_ARGUMENT])
def test_a_system_call_that_is_not_refused_is_found(let_through, tmp_path, kind):
    names = system_calls.REFUSED.get(kind, (kind,))
    let_through(*names)
    with pytest.raises(inspection.JailFault, match="the jail does not hold") as fault:
        inspection._expect_walls(tmp_path, tmp_path / "secret", gpu=None)
    found = str(fault.value).partition("the kernel does not refuse ")[2].split(", ")
    expected = BY_ARGUMENT.get(kind, "").split(", ") if kind in BY_ARGUMENT else names
    assert set(expected) - _ABSENT <= set(found)
    assert set(found) <= set(expected) or kind in BY_ARGUMENT


def test_system_calls_that_are_newer_than_the_list_are_refused(monkeypatch, tmp_path):
    needs.a_jail()
    whole = system_calls.program()
    monkeypatch.setattr(system_calls, "program", lambda: whole[3 * 8 :])
    told = r"system call 4(57|62)"  # statmount of Linux 6.8, mseal of 6.10
    if os.uname().release < "6.10" and ctypes.CDLL(None).syscall(457, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel has none")
    with pytest.raises(inspection.JailFault, match=told):
        inspection._expect_walls(tmp_path, tmp_path / "secret", gpu=None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_jail_whose_user_is_root_outside_is_found(walls, tmp_path):
    walls(in_place(str(jail.user()), ""))
    with pytest.raises(inspection.JailFault, match="its user is root outside"):
        inspection._expect_limit(tmp_path, "memory", inspection._HOG)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("may_mount", [True, False])
def test_what_only_root_may_enter_is_shown_or_told(tmp_path, may_mount):
    needs.a_jail()
    closed = tmp_path / "closed"
    inner = closed / "inner" / "closed"
    inner.mkdir(parents=True)
    (inner / "file").write_text("shown")
    (closed / "other").write_text("hidden")
    inner.chmod(0o700)
    closed.chmod(0o700)
    program = "import os; print(open('file').read(), os.listdir('../..'))"
    command = [sys.executable, "-I", "-S", "-c", program]
    command = jail.enclose(command, inner, [inner / "file"], gpu=None)
    if not may_mount:
        command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", *command]
    run = subprocess.run(command, capture_output=True, text=True)
    if may_mount:
        assert run.stdout == "shown ['inner']\n"
    else:
        assert run.returncode == 1 and run.stderr.endswith("(chmod o+x)\n")
        assert "user 65533, which root becomes in a jail, cannot reach it" in run.stderr


def test_further_namespaces_are_found(walls, let_through, tmp_path):
    walls(without("--disable-userns"))
    let_through("unshare")
    with pytest.raises(inspection.JailFault, match="further user namespaces can be made"):
        inspection._expect_walls(tmp_path, tmp_path / "secret", gpu=None)


def test_without_libseccomp_nothing_is_graded_for_credit(monkeypatch, capsys):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(system_calls.ctypes, "CDLL", absent)
    monkeypatch.setattr(jail, "bubblewrap", lambda: "bwrap")
    system_calls._library.cache_clear()
    system_calls.program.cache_clear()
    assert cli.main(["grade", "--official", "--only", "p02", "--device", "cpu"]) == 4
    out, err = capsys.readouterr()
    assert "install the package libseccomp2" in err and not out


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
    monkeypatch.setattr(cgroup, "_found", lambda _: "not in this test")
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
        ("for n in range(60):\n    open(f'/tmp/{n}', 'w').close()\n", "50 files in memory"),
        # As Triton does: a folder is filled under another name and moved into place.
        (
            "for n in range(300):\n    os.mkdir('tmp')\n    open('tmp/x', 'wb').write(b'x')\n"
            "    os.rename('tmp', 'hash')\n    os.unlink('hash/x')\n    os.rmdir('hash')\n",
            None,
        ),
    ],
    ids=["files", "nameless", "mapped", "deep", "many", "folders", "in-memory", "as-triton"],
)
def test_what_is_written_has_limits(tmp_path, monkeypatch, program, told):
    needs.a_jail()
    folder, kernels = tmp_path / "own", tmp_path / "kernels"
    folder.mkdir()
    jail._make_kernels(kernels)
    monkeypatch.setattr(jail, "_kernels", kernels)
    monkeypatch.setattr(warden, "MOST_KERNEL_BYTES", 2**20)
    monkeypatch.setattr(warden, "MOST_KERNEL_FILES", 50)
    monkeypatch.setattr(warden, "MOST_FILES", 50)
    monkeypatch.setattr(warden, "_LOOKS_PER_MAPS", 2)
    end = "time.sleep(0.3)\n" if told is None else "time.sleep(600)\n"
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
        assert child.wait(PROMPT_S) == (0 if told is None else 137)
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
    program.chmod(0o755)
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


def test_neither_answers_nor_stubs_are_in_view_whatever_python_is_told_to_search(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT), str(ROOT / "problems"), "/", *sys.path])
    shown = jail._read_only()
    folders = [path for option, path in itertools.pairwise(shown) if "bind" in option]
    assert str(ROOT) not in folders and str(ROOT / "problems") not in folders
    assert "/" not in folders
