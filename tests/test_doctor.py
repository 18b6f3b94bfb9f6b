"""`make doctor`: what it finds on made-up machines, and that it runs where nothing is installed."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grader.commands.doctor import checks, command
from grader.commands.doctor.checks import ERROR, OK, WARNING
from grader.commands.doctor.command import Line, examine, render_line, render_sum
from grader.commands.doctor.machine import Machine
from grader.spec.problem import ROOT

GIB = 2**30
PINS = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
H200 = {
    "torch": "2.13.0+cu130",
    "cuda_build": "13.0",
    "triton": "3.7.1",
    "gpu": "NVIDIA H200",
    "capability": [9, 0],
    "gpu_bytes": 140 * GIB,
}
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Jan 1 00:00:00 UTC 2026\n"


class Fake(Machine):
    """A laptop without a GPU on which everything is as it should be, but for what a test says."""

    def __init__(self, **changes):
        super().__init__(Path("/course"), python=(3, 12, 3), environment={"HOME": "/home/x"})
        self.executable = "/course/.venv/bin/python"
        self.system = "linux"
        self.files = {
            "/proc/version": "Linux version 6.8.0-45-generic (buildd@lcy02)",
            "/proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
            "/course/requirements.txt": (ROOT / "requirements.txt").read_text(),
            "/course/.venv/.ready": "",
            self.python_headers(): "",
        }
        self.programs = {"gcc": "/usr/bin/gcc", "bwrap": "/usr/bin/bwrap"}
        self.versions = dict(PINS)
        self.said = {"torch": "2.13.0+cpu", "cuda_build": None, "triton": "3.7.1"}
        self.times = [5.0] * 20
        self.free = 50 * GIB
        self.locked = ()
        self.newer = ()
        for name, value in changes.items():
            known = getattr(self, name)
            if isinstance(known, dict) and name != "said":
                value = {k: v for k, v in (known | value).items() if v is not None}
            setattr(self, name, value)

    def read(self, path):
        return self.files.get(path)

    def exists(self, path):
        return path in self.files

    def is_older(self, path, other):
        return other in self.newer

    def writable(self, path):
        return path not in self.locked

    def which(self, program):
        return self.programs.get(program)

    def free_bytes(self, path):
        return self.free

    def installed(self, package):
        return self.versions.get(package)

    @property
    def found(self):
        return self.said

    def loop_ms(self, repeats):
        return self.times


def found(name, **changes):
    (line,) = (line for line in examine(Fake(**changes)) if line.name == name)
    return line


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `doctor` on a made-up machine; return exit code and output."""

    def start(machine=None, **changes):
        fake = machine or Fake(**changes)
        monkeypatch.setattr(command, "Machine", lambda root, encoding: fake)
        return command.run(None), capsys.readouterr().out

    return start


def test_a_machine_on_which_all_is_well(run):
    code, text = run()
    assert code == 0
    assert text.count("\nok ") + 1 == len(checks.CHECKS) and "->" not in text
    assert text.endswith("16 ok, 0 warnings, 0 errors: make grade works here\n")
    lines = list(examine(Fake(said=H200, files={"/dev/nvidiactl": ""})))
    assert {line.level for line in lines} == {OK}
    assert "NVIDIA H200, compute capability 9.0, 140 GiB" in str(lines)


NVIDIA = {"/dev/nvidiactl": ""}
CPU_BUILD = {"torch": "2.13.0+cpu", "cuda_build": None, "triton": "3.7.1"}
NO_TORCH = {"triton": "3.7.1", "torch_error": "OSError: libtorch_cpu.so"}
WSL = {"/proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2"}
TWO_GIB = {"/proc/meminfo": "MemTotal: 2097152 kB\nMemAvailable: 1677721 kB\n"}
LIMITED = {"/sys/fs/cgroup/memory.max": f"{2 * GIB}\n", "/sys/fs/cgroup/memory.current": "99\n"}
AMD = CPU_BUILD | {"hip_build": "6.4"}
NO_BYTECODE = CPU_BUILD | {"bytecode": False, "folder": "/site"}
CARD = {"/proc/bus/pci/devices": "0100\t10de2684\t10\t0\n"}
OLD_DRIVER = NVIDIA | {"/proc/driver/nvidia/version": DRIVER.format("535.161.08")}
NEW_DRIVER = NVIDIA | {"/proc/driver/nvidia/version": DRIVER.format("580.95.05")}
APPARMOR = {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}
TRITON_3_6 = {"triton": "3.6.0", "torch": "2.11.0+cpu"}
CASES = [
    ("gpu", {}, OK, "none: kernels run on the CPU", ""),
    ("gpu", {"files": CARD}, WARNING, "card without a driver", "nvidia.com"),
    ("gpu", {"files": NVIDIA}, WARNING, "torch cannot use it", "driver"),
    ("gpu", {"said": H200 | {"capability": [6, 1]}}, WARNING, "expected 7.5", "DEVICE=cpu"),
    ("gpu", {"said": H200 | {"capability": [7, 5]}}, WARNING, "no bf16", ""),
    ("triton", {"said": TRITON_3_6, "versions": {"numpy": "2.4.6"}}, WARNING,
     "3.6.0 with numpy 2.4.6: TRITON_INTERPRET=1 fails",
     "/course/.venv/bin/python -m pip install 'numpy<2.4'"),
    ("triton", {"said": TRITON_3_6, "versions": {"numpy": "2.3.5"}}, OK,
     "3.6.0, with numpy 2.3.5", ""),
    ("triton", {"said": CPU_BUILD | {"triton": "3.10.0"}}, WARNING, "untested", "setup"),
    ("triton", {"said": {"torch": "2.13.0", "triton_error": "ImportError: libtriton.so"}}, ERROR,
     "cannot be imported: ImportError: libtriton.so", "make clean && make setup"),
    ("torch", {"files": NVIDIA}, WARNING,
     "2.13.0+cpu is a build for the CPU: it does not use the NVIDIA GPU",
     "make clean && make setup"),
    ("torch", {"said": AMD}, WARNING, "a build for AMD's GPUs", "make clean"),
    ("torch", {"said": NO_BYTECODE}, WARNING, "without bytecode", "compileall -q -j 0 /site"),
    ("torch", {"said": NO_TORCH}, ERROR, "OSError: libtorch_cpu.so", "make clean"),
    ("torch", {"said": CPU_BUILD | {"torch": "2.9.1"}}, ERROR, "expected 2.11", "make"),
    ("torch", {"said": {"torch_error": "no module"}, "versions": {"torch": None}}, ERROR,
     "not installed", "make setup"),
    ("system", {"files": WSL}, WARNING, "neither speed nor memory can be measured", "Linux"),
    ("system", {"files": WSL, "root": Path("/mnt/c/course")}, WARNING,
     "on a Windows disk", "cp -r '/mnt/c/course' ~"),
    ("system", {"files": {"/proc/version": "Linux Microsoft"}}, ERROR, "WSL 1", "wsl --set"),
    ("system", {"system": "darwin"}, ERROR, "got darwin, expected Linux", "Linux machine"),
    ("memory", {"files": TWO_GIB}, WARNING, "1.6 GiB free of 2.0 GiB", "P=p01"),
    ("memory", {"files": LIMITED}, WARNING, "(the limit of this container)", "P=p01"),
    ("memory", {"files": {"/proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1048576 kB\n"}},
     ERROR, "1.0 GiB free of 8.0 GiB", "close other programs"),
    ("memory", {"files": {"/proc/meminfo": None}}, WARNING, "cannot be read", "ls -l"),
    ("compiler", {"programs": {"gcc": None}}, WARNING, "no gcc", "apt-get install gcc"),
    ("compiler", {"programs": {"gcc": None}, "said": H200}, ERROR,
     "no gcc: Triton needs a C compiler", "sudo apt-get install gcc"),
    ("compiler", {"environment": {"CC": "icc"}}, WARNING, "CC=icc", "unset CC"),
    ("compiler", {"files": {Fake().python_headers(): None}}, WARNING,
     "Python.h is missing", "python3-dev"),
    ("python", {"python": (3, 10, 2)}, ERROR, "got 3.10.2", "PYTHON=python3.12"),
    ("driver", {"files": OLD_DRIVER, "said": {"torch": "2.13.0", "cuda_build": "13.0"}}, WARNING,
     "535.161.08, CUDA 13 needs 580 or newer", "nvidia.com"),
    ("driver", {"files": NEW_DRIVER, "said": H200}, OK, "580.95.05", ""),
    ("bubblewrap", {"programs": {"bwrap": None}}, WARNING, "OFFICIAL=1", "apt-get"),
    ("bubblewrap", {"files": APPARMOR}, WARNING, "AppArmor", "sysctl"),
    ("disk", {"free": 0.5 * GIB}, WARNING, "0.5 GiB free", "df"),
    ("disk", {"free": 1.5 * GIB, "versions": {"torch": None}}, ERROR,
     "2 GiB are needed for the set-up", "df"),
    ("folders", {"locked": ("/course",)}, ERROR, "no write access to /course", "ls"),
    ("folders", {"locked": ("/home/x/.triton",)}, WARNING, "Triton cannot keep", "export"),
    ("terminal", {"encoding": "ANSI_X3.4-1968"}, WARNING, "expected UTF-8", "LC_ALL"),
    ("set-up", {"newer": ("/course/requirements.txt",)}, WARNING,
     ".venv is older than requirements.txt", "make setup"),
    ("set-up", {"executable": "/usr/bin/python3", "files": {"/course/.venv/.ready": None},
      "versions": {"torch": None}},
     ERROR, "there is no .venv yet", "make setup"),
    ("set-up", {"executable": "/usr/bin/python3", "files": {"/course/.venv/.ready": None}}, OK,
     "the packages of this Python are used", ""),
    ("set-up", {"executable": "/usr/bin/python3"}, WARNING, "not the one of .venv", "make doctor"),
    ("set-up", {"files": {"/course/.venv/.ready": None}}, ERROR, "not finished", "make clean"),
    ("packages", {"versions": {"pydantic": None}}, ERROR, "not installed: pydantic", "make setup"),
    ("packages", {"versions": {"torch": "2.12.0"}}, WARNING,
     "torch 2.12.0 (tested: 2.13.0)", "make"),
    ("variables", {"environment": {"TRITON_INTERPRET": "1"}}, WARNING,
     "in the interpreter", "unset"),
    ("variables", {"environment": {"PYTHONPATH": "/x"}}, WARNING, "PYTHONPATH", "unset PYTHONPATH"),
    ("variables", {"environment": {"CUDA_VISIBLE_DEVICES": ""}, "files": NVIDIA}, WARNING,
     "hides the GPU", "unset CUDA_VISIBLE_DEVICES"),
    ("clock", {"times": [5.0] * 15 + [9.0] * 5}, WARNING, "1.80 times", "close other"),
    ("clock", {"times": [5.0] * 15 + [5.2] * 5}, OK, "1.04 times", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "level", "text", "remedy"), CASES)
def test_each_subject(name, changes, level, text, remedy):
    line = found(name, **changes)
    assert line.level == level, line
    assert text in line.found
    assert remedy in line.remedy and bool(line.remedy) == (level != OK)


def test_an_error_is_exit_code_4_and_a_warning_is_none(run):
    code, text = run(programs={"bwrap": None})
    assert code == 0 and "1 warning, 0 errors" in text
    code, text = run(said=NO_TORCH)
    assert code == 4 and "1 error: fix the errors from the top down" in text


def test_what_goes_wrong_while_looking_is_a_line_and_no_traceback(run):
    class Broken(Fake):
        def free_bytes(self, path):
            raise PermissionError(13, "Permission denied")

    code, text = run(Broken())
    assert code == 0 and "15 ok, 1 warning" in text
    assert "\nwarning  disk        could not be looked at: PermissionError" in text


def test_lines_fit_80_columns_and_nothing_in_them_moves_the_cursor():
    evil = Line(
        "torch", ERROR, "cannot be \x1b[2Jimported: " + "word " * 40 + "\u202e\n", "make setup"
    )
    for color in (False, True):
        text = render_line(evil, color=color)
        assert "[2J" in text and "\x1b[2J" not in text and "\u202e" not in text
        assert all(len(row) <= 80 + 10 * color for row in text.splitlines())
        assert text.rstrip().endswith("-> make setup")
    assert render_sum([evil]).strip().startswith("0 ok, 0 warnings, 1 error")


def test_imports_that_end_the_process_are_told(tmp_path):
    (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
    variables = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
    line = checks.torch(Machine(ROOT, environment=variables))
    assert line[0] == ERROR and "died with signal 6" in line[1]
    (tmp_path / "torch.py").write_text("raise ImportError('no libcudart')\n")
    (tmp_path / "triton.py").write_text("")
    broken = Machine(ROOT, environment=variables)
    assert broken.found["torch_error"] == "ImportError: no libcudart"


def test_it_runs_where_no_package_is_installed():
    """`-S` hides what is installed beside the standard library."""
    code = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1));"
    code += "runpy.run_module('grader', run_name='__main__', alter_sys=True)"

    def start(*arguments):
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, str(ROOT), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    done = start("doctor")
    assert (done.returncode, done.stderr) == (4, "")
    assert "error    packages    not installed: torch, triton" in done.stdout
    done = start("grade")
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "is not installed for" in done.stderr and "make setup" in done.stderr
    done = start("doctor", "--what")
    assert done.returncode == 2


READ_BY_ANY = ("machine", "checks", "command", "__init__")


def test_an_old_python_gets_to_the_line_that_says_so():
    room = [f"commands/doctor/{name}.py" for name in READ_BY_ANY]
    base = ["base/__init__.py", "base/stdout.py"]
    for name in [*room, *base, "commands/__init__.py", "__init__.py", "__main__.py"]:
        text = (ROOT / "grader" / name).read_text(encoding="utf-8")
        tree = ast.parse(text, feature_version=(3, 8))
        imports = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        ours = {m for m in imports if m.startswith("grader")} - {"grader.commands.cli"}
        known = {f"grader.commands.doctor.{module}" for module in READ_BY_ANY}
        assert ours <= {*known, "grader.base"}, name


def test_this_machine():
    machine = Machine(ROOT)
    times = machine.loop_ms(3)
    assert len(times) == 3 and min(times) > 0
    assert machine.installed("torch") and machine.installed("no-such-package") is None
    assert machine.read("/no/such") is None and machine.writable("/tmp/new/folder")
    assert machine.free_bytes(str(ROOT)) > 0
