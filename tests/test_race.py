"""`make race`: what is timed, what it prints, and what it says where nothing can be timed."""

import dataclasses
import itertools
import re
from types import SimpleNamespace

import pytest
import torch

import reference
from grader.commands.race import command as race_command
from grader.commands.race import racing
from grader.commands.race.command import Race, Recorded, recorded, render
from grader.isolate.sandbox import Sandbox
from grader.spec.findings import Lane, MeasureRequest, Phase, Raced, SourceFile, write_event
from grader.spec.grade_record import Chip
from grader.spec.problem import load_problem
from grader.spec.problem_tables import BenchmarkTable
from grader.spec.roofline import roof
from reference import library
from tests.environments import CPU, H200
from tests.forked import forked_workers
from tests.harness import model_answer
from tests.records import write_answers
from tests.shares import drawn
from tests.test_measure import hurried

CHIP = Chip(multiprocessors=132, clock_mhz=1980, memory_clock_mhz=3201, memory_bus_bits=6016)
GPU = H200.model_copy(update={"capability": (9, 0), "chip": CHIP, "device_uuid": "a-test"})
P04 = load_problem("p04")
SHAPE = str(P04.benchmarks_on("cuda")[0])
NAIVE = Lane(name="naive PyTorch", ms=16.9, spread_percent=1.0)
SDPA = Lane(name="SDPA, cuDNN", ms=0.336, spread_percent=2.0)
YOURS = Lane(name="your answer", ms=1.2, spread_percent=3.0)
RACED = Raced(problem="p04", shape=SHAPE, naive=NAIVE, library=SDPA, yours=YOURS)


def raced(monkeypatch, source):
    """What the racing process says of p01 at a short length on the CPU."""
    torch.set_num_threads(1)
    table = {"device": "cpu", "seqlen": 128, "num_q_heads": 1, "is_causal": True}
    short = BenchmarkTable.model_validate(table)
    problem = load_problem("p01").model_copy(update={"benchmarks": (short,)})
    monkeypatch.setattr(racing, "load_problem", lambda id: problem)
    monkeypatch.setattr(racing, "ROUNDS", 2)
    hurried(monkeypatch.setattr)
    events = []
    with forked_workers():
        file = SourceFile.of("p01", source.encode())
        racing.race(MeasureRequest(sources=(file,), device="cpu"), events.append)
    *phases, found = events
    return [phase.text for phase in phases if isinstance(phase, Phase)], found


def test_all_are_timed_in_turns(monkeypatch):
    phases, found = raced(monkeypatch, model_answer("p01"))
    rounds = [text.partition(": ")[2] for text in phases if text.startswith("round")]
    assert rounds == ["naive PyTorch", "SDPA, FlashAttention-2", "your answer"] * 2
    assert found.fault is None and "seqlen=128" in found.shape
    assert all(lane.ms > 0 for lane in (found.naive, found.library, found.yours))
    assert [text.partition(":")[0] for text in found.left_out] == [
        "SDPA, cuDNN",
        "SDPA, memory-efficient",
    ]


def test_the_others_of_a_heat_have_their_times(monkeypatch):
    monkeypatch.setattr(racing, "_ATTENTION", {"flash": "first", "naive": "second"})
    monkeypatch.setattr(library, "naive", None, raising=False)
    entrants = racing._Race._entrants

    def twice(self, timed):  # the same kernel, once in a case that takes longer
        for runner in entrants(self, timed):
            runner.timed = dataclasses.replace(runner.timed, entry="flash")
            yield runner

    monkeypatch.setattr(racing._Race, "_entrants", twice)
    _, found = raced(monkeypatch, model_answer("p01"))
    (told,) = found.left_out
    loser, winner = ("first", "second") if found.library.name == "second" else ("second", "first")
    assert re.fullmatch(rf"{loser}: [0-9.e-]+ ms in a heat, slower than {winner}", told)


def test_the_goes_of_a_heat_are_long_beside_what_is_subtracted():
    call_s, overhead_s, gone = 0.0004, 0.002, []

    def go(timed, problem, case, layout, *, sets=1):
        gone.append(sets)
        return overhead_s + sets * call_s, []

    race = object.__new__(racing._Race)
    race.bench = SimpleNamespace(capacity=2**30, go=go)
    race._overhead = lambda runner, sets: overhead_s
    runner = racing._Runner("one", None, P04, None)
    heat = race._heat(runner, SimpleNamespace(total_bytes=2**20))
    assert heat == pytest.approx(call_s)
    assert max(gone) * call_s >= 0.010


@pytest.mark.parametrize(
    ("tail", "told"),
    drawn([
        ("_f = flash_attention\ndef flash_attention(q, k, v, **o):\n"
         "    out, lse = _f(q, k, v, **o)\n    return out + 1, lse\n", "a timed output is wrong"),
        ("def flash_attention(q, k, v, **o):\n    raise KeyError(3)\n", "KeyError: 3"),
        ("raise KeyError(4)\n", "KeyError: 4"),
    ], 3),
)  # fmt: skip
def test_an_answer_that_fails_has_a_reason_and_the_others_their_times(monkeypatch, tail, told):
    _, found = raced(monkeypatch, model_answer("p01") + "\n" + tail)
    assert found.yours.ms is None and told in found.yours.reason
    assert found.naive.ms and found.library.ms


@pytest.mark.parametrize("window", [None, 5])
def test_the_library_computes_what_the_problems_ask(window):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, 40, 16) for heads in (4, 2, 2))
    rules = {"is_causal": True, "window_size": window, "num_sink_tokens": 2 if window else 0}
    expected, _ = reference.blocked_attention(q, k, v, **rules)
    torch.testing.assert_close(library.flash(q, k, v, **rules), expected.float())


def test_the_table_is_in_80_columns_and_the_fastest_comes_first():
    race = Race(
        GPU, RACED, Recorded(0.315, "2026-11-22"), roof(P04, P04.benchmarks_on("cuda")[0], GPU)
    )
    text = render(race)
    rows = [row for row in text.splitlines() if "#" in row]
    assert [row[:12].strip() for row in rows] == [
        "roofline", "model answer", "SDPA, cuDNN", "your answer", "naive PyTorc",
    ]  # fmt: skip
    bars = [row.count("#") for row in rows]
    assert bars == sorted(bars, reverse=True) and bars[-1] == 1
    assert all(len(row) <= 80 for row in text.splitlines())
    (yours,) = (row.split() for row in rows if row.startswith("your answer"))
    assert yours[2:4] == ["1.2", "14.1"]
    assert "100 %" in rows[0] and "2026-11-22" in rows[1]
    assert "\x1b[1m" in render(race, color=True)


def test_what_is_not_known_is_said():
    hostile = Lane(name="your answer", reason="\x1b[2J" + "W" * 5000)
    text = render(Race(H200, RACED.model_copy(update={"yours": hostile}), None, None))
    assert "\x1b" not in text
    assert "your answer: not timed: WWW" in " ".join(text.split())
    assert "no time is recorded" in text and "rates of this GPU are not known" in text
    assert all(len(row) <= 80 for row in text.splitlines())


def test_the_roof_is_the_longer_of_dots_and_bytes():
    pairs = 4096 * 4097 // 2
    made = roof(P04, P04.benchmarks_on("cuda")[0], GPU)
    assert made.ms == pytest.approx(4 * 64 * 4 * 16 * pairs / (132 * 4096 * 1980e6) * 1e3)
    p02 = load_problem("p02")
    rows = roof(p02, p02.benchmarks_on("cuda")[0], GPU)
    assert rows.ms == pytest.approx(4 * 32768 * 8192 / (2 * 3201e6 * 6016 / 8) * 1e3)
    t4 = GPU.model_copy(update={"capability": (7, 5), "device_name": "Tesla T4"})
    assert roof(P04, P04.benchmarks_on("cuda")[0], t4).rate == 1024 * 132 * 1980e6
    for update in ({"chip": None}, {"capability": (6, 0)}):
        assert roof(P04, P04.benchmarks_on("cuda")[0], GPU.model_copy(update=update)) is None


def test_the_model_answers_time_is_of_this_gpu_and_shape():
    assert recorded(GPU, "p04", SHAPE) == Recorded(pytest.approx(0.3152361), "2026-11-22")
    assert recorded(GPU, "p04", "another") is None
    assert recorded(GPU.model_copy(update={"device_name": "Tesla T4"}), "p04", SHAPE) is None


class Racing:
    """In place of `Children`: a process that says these events."""

    def __init__(self, *events):
        self.said = events

    def events(self, module, arguments, request, deadline_s, ending):
        assert module == "grader.commands.race.racing"
        token = MeasureRequest.model_validate_json(request).token
        for event in self.said:
            yield write_event(event, token)
        ending.output = "Killed"

    def stop(self):
        pass

    close = stop


@pytest.fixture
def run(grader, monkeypatch, tmp_path):
    def start(*options, events=(RACED,), environment=GPU, source=None):
        monkeypatch.setattr(race_command, "probe", lambda device: environment)
        monkeypatch.setattr(race_command, "Children", lambda: Racing(*events))
        write_answers(tmp_path, {"p04": source or model_answer("p04")})
        return grader("race", "--submission", tmp_path, *options)

    return start


def test_the_command_shows_the_table(run):
    phase = Phase(problem="p04", text="round 1 of 3: naive PyTorch")
    code, out, _ = run("--only", "p04", events=(phase, RACED))
    assert code == 0 and "SDPA, cuDNN" in out and "recorded 2026-11-22" in out
    wrong = RACED.model_copy(update={"yours": Lane(name="your answer", reason="wrong")})
    code, out, _ = run("--only", "p04", events=(wrong,))
    assert code == 1 and "your answer: not timed: wrong" in out


def test_what_is_the_judges_fault_ends_with_3(run):
    died = Raced(problem="p04", fault="naive PyTorch failed: x", internal=True)
    for events, told in (((), "ended early: Killed"), ((died,), "naive PyTorch failed: x")):
        code, out, err = run("--only", "p04", events=events)
        assert (code, out) == (3, "")
        assert err.startswith("grader: fault of the judge: race: p04 was not timed: ")
        assert told in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["naive.py", "library.py"])
def test_a_worker_of_the_judge_that_dies_is_the_judges_fault(monkeypatch, name):
    worker = racing._worker

    def dead(file, device):
        found = worker(file, device)
        if file == name:
            data = b"import os\nos._exit(7)\n"
            found.close()
            found = Sandbox(data, file, "attention", device=device)
        return found

    monkeypatch.setattr(racing, "_worker", dead)
    _, found = raced(monkeypatch, model_answer("p01"))
    assert found.internal and found.naive is None and found.fault


def test_an_answer_whose_worker_dies_is_no_fault_of_the_judge(monkeypatch):
    tail = "def flash_attention(q, k, v, **o):\n    import os\n    os._exit(7)\n"
    _, found = raced(monkeypatch, model_answer("p01") + "\n" + tail)
    assert not found.internal and found.yours.reason and found.naive.ms


def test_what_cannot_be_is_said_in_one_sentence(run):
    code, out, err = run("--only", "p04", environment=CPU)
    assert (code, out) == (4, "") and "race: got no CUDA GPU, expected one" in err
    assert "docs/where-to-work.md" in err and err.count("\n") == 1
    code, out, err = run("--only", "p04", events=(Raced(problem="p04", fault="x"),))
    assert (code, out) == (4, "") and "p04 cannot be timed here: x" in err
    for options, told in itertools.zip_longest(
        ((), ("--only", "p03,p04"), ("--only", "p99")),
        ("got nothing, expected one problem", "got p03, p04, expected one", "got p99"),
    ):
        code, _, err = run(*options)
        assert code == 2 and told in err
    code, _, err = run("--only", "p04", source="import os\n")
    assert code == 2 and "race: p04/causal_attention.py: " in err and "make grade P=p04" in err
