"""What a worker and all that it started used, and that nothing it left behind lives on.

The workers here are a few lines that burn CPU time or take memory in every way they can think of.
"""

import os
import subprocess
import sys
import time

import pytest

from grader.isolate import reaper, usage
from grader.isolate.usage import CpuTime, PeakMemory, Tree
from grader.timing.stopwatch import CallFailed, see_alone
from tests.harness import PROMPT_S, alive

PRELUDE = """
import os, signal, sys, threading, time

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def take(mebibytes, seconds=0.0):
    memory = bytearray(mebibytes * 2**20)
    memory[::4096] = b"x" * len(memory[::4096])
    time.sleep(seconds)
    return memory

def keep(mebibytes):
    global kept
    kept = take(mebibytes)

def forked(work, *, daemon=False, lives=False, waits=False):
    reader, writer = os.pipe()
    if os.fork() == 0:
        if daemon:
            os.setsid()
            if os.fork():
                os._exit(0)
        work()
        if lives:
            os.write(writer, b"x")
            time.sleep(600)
        os._exit(0)
    os.close(writer)
    os.read(reader, 1)
    if waits or daemon:
        os.wait()
    time.sleep(0.02)

def in_threads(work):
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

print("ready", flush=True)
input()
"""
WAYS = {
    "the worker itself": "burn(0.2)",
    "threads": "in_threads(lambda: burn(0.1))",
    "a child that lives on": "forked(lambda: burn(0.2), lives=True)",
    "a child that was waited for": "forked(lambda: burn(0.2), waits=True)",
    "a child that died and was not waited for": "forked(lambda: burn(0.2))",
    "a child's threads": "forked(lambda: in_threads(lambda: burn(0.1)), lives=True)",
    "a child's child": "forked(lambda: forked(lambda: burn(0.2), lives=True), lives=True)",
    "a daemon": "forked(lambda: burn(0.2), daemon=True, lives=True)",
    "a daemon that died": "forked(lambda: burn(0.2), daemon=True)",
    "a daemon's child": "forked(lambda: forked(lambda: burn(0.2)), daemon=True, lives=True)",
    "a child that nobody can wait for": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "forked(lambda: burn(0.2))",
}


@pytest.fixture
def start():
    """Start a worker that waits for a line, does its work, says so, and waits again."""
    workers = []

    def start_worker(text):
        worker = reaper.start(
            [sys.executable, "-c", f"{PRELUDE}{text}\nprint('done', flush=True)\ninput()\n"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        workers.append(worker)
        assert worker.stdout.readline() == "ready\n"
        return worker

    yield start_worker
    for worker in workers:
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()
        reaper.ended(worker)


def work(worker):
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "done\n"


@pytest.mark.parametrize("way", WAYS)
def test_cpu_time_is_counted_whoever_spends_it(start, way):
    worker = start(WAYS[way])
    with CpuTime(Tree(worker.pid, reaper.started)) as spent:
        work(worker)
    assert 0.18 < spent.seconds < 0.38  # twice would be 0.4


def test_time_of_the_dead_still_counts_when_they_are_buried(start):
    worker = start("forked(lambda: burn(0.1), daemon=True)\nburn(0.1)")
    tree = Tree(worker.pid, reaper.started)
    with CpuTime(tree) as spent:
        work(worker)
        for orphan in tree.pids()[1:]:
            os.waitpid(orphan, 0)
    assert tree.pids() == [worker.pid]
    assert 0.18 < spent.seconds < 0.38  # twice would be 0.4


def test_neither_time_that_passes_nor_that_of_others_is_cpu_time_of_the_worker(start):
    neighbour = start("burn(0.2)")
    worker = start("time.sleep(0.2)\nforked(lambda: time.sleep(0.1), lives=True)")
    tree = Tree(worker.pid, reaper.started)
    with CpuTime(tree) as spent:
        work(neighbour)
        work(worker)
    assert spent.seconds < 0.15
    assert neighbour.pid not in tree.pids()


MEMORY = {
    "taken and kept": "keep(64)",
    "taken and given back": "take(64)",
    "and its own mark reset": "take(64, 0.4)\nopen('/proc/self/clear_refs', 'w').write('5')",
    "by a child": "forked(lambda: take(64, 0.4), waits=True)",
    "by a daemon": "forked(lambda: take(64, 0.4), daemon=True)",
    "by both, together": "forked(lambda: keep(32), lives=True)\ntake(32)",
}


@pytest.mark.parametrize("way", MEMORY)
def test_peak_memory_sees_what_was_taken(start, way):
    worker = start(MEMORY[way])
    with PeakMemory(Tree(worker.pid, reaper.started)) as memory:
        work(worker)
    taken = (memory.peak_bytes - memory.before_bytes) / 2**20
    assert 60 < taken < 90


def test_pages_of_a_file_are_not_memory_that_was_taken(start, tmp_path):
    (tmp_path / "library").write_bytes(bytes(64 * 2**20))
    worker = start(
        f"import mmap\nfile = open({str(tmp_path / 'library')!r}, 'rb')\n"
        "pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nlen(pages[::4096])"
    )
    with PeakMemory(Tree(worker.pid, reaper.started)) as memory:
        work(worker)
    assert memory.peak_bytes - memory.before_bytes < 4 * 2**20


def test_memory_that_was_taken_before_is_not_counted_again(start):
    worker = start("keep(8)")
    with PeakMemory(Tree(worker.pid, reaper.started)) as memory:
        work(worker)
    before = memory.before_bytes
    with PeakMemory(Tree(worker.pid, reaper.started)) as memory:
        time.sleep(0.02)
    assert memory.before_bytes > before
    assert memory.peak_bytes - memory.before_bytes < 2**20


def test_what_does_not_exist_uses_nothing():
    tree = Tree(2**22 + 1, reaper.started)
    assert tree.resident_bytes() == 0 and usage.children(2**22 + 1) == []
    with PeakMemory(tree) as memory:
        pass
    assert memory.peak_bytes == 0


CHAIN = """
import os, sys, time
folder, count = sys.argv[1], int(sys.argv[2])

def watch(number):
    # Each has written who it is; it starts its neighbour anew when that one is gone.
    while True:
        open(f"{folder}/{number}", "w").write(str(os.getpid()))
        open(f"{folder}/seen", "a").write(f"{os.getpid()}\\n")
        neighbour = (number + 1) % count
        while True:
            try:
                os.kill(int(open(f"{folder}/{neighbour}").read() or 0) or os.getpid(), 0)
            except ProcessLookupError:
                if os.fork() == 0:
                    os.setsid()
                    number = neighbour
                    break
            except (FileNotFoundError, ValueError):
                pass

for number in range(count):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            watch(number)
        os._exit(0)
while len([name for name in os.listdir(folder) if name.isdigit()]) < count:
    time.sleep(0.01)
"""


def test_daemons_that_start_each_other_anew_are_all_killed(tmp_path):
    command = [sys.executable, "-c", CHAIN, str(tmp_path), "4"]
    worker = reaper.start(command, start_new_session=True)
    worker.wait(PROMPT_S)
    begin = time.monotonic()
    reaper.ended(worker)
    assert time.monotonic() - begin < PROMPT_S
    seen = {int(pid) for pid in (tmp_path / "seen").read_text().split()}
    assert len(seen) >= 4
    time.sleep(0.2)
    assert not [pid for pid in seen if alive(pid)]
    assert len((tmp_path / "seen").read_text().split()) >= 4


def test_the_judges_own_children_are_left_alone():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = reaper.start(command, start_new_session=True)
    helper = subprocess.Popen(command)  # of this session: a library's, and not a submission's
    try:
        reaper.kill_orphans()
        assert alive(started.pid) and alive(helper.pid)
        started.kill()
        started.wait()
        reaper.ended(started)
        assert alive(helper.pid)
    finally:
        helper.kill()
        helper.wait()


def test_a_call_beside_which_processes_ran_is_not_measured():
    watch = CpuTime(Tree(os.getpid(), list))
    with watch:
        child = subprocess.Popen(["sleep", "0.2"])
        child.wait()
    assert watch.most_processes > 1
    with pytest.raises(CallFailed, match="other processes"):
        see_alone(watch)
