"""Groups that limit memory: where they can be made, and one that does not limit is found.

The folders here are plain ones: what the kernel makes of them is seen where it has such groups.
"""

import os
import shutil

import pytest

from grader.commands import cli
from grader.isolate import cgroup, inspection, warden
from grader.judge.surroundings import memory_of_a_jail
from tests import needs


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """A folder like that of a container with this process alone, and nothing that limits it."""
    folder = tmp_path / "cgroup"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    (folder / "cgroup.subtree_control").write_text("")
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    monkeypatch.setattr(cgroup, "MOUNTED", folder)
    # As the kernel does it: the files of a group are no reason to keep it.
    monkeypatch.setattr(cgroup.Path, "rmdir", shutil.rmtree)
    read_text = cgroup.Path.read_text

    def read(path, *how, **options):
        if str(path) == "/proc/self/cgroup":
            return "4:memory:/elsewhere\n0::/\n"
        return read_text(path, *how, **options)

    monkeypatch.setattr(cgroup.Path, "read_text", read)
    cgroup._found.cache_clear()
    yield folder
    cgroup._found.cache_clear()


def test_the_judge_moves_into_a_group_below_and_each_jail_has_one(mounted):
    assert memory_of_a_jail() == ()
    assert (mounted / cgroup.OWN / "cgroup.procs").read_text() == str(os.getpid())
    assert (mounted / "cgroup.subtree_control").read_text() == "+memory"
    group = cgroup.Group([os.getpid()], 4 * 2**30)
    written = {path.name: path.read_text() for path in group._folder.iterdir()}
    assert written == {
        "memory.max": str(4 * 2**30),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.procs": str(os.getpid()),
    }
    assert group._folder.parent == mounted and not group.is_over()
    (group._folder / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert group.is_over()
    group.close()
    assert not group._folder.exists()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("cgroup.controllers", "cpu pids\n", "cannot limit memory"),
        ("cgroup.controllers", None, "no control groups of version 2"),
        ("cgroup.procs", "{own}\n1\n0\n", "2 processes that are not the judge's"),
        ("cgroup.subtree_control", None, "is not the judge's to divide"),
    ],
)
def test_where_no_group_can_be_made_the_report_says_why(mounted, name, text, told):
    if os.getsid(1) == os.getsid(0):
        pytest.skip("process 1 is of this session")
    (mounted / name).unlink()
    if text is not None:
        (mounted / name).write_text(text.format(own=os.getpid()))
    before = {path: path.read_text() for path in mounted.iterdir()}
    (note,) = memory_of_a_jail()
    assert note.startswith("memory of a jail is watched, and not limited by a control group: ")
    assert told in note
    with pytest.raises(cgroup.NoGroup):
        cgroup.Group([], 1)
    assert {path: path.read_text() for path in mounted.iterdir()} == before


def test_what_cannot_be_enabled_is_left_as_it_was(mounted, monkeypatch):
    write = cgroup._write

    def refuse(path, value):
        if path.name == "cgroup.subtree_control":
            raise OSError(16, "Device or resource busy")
        write(path, value)

    monkeypatch.setattr(cgroup, "_write", refuse)
    assert "Device or resource busy" in cgroup.limits()
    assert (mounted / "cgroup.procs").read_text() == str(os.getpid())
    assert not (mounted / cgroup.OWN).exists()


@pytest.fixture
def a_jail():
    needs.a_jail()


def test_a_group_that_does_not_limit_ends_a_grading(a_jail, mounted, monkeypatch, capsys):
    monkeypatch.setattr(inspection, "_expect_walls", lambda *_, **__: None)
    monkeypatch.setattr(inspection, "_expect_limit", lambda *_: None)
    monkeypatch.setattr(inspection, "_GONE_S", 1.0)
    assert cli.main(["grade", "--official", "--only", "p02", "--device", "cpu"]) == 4
    assert "its control group does not limit its memory" in capsys.readouterr().err


def test_what_the_kernel_ended_says_so(mounted):
    watch = warden.Warden(os.getpid())
    (watch._group._folder / "memory.events").write_text("oom_kill 1\n")
    watch.stop()
    assert watch.over.startswith("its processes held more than ")
