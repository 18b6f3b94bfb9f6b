"""What starts a run of `make watch`: saves of every kind, polls, network file systems."""

import os
import time
from pathlib import Path

import pytest

from grader.commands.watch import saves
from grader.commands.watch.saves import Saves, file_system, is_remote


@pytest.mark.parametrize("polls", [False, True])
def test_what_is_done_to_the_file_rings(tmp_path, polls, monkeypatch):
    monkeypatch.setattr(saves, "POLL_S", 0.1)
    path = tmp_path / "folder" / "a.py"
    path.parent.mkdir()
    path.write_text("one")
    rings = []
    watched = Saves(path, lambda: rings.append(1), polls=polls)
    watched.take()
    assert not watched.changed() and not rings

    def rang():
        deadline = time.monotonic() + 3.0
        while not rings and time.monotonic() < deadline:
            time.sleep(0.01)
        heard, changed = bool(rings), watched.changed()
        time.sleep(0.05 if not polls else saves.POLL_S * 1.2)  # what belongs to the same change
        rings.clear()
        watched.take()
        return heard and changed

    def older():
        path.write_text("two")  # as long as before
        os.utime(path, (1, 1))

    def replaced():
        (tmp_path / "b").write_text("two")
        os.utime(tmp_path / "b", (1, 1))
        os.replace(tmp_path / "b", path)

    try:
        time.sleep(0.1)
        for step in (older, replaced, path.unlink, lambda: path.write_text("three")):
            step()
            assert rang(), step
        path.parent.rename(tmp_path / "gone")
        assert watched.changed() and watched.state() is None
        path.parent.mkdir()
        assert watched.changed()
        watched.take()
        rings.clear()
        path.write_text("four")
        assert rang()
    finally:
        watched.close()


def test_reading_the_file_rings_nothing(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("one")
    rings = []
    watched = Saves(path, lambda: rings.append(1), polls=False)
    watched.changed()
    path.read_text()
    time.sleep(0.2)
    watched.close()
    assert not rings


def test_a_machine_without_watches_left_is_looked_at(tmp_path, monkeypatch):
    class Full:
        def schedule(self, *_, **__):
            raise OSError(28, "inotify watch limit reached")

        def stop(self):
            pass

        def join(self, timeout):
            raise RuntimeError("cannot join thread before it is started")

    monkeypatch.setattr(saves, "Observer", Full)
    path = tmp_path / "a.py"
    watched = Saves(path, lambda: None, polls=False)
    watched.take()
    watched.changed()
    assert "inotify watch limit reached" in watched.trouble
    path.write_text("one")
    assert watched.changed()


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /home/a\\040b rw - nfs4 server:/home rw
31 30 0:31 / /home/a\\040b/local rw - xfs /dev/b rw
damaged
40 22 0:40 / /mnt/c rw - 9p drvfs rw
"""


def test_network_file_systems_are_told_by_their_mounts(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    kinds = {
        "/home/a b/p02": "nfs4",
        "/home/a b/local/p02": "xfs",
        "/mnt/c/p02": "9p",
        "/mnt/cc/p02": "ext4",
    }
    for path, kind in kinds.items():
        assert file_system(Path(path), mounts) == kind
    assert file_system(Path("/x"), tmp_path / "none") == ""
    for kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "drvfs", "vboxsf", "fuse.sshfs", "virtiofs"):
        assert is_remote(kind)
    for kind in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", ""):
        assert not is_remote(kind)
    assert file_system(tmp_path)
