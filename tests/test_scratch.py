"""The folder for temporary files: gone at the end, swept up after a kill, and no other goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.base import scratch
from grader.spec.problem import ROOT

FOLDER = "from grader.base import scratch\npath = scratch.folder()\nprint(path, flush=True)\n"


def run_python(text, folder):
    """Run `text` in a process that has a scratch folder in `folder`; return what it prints."""
    env = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FOLDER + text]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError", "os.kill(0, 2)"])
def test_the_scratch_folder_goes_when_its_process_ends(tmp_path, end):
    text = f"import os, sys\nos.setsid()\nopen(path / 'file', 'w').close()\n{end}\n"
    (path,) = run_python(text, tmp_path)
    assert path.startswith(f"{tmp_path}/grader-") and not os.path.exists(path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_a_killed_process_left_is_swept_up_by_the_next(tmp_path):
    text = "import os\nopen(path / 'file', 'w').close()\nos.kill(os.getpid(), 9)\n"
    (left,) = map(Path, run_python(text, tmp_path))
    assert (left / "file").exists()
    assert left.stat().st_mode & 0o077 == 0
    run_python("", tmp_path)
    assert os.listdir(tmp_path) == []


def test_only_folders_of_dead_processes_are_swept(tmp_path):
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    mine = f"grader-{os.getpid()}-{started}-abc"
    reused = f"grader-{os.getpid()}-1-abc"  # another process had this number
    elsewhere = f"grader-{os.getpid()}-1-7_abc"  # of a container that shares the folder
    precious = tmp_path / "precious"
    for name in (
        mine,
        reused,
        elsewhere,
        "precious",
        "grader-mine",
        "grader-1-2-3-4",
        "grader-x-1-abc",
    ):
        (tmp_path / name).mkdir()
    (precious / "file").touch()
    (tmp_path / "grader-4194303-1-abc").symlink_to(precious)
    (tmp_path / "grader-4194303-1-abd").touch()
    run_python("", tmp_path)
    left = set(os.listdir(tmp_path))
    assert {mine, elsewhere, "precious", "grader-mine", "grader-1-2-3-4", "grader-x-1-abc"} <= left
    assert reused not in left
    assert (precious / "file").exists()


def test_a_forked_child_leaves_its_parents_folder_alone(tmp_path):
    text = "import os, sys\nif os.fork() == 0:\n    sys.exit()\nos.wait()\nprint(path.exists())\n"
    assert run_python(text, tmp_path)[1] == "True"


def deep(folder):
    """A thousand folders and more one inside the other: no path is as long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def locked(folder):
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").touch()
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0)


def linked(folder):
    (folder / "a").mkdir()
    for name in ("link", "a/link"):
        (folder / name).symlink_to(folder.parent / "precious")
    (folder / "dangling").symlink_to(folder.parent / "none")
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize("fill", [deep, locked, linked])
def test_a_folder_goes_whatever_a_submission_put_there(tmp_path, fill):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    fill(folder)
    scratch.remove_tree(folder)
    assert os.listdir(tmp_path) == ["precious"]
    assert (precious / "file").exists()


def test_a_link_in_the_place_of_a_folder_leads_nowhere(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    mode = precious.stat().st_mode
    folder = tmp_path / "folder"
    folder.symlink_to(precious)
    scratch.remove_tree(folder)
    assert (precious / "file").exists() and precious.stat().st_mode == mode
    assert os.listdir(tmp_path) == ["precious"]


def test_a_folder_that_is_not_there_is_no_fault(tmp_path):
    scratch.remove_tree(tmp_path / "none")
    (tmp_path / "file").touch()
    scratch.remove_tree(tmp_path / "file")
