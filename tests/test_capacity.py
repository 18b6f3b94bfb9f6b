"""Cores and memory are those of the container: files of both versions of control groups."""

import os
import shutil
import subprocess
import sys

import pytest

from grader.isolate import capacity

GIB = 2**30
MEMINFO = "MemTotal: 99 kB\nMemAvailable: 8388608 kB\n"  # 8 GiB


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Lay out the files of a machine with 8 cores and 8 GiB of free memory."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))

    def lay_out(cgroup, files, meminfo=MEMINFO):
        shutil.rmtree(tmp_path, ignore_errors=True)
        for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": cgroup, **files}.items():
            if text is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return tmp_path

    return lay_out


def v2(path, *, memory=None, current=0, stat="", cpu=None):
    top = f"sys/fs/cgroup{path}"
    files = {f"{top}/cpu.max": cpu}
    if memory is not None:
        files |= {f"{top}/memory.max": memory, f"{top}/memory.current": f"{current}\n"}
        files[f"{top}/memory.stat"] = stat
    return files


STAT = "anon 1\ninactive_file 30\nactive_file 12\nslab 5 6\n"
BOX = "sys/fs/cgroup/memory/box/memory"
LIMITS = {
    "none": ("0::/\n", {}, 8.0, 8 * GIB),
    "none of version 2": ("0::/\n", v2("", memory="max\n", cpu="max 100000\n"), 8.0, 8 * GIB),
    "version 2": (
        "0::/\n",
        v2("", memory=f"{768 * 2**20}\n", current=100, stat=STAT, cpu="50000 100000\n"),
        0.5,
        768 * 2**20 - 100 + 42,
    ),
    "version 1": (
        "4:memory:/box\n2:cpu,cpuacct:/box\n0::/box\n",
        {
            f"{BOX}.limit_in_bytes": f"{768 * 2**20}\n",
            f"{BOX}.usage_in_bytes": "100\n",
            f"{BOX}.stat": "inactive_file 7\ntotal_inactive_file 30\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        },
        0.5,
        768 * 2**20 - 70,
    ),
    "none of version 1": (
        "4:memory:/\n2:cpu:/\n",
        {
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            "sys/fs/cgroup/memory/memory.stat": "",
        },
        8.0,
        8 * GIB,
    ),
    "of the groups around it": (
        "0::/a/b\n",
        v2("/a", memory=f"{GIB}\n", current=1, cpu="150000 100000\n")
        | v2("/a/b", memory=f"{3 * GIB}\n", cpu="max 100000\n"),
        1.5,
        GIB - 1,
    ),
    "at the top, of a path that only the host sees": (
        "0::/docker/0123\n",
        v2("", memory=f"{GIB}\n", cpu="50000 100000\n"),
        0.5,
        GIB,
    ),
    "that is exceeded": ("0::/\n", v2("", memory="10\n", current=12), 8.0, 0),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_those_of_the_control_groups(machine, name):
    cgroup, files, cores, free = LIMITS[name]
    root = machine(cgroup, files)
    assert (capacity.cores(root), capacity.free_bytes(root)) == (cores, free)


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (None, {}),
        ("", {}),
        ("nonsense\n0\n::\n", {}),
        ("0::/../../etc\n", {}),
        ("0::/\n", v2("", memory="lots\n", cpu="half\n")),
        ("0::/\n", v2("", memory="", cpu="")),
        ("0::/\n", v2("", memory="5\n", current=1, stat="inactive_file much\n", cpu="0 100000\n")),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 0\n"}),
    ],
)
def test_files_that_make_no_sense_limit_nothing(machine, cgroup, files):
    root = machine(cgroup, files)
    assert (capacity.cores(root), capacity.free_bytes(root)) == (8.0, 8 * GIB)


def test_a_machine_without_meminfo(machine):
    assert capacity.free_bytes(machine("0::/\n", {}, meminfo=None)) == 8 * GIB
    assert capacity.free_bytes(machine("0::/\n", {}, meminfo="MemAvailable: x kB\n")) == 8 * GIB


def test_on_this_machine_it_is_no_more_than_there_is():
    program = "from grader.isolate import capacity as c; print(c.cores(), c.free_bytes())"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    cores, free = map(float, out.split())
    assert 0 < cores <= len(os.sched_getaffinity(0)) and 0 < free < 2**50
