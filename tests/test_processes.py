"""The judge's own child processes: what they are asked, what is heard of them, and how they end.

The children here are a few lines each; they do what a pytest or a measuring process might do.
"""

import json
import os
import resource
import signal
import threading
import time

import pytest

from grader.isolate import processes
from grader.isolate.pipe import EventPipe
from grader.isolate.processes import Children, Ending
from tests.harness import PROMPT_S, alive

PRELUDE = """
import json, os, signal, subprocess, sys, time
fds = {a.partition("=")[0]: int(a.partition("=")[2]) for a in sys.argv if "-fd=" in a}

def say(text):
    os.write(fds["--events-fd"], text.encode() + b"\\n")

def asked():
    with os.fdopen(fds["--request-fd"]) as file:
        return file.read()

def daemon():
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            os.close(fds["--events-fd"])
            time.sleep(600)
        say(str(pid))
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a child whose program is PRELUDE and `text`; return its lines and how it ended."""
    monkeypatch.setattr(processes, "ROOT", tmp_path)

    def start(text, request="", deadline_s=PROMPT_S):
        (tmp_path / "child.py").write_text(PRELUDE + text)
        ending = Ending()
        lines = Children().events("child", ["--plain"], request, deadline_s, ending)
        return [line.decode() for line in lines], ending

    return start


def test_whole_lines_arrive_in_order_however_they_were_written(run):
    lines, ending = run(
        "say('one')\nos.write(fds['--events-fd'], b'tw')\ntime.sleep(0.1)\n"
        "os.write(fds['--events-fd'], b'o\\nthree\\n\\nfive\\nhalf a line')\nsys.exit(3)\n"
    )
    assert lines == ["one", "two", "three", "", "five"]
    assert (ending.exit_code, ending.regular) == (3, True)


def test_a_request_is_read_from_a_file_without_a_name_and_stands_nowhere_else(run):
    secret = "5eed0123456789abcdef" + "é" * 100_000
    lines, _ = run(
        "link = os.readlink(f'/proc/self/fd/{fds[\"--request-fd\"]}')\n"
        "command = open('/proc/self/cmdline').read()\n"
        "say(json.dumps([asked(), link, command, dict(os.environ)]))\n",
        request=secret,
    )
    request, link, command, environment = json.loads(lines[0])
    assert request == secret
    assert link.startswith("/memfd:")
    assert "5eed" not in command and "--plain" in command
    assert not [value for value in environment.values() if "5eed" in value]


def test_a_child_has_no_variable_that_changes_pytest_or_triton(run, monkeypatch):
    for name in ("PYTEST_ADDOPTS", "TRITON_INTERPRET", "PYTHONSTARTUP", "PYTHONINSPECT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HARMLESS", "1")
    lines, _ = run("say(' '.join(os.environ))\n")
    names = lines[0].split()
    assert "HARMLESS" in names and "PYTHONDONTWRITEBYTECODE" in names
    names.remove("PYTEST_DISABLE_PLUGIN_AUTOLOAD")  # the judge's own
    assert not [n for n in names if n.startswith(("PYTEST_", "TRITON_", "PYTHONST", "PYTHONI"))]


@pytest.mark.parametrize(
    ("text", "code", "regular"),
    [
        ("pass", 0, True),
        ("sys.exit(1)", 1, True),
        ("os._exit(0)", 0, True),
        ("raise ValueError", 1, True),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, False),
        ("os.abort()", -6, False),
    ],
)
def test_an_ending_says_whether_the_child_came_to_it_by_itself(run, text, code, regular):
    _, ending = run(text + "\n")
    assert (ending.exit_code, ending.regular) == (code, regular)
    assert not ending.timed_out and not ending.silent


def test_only_the_end_of_what_a_child_prints_is_kept(run):
    _, ending = run(
        "for _ in range(100):\n    os.write(1, b'x' * 65536)\n"
        "os.write(2, b'\\xff\\xfe\\nthe ' + b'e' * 300 + b'nd\\n\\n')\n"
    )
    assert len(ending.output) <= 64 * 1024
    assert ending.last_line == "e" * 198 + "nd"
    assert Ending().last_line == "no output"


def test_a_line_without_end_fills_no_memory_and_hides_no_later_line(run):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines, _ = run(
        "for _ in range(1000):\n    os.write(fds['--events-fd'], b'x' * 65536)\n"
        "say('')\nsay('end')\n"
    )
    assert lines[-1] == "end"
    assert sum(map(len, lines)) < 2 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


@pytest.mark.parametrize("text", ["time.sleep(600)", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_child_that_is_not_heard_of_is_ended(run, monkeypatch, text):
    monkeypatch.setattr(processes, "SILENCE_S", 1.5)
    begin = time.monotonic()
    lines, ending = run(f"say('begin')\n{text}\n")
    assert lines == ["begin"]
    assert ending.silent and not ending.timed_out and not ending.regular
    assert 0.5 < time.monotonic() - begin < PROMPT_S


def test_a_child_that_shows_signs_of_life_is_not(run, monkeypatch):
    monkeypatch.setattr(processes, "SILENCE_S", 4.0)
    lines, ending = run("for _ in range(6):\n    time.sleep(0.8)\n    say('alive')\n")
    assert len(lines) == 6 and ending.regular


@pytest.mark.parametrize("pause", ["time.sleep(0.2)", "pass"])
def test_signs_of_life_do_not_move_the_deadline(run, pause):
    begin = time.monotonic()
    loop = f"    while True:\n        say('alive')\n        {pause}\n"
    # The judge may close the pipe before its signal arrives.
    script = f"try:\n{loop}except BrokenPipeError:\n    time.sleep(600)\n"
    _, ending = run(script, deadline_s=0.7)
    assert ending.timed_out and ending.exit_code == -signal.SIGKILL
    assert time.monotonic() - begin < PROMPT_S


def test_a_child_that_said_all_and_does_not_end_is_ended(run, monkeypatch):
    monkeypatch.setattr(processes, "SILENCE_S", 1.5)
    lines, ending = run("say('all')\nos.close(fds['--events-fd'])\ntime.sleep(600)\n")
    assert lines == ["all"]
    assert ending.exit_code == -signal.SIGKILL and not ending.regular


def test_stopping_lets_children_end_by_themselves_and_ends_those_that_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setattr(processes, "GRACE_S", 4.0)
    children = Children()
    handlers = {"deaf": "signal.SIG_IGN", "polite": "lambda *_: sys.exit(7)"}
    endings, lines = {}, {}
    for name, handler in handlers.items():
        text = f"signal.signal(signal.SIGINT, {handler})\nsay('ready')\ntime.sleep(600)\n"
        (tmp_path / f"{name}.py").write_text(PRELUDE + text)
        endings[name] = Ending()
        lines[name] = children.events(name, [], "", PROMPT_S, endings[name])
        assert next(lines[name]) == b"ready"
    begin = time.monotonic()
    children.stop()
    assert time.monotonic() - begin < PROMPT_S
    assert [list(rest) for rest in lines.values()] == [[], []]
    assert endings["polite"].exit_code == 7
    assert endings["deaf"].exit_code == -signal.SIGKILL


def test_a_reader_that_goes_away_takes_the_child_along(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    (tmp_path / "child.py").write_text(PRELUDE + "say(str(os.getpid()))\ntime.sleep(600)\n")
    ending = Ending()
    lines = Children().events("child", [], "", PROMPT_S, ending)
    pid = int(next(lines))
    lines.close()
    assert not alive(pid) and ending.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("end", ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_daemon_that_a_child_left_behind_is_killed(run, end):
    lines, ending = run(f"daemon()\n{end}\n")
    assert ending.exit_code in (0, -9)
    assert not alive(int(lines[0]))


def test_no_descriptor_is_left_open(run):
    run("pass\n")
    before = len(os.listdir("/proc/self/fd"))
    for text in ("say('x')\n", "os.abort()\n"):
        run(text)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pipe_carries_whole_lines_from_any_thread_and_signs_of_life():
    read, write = os.pipe()
    pipe = EventPipe(write, b"alive\n")
    assert not os.get_inheritable(write)
    texts = [bytes([65 + i]) * 9000 + b"\n" for i in range(8)]
    threads = [
        threading.Thread(target=lambda t=t: [pipe.send(t) for _ in range(20)]) for t in texts
    ]
    for thread in threads:
        thread.start()
    heard = b""
    deadline = time.monotonic() + PROMPT_S
    while heard.count(b"\n") < 161 and time.monotonic() < deadline:  # the last is a sign of life
        heard += os.read(read, 65536)
    lines = heard.splitlines(keepends=True)
    assert {line for line in lines} == {*texts, b"alive\n"}
    assert all(lines.count(text) == 20 for text in texts)
    os.close(read)
    pipe.send(b"nobody listens\n")  # `write` stays open: the pipe has it to the process's end
