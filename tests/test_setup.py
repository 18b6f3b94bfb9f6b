"""Set-up: what it installs is pinned with hashes, and it says what it does and what went wrong.

Nothing here is downloaded: a script plays the environment's Python, with the pip in it.
"""

import ast
import errno
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grader.commands import setup_environment as program
from grader.spec.problem import ROOT
from tests.harness import PROMPT_S

SOURCE = Path(program.__file__)
LISTS = ("requirements", "requirements-course")
INDEX = "https://index.test/cpu"
# What pip does here: $PIP, a script of the shell, with "$*" the words of its command.
PYTHON = '#!/bin/sh\n[ "$2" = venv ] && exit 0\necho "$*" >> asked\neval "$PIP"\n'


def pins(text):
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize("name", LISTS)
def test_every_pin_but_torch_has_hashes(name):
    listed = pins((ROOT / f"{name}.txt").read_text())
    lock = (ROOT / f"{name}.lock").read_text()
    listed.pop("torch", None)
    assert pins(lock) == listed, f"run the command in the head of {name}.lock"
    for package in listed:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", program.entry(lock, package)), package
    assert f"-o {name}.lock {name}.txt" in lock and "://" not in lock


def test_the_pins_are_all_that_is_needed_and_fit_together():
    listed = {}
    for name in LISTS:
        listed |= pins((ROOT / f"{name}.txt").read_text())
    for package in listed:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # an environment of one's own
        if found.version.partition("+")[0] != listed[package]:
            continue
        for line in found.requires or ():
            asked = Requirement(line)
            name = canonicalize_name(asked.name)
            if asked.marker and not asked.marker.evaluate({"extra": ""}):
                continue
            if not name.startswith(("nvidia-", "cuda-")):  # of torch for CUDA, which says which
                assert name in listed, f"{package} needs {line}"
                assert asked.specifier.contains(listed[name]), f"{package} needs {line}"


def test_an_old_python_reads_the_program_and_is_refused():
    ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 7))
    old = "import runpy, sys; sys.version_info = (3, 9, 2); sys.argv = sys.argv[1:];"
    old += " runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", old, SOURCE, "--cpu-index", INDEX]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "got Python 3.9, expected 3.11 or newer; " in done.stderr
    assert "make setup PYTHON=python3.1" in done.stderr


def test_the_newer_python_that_is_there_is_named():
    for there, said in (("python3.12", "type: "), ("", "install one, then: ")):
        with pytest.raises(program.SetupError, match=f"{said}make setup PYTHON=python3.12"):
            program.expect_python((3, 8, 1), lambda name, there=there: name == there)


def test_a_python_without_venv_names_debians_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(program.SetupError, match=r"install python3.12-venv, then"):
        program.expect_python((3, 12, 3), None)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("ERROR: [Errno 28] No space left on device: '/x'", "the disk is full: got "),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full: got "),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "got a file that is not the tested"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError"
            "('Temporary failure')'\nERROR: No matching distribution found for rich==15.0.0",
            "no connection to the package index; check the network",
        ),
        ("ERROR: No matching distribution found for rich==15.0.0", "take another Python, for exam"),
        ("ERROR: something else", "the whole output is in "),
    ],
)
def test_what_pip_says_becomes_one_sentence(said, sentence, tmp_path):
    got = program.sentence(program.Failed(said), tmp_path)
    assert sentence in got and "\n" not in got
    error = OSError(errno.EROFS, "Read-only file system", ".venv")
    assert program.sentence(error, tmp_path).startswith(".venv: Read-only file system; ")


def test_only_what_a_build_always_needs_makes_it_one_for_cuda():
    def report(*lines):
        return {"install": [{"metadata": {"requires_dist": list(lines)}}]}

    assert program.of_cuda(report("sympy", 'nvidia-nccl-cu13==2.29.7; platform_system == "Linux"'))
    assert program.of_cuda(report('cuda-toolkit[cublas]==13.0.3; platform_system == "Linux"'))
    assert not program.of_cuda(report("sympy", 'nvidia-x; extra == "all"'))
    assert not program.of_cuda({"install": [{"metadata": {}}]})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A course's folder whose environment's Python is the script above."""
    for name in ("requirements.txt", *(f"{name}.lock" for name in LISTS)):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    fake = tmp_path / "python"
    fake.write_text(PYTHON)
    fake.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(fake)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "_base_executable", str(fake))
    monkeypatch.setattr(program, "GPU_FILES", ())
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    monkeypatch.setenv("PIP", "")
    return tmp_path


def run(*words):
    return program.main(["--cpu-index", INDEX, *words])


def asked(place):
    return [line.partition(" off ")[2] for line in (place / "asked").read_text().splitlines()]


def no_cpu_build(*requires):
    """The script of a pip that has no build for the CPU, but one that requires these."""
    report = json.dumps({"install": [{"metadata": {"requires_dist": requires}}]})
    return (
        f'case "$*" in *+cpu*) exit 1;; *--report*) echo {report!r} > .venv/tmp/report.json;; esac'
    )


def test_everything_but_torch_is_installed_by_its_hash(place, capsys):
    (place / ".venv" / ".ready").touch()
    assert run() == 0
    own, peek, locks, torch, grader = asked(place)
    hashed = "--require-hashes --no-deps -r "
    assert own == hashed + ".venv/tmp/pip.lock"
    assert locks == hashed + "requirements.lock -r requirements-course.lock"
    assert torch == f"--extra-index-url {INDEX} --retries 1 torch==2.13.0+cpu"
    assert "--dry-run" in peek and peek.endswith(torch)
    assert grader == "--no-deps --no-build-isolation -e ."
    assert (place / ".venv" / ".ready").exists() and not (place / ".venv" / "tmp").exists()
    said = capsys.readouterr().out
    assert "PyTorch 2.13.0 for the CPU" in said and "ready after 0 s" in said


def test_with_a_gpu_the_default_build_is_taken(place, monkeypatch, capsys):
    monkeypatch.setattr(program, "GPU_FILES", (str(place),))
    (place / "requirements-course.lock").unlink()  # as in a release
    assert run() == 0
    assert asked(place)[1:3] == ["--require-hashes --no-deps -r requirements.lock", "torch==2.13.0"]
    assert "for CUDA (about 3 GB to download" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words", "code"),
    [
        ("n", (), 4),
        ("", (), 4),
        (EOFError, (), 4),
        ("y", (), 0),
        (None, ("--yes",), 0),
        (None, (), 0),
    ],
)
def test_gigabytes_are_asked_for_at_a_terminal_alone(
    answer, words, code, place, monkeypatch, capsys
):
    monkeypatch.setenv("PIP", no_cpu_build("nvidia-cublas"))

    def reply(question):
        assert "[y/N]" in question
        if answer is EOFError:
            raise EOFError
        return answer

    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: answer is not None)
    monkeypatch.setattr("builtins.input", reply)
    assert run(*words) == code
    out, err = capsys.readouterr()
    assert "the default build is for CUDA: about 3 GB to download" in out
    assert ("torch==2.13.0" in asked(place)) == (code == 0)
    assert ("make setup YES=1" in err) == (code == 4)
    assert ("there is no terminal to ask at" in out) == (answer is None and not words)


def test_a_default_build_without_cuda_needs_no_question(place, monkeypatch, capsys):
    monkeypatch.setenv("PIP", no_cpu_build("sympy"))
    assert run() == 0
    assert "torch==2.13.0" in asked(place) and "CUDA: about" not in capsys.readouterr().out


def test_a_failure_shows_pips_last_lines_and_leaves_nothing_ready(place, monkeypatch, capsys):
    (place / ".venv" / ".ready").touch()
    monkeypatch.setenv(
        "PIP", "seq 9; echo WARNING: x; echo ERROR: No matching distribution; exit 1"
    )
    assert run() == 4
    err = capsys.readouterr().err
    *lines, sentence = err.splitlines()
    assert lines == [f"  | {line}" for line in (6, 7, 8, 9, "ERROR: No matching distribution")]
    assert sentence.startswith("setup: the package index has no such file")
    assert not (place / ".venv" / ".ready").exists()
    assert "WARNING: x" in (place / ".venv" / "pip.log").read_text()


def test_what_is_unfinished_or_of_another_python_is_not_built_upon(place):
    setup = program.Setup(Path(".venv"), INDEX, False)
    other = place / "other"
    other.mkdir()
    (other / "mine").touch()
    (place / ".venv" / "link").symlink_to(other)
    left = place / ".venv" / "lib"
    left.mkdir()
    setup.begin()  # somebody's environment, which is used as it is
    assert left.exists()
    setup.begin()  # of a set-up that was stopped
    assert not left.exists() and (other / "mine").exists()
    for version, stays in (("{}.{}.1".format(*sys.version_info), True), ("3.2.1", False)):
        left.mkdir(exist_ok=True)
        (place / ".venv" / ".ready").touch()
        (place / ".venv" / "pyvenv.cfg").write_text(f"home = /\nversion = {version}\n")
        setup.begin()
        assert left.exists() == stays and not (place / ".venv" / ".ready").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_no_pip_behind_and_nothing_ready(number, place):
    start = "import sys; sys._base_executable, sys.argv = sys.argv[1], sys.argv[2:]; import runpy;"
    start += " runpy.run_path(sys.argv[0], run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", start, place / "python", SOURCE, "--cpu-index", INDEX],
        env=os.environ | {"PIP": "echo $$ > pid; exec sleep 600"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + PROMPT_S
    while not ((place / "pid").exists() and (place / "pid").read_text().strip()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=PROMPT_S)
    assert process.returncode == 130 and "setup: stopped; make setup starts over" in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((place / "pid").read_text()), 0)
    assert not (place / ".venv" / ".ready").exists() and not (place / ".venv" / "tmp").exists()


def test_a_log_gets_a_line_now_and_then_and_a_terminal_one_that_is_rewritten(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "tmp" / "pip-unpack-1").mkdir(parents=True)
    (tmp_path / "tmp" / "pip-unpack-1" / "a.whl").write_bytes(bytes(3_000_000))
    now = [0.0]
    monkeypatch.setattr(program.time, "monotonic", lambda: now[0])
    for terminal in (False, True):
        now[0] = 0.0
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setenv("TERM", "xterm")
        progress = program.Progress(tmp_path)
        for second in range(61):
            now[0] = float(second)
            progress.show("downloading a")
        out = capsys.readouterr().out
        line = "60 s, 3 MB downloaded, 0 MB unpacked: downloading a"
        assert line in out and (out.count("\n"), out.count("\r")) == (
            (0, 60) if terminal else (4, 0)
        )
    progress.end()
    assert (progress.downloaded, progress.downloading) == (3, 0)
