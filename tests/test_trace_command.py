"""`make trace`: what it is asked, what it refuses, what it prints, and kernels that mean harm."""

import json
import re
from functools import partial

import numpy as np
import pytest

from grader.commands.trace import command as trace_command
from grader.commands.trace import traced_case
from grader.commands.trace.command import render
from grader.commands.trace.wanted import Wanted
from grader.kernel.observers.rounds import MOST_ROUNDS, Rounds, RoundsShape, RoundsWriter
from grader.spec.problem import PROBLEMS, load_problem
from grader.spec.trace_record import Parting, Program, Shown, SourceLine, TileRound, TraceRecord
from tests import forked
from tests.harness import edited, model_answer
from tests.mutants.forward import SUM
from tests.records import write_answers
from tests.tracing import trace

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_quick = forked.quick


@pytest.fixture
def answers(tmp_path):
    source = model_answer("p03").replace(SUM, "running_sum = running_sum + tl.sum(p, 1)")
    write_answers(tmp_path / "answers", {"p03": source})
    return tmp_path / "answers"


@pytest.fixture
def run(grader):
    return partial(grader, "trace")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "expected one of p01, p03, p04, p05, p06, p07"),
        (["--only", "p03,p04"], "got p03, p04"),
        (["--only", "p02"], "no running maximum"),
        (["--only", "p08"], "a backward kernel sums gradients"),
        (["--only", "p09"], "a backward kernel sums gradients"),
        (["--only", "p99"], "p99"),
        (["--only", "p06", "--case", "nothing"], "got 'nothing', expected a check"),
        (["--only", "p06", "--case", "window:x"], "got 'window:x', expected a check"),
        (["--only", "p06", "--case", "window:"], "expected a check and a number"),
        (["--only", "p06", "--case", "window:99"], "the cases of window that run"),
        (["--only", "p06", "--case", "window:0"], "the cases of window that run"),
        (["--only", "p06", "--case", "\x1b[2Jwindow"], "expected a check"),
        (["--only", "p06", "--case", "arguments"], "whose calls have to be refused"),
        (["--only", "p06", "--case", "compiles"], "which compiles and computes nothing"),
        (["--only", "p03", "--case", "row_logsumexp"], "has no queries and keys"),
        (["--only", "p01", "--program", "1"], "p01 is PyTorch, without any"),
        (["--only", "p06", "--program", "a"], "got 'a', expected ids such as 1,0,0"),
        (["--only", "p06", "--program", "1,2,3,4"], "expected ids such as 1,0,0"),
        (["--only", "p06", "--program", "-1"], "expected ids such as 1,0,0"),
        (["--only", "p06", "--seed", "xyz"], "expected up to 32 hexadecimal digits"),
        (["--only", "p06", "--submission", "/no/such"], "which is not a folder"),
        (["--only", "p06", "--json", "/no/such/file"], "no such folder"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(run, arguments, expected):
    joined = [f"{a}={b}" for a, b in zip(arguments[::2], arguments[1::2], strict=True)]
    code, out, err = run(*joined)
    assert (code, out) == (2, "") and expected in " ".join(err.split())
    assert not CONTROL.search(err.replace("\n", ""))
    if "--case" in arguments or "--program" in arguments:
        assert "of make)" in err


def test_a_case_is_named_as_messages_name_its_test():
    problem = load_problem("p06")
    wanted = Wanted.of(problem, "test_window:2", "1, 0,0")
    assert wanted == Wanted("window", 2, (1, 0, 0))
    assert Wanted.of(problem, "window", "7").program == (7, 0, 0)
    assert Wanted.of(problem, None, None) == Wanted()


def test_the_command_traces_the_first_wrong_case_and_writes_it(run, answers, tmp_path):
    file = tmp_path / "trace.json"
    options = ("--only", "p03", "--submission", answers, "--seed", "5eed", "--json", file)
    code, out, err = run(*options)
    assert code == 0, err
    assert out.startswith("trace of p03 plain:1, noncausal_attention.py\n")
    assert "tile 2   keys 64-127" in out and "<- diverges here" in out
    assert "running_sum = running_sum + tl.sum(p, 1)" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    again = re.search(r"repeat: make trace P=p03 CASE=(\S+) SEED=(\S+) PROGRAM=(\S+)", out)
    record = TraceRecord.model_validate_json(file.read_text())
    assert json.loads(file.read_text())["schema_version"] == 1
    assert record.parting.number == 2 and len(record.rounds) == record.tiles == 2
    case, seed, program = again.groups()
    same = ("--only", "p03", "--submission", answers, "--case", case, "--seed", seed)
    assert run(*same, "--program", program)[1] == out


def test_the_call_in_which_work_is_counted_is_a_case_as_well(run, answers):
    same = ("--only", "p03", "--submission", answers, "--seed", "5eed", "--case")
    assert run(*same, "work:1")[1].startswith("trace of p03 work:1, noncausal_attention.py\n")
    code, _, err = run(*same, "work:2")
    assert code == 2 and "got work:2, and the cases of work that run without a GPU are 1: " in err


def test_a_file_that_cannot_be_written_is_said_and_the_trace_is_shown(
    run, answers, monkeypatch, tmp_path
):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(trace_command, "write_whole", full)
    options = ("--only", "p03", "--submission", answers, "--case", "plain:1")
    code, out, err = run(*options, "--json", tmp_path / "t.json")
    assert code == 4 and "cannot write" in err and "<- diverges here" in out


def test_by_default_the_program_with_the_worst_wrong_element_is_followed():
    only_last = "    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)\n"
    more = "    out = tl.where(queries[:, None] == 70, 9.0, out)\n"
    wrong = edited(model_answer("p03"), (only_last, only_last + more))
    record = trace("p03", wrong, "plain:1")
    assert record.program.queries == "64-127" and 70 in record.program.shown_queries
    assert "look at what comes behind the loop" in record.conclusion
    other = trace("p03", wrong, "plain:1", program="0,0,0")
    assert other.program.queries == "0-63" and other.parting is None
    assert other.result == "wrong"
    assert other.conclusion == (
        "the state agrees with the reference after each of the 2 tiles, and so does the result of"
        " these queries"
    )


def test_a_program_that_is_not_there_and_queries_that_none_loads_are_told():
    record = trace("p03", model_answer("p03"), "plain:1", program="999,0,0")
    assert record.program is None and "is it in the grid" in record.conclusion
    wrong = model_answer("p03").replace("batch_head % num_q_heads", "batch_head % num_q_heads * 0")
    record = trace("p03", wrong, "batch_heads:3")
    assert record.program is None and record.result == "wrong"
    assert "of head 1, batch entry 0, with a tile of keys" in record.conclusion


def test_a_stub_and_a_missing_file_and_a_refused_one_are_told(tmp_path):
    stub = (PROBLEMS / "p06" / "sliding_window_attention.py").read_text("utf-8")
    record = trace("p06", stub)
    assert record.result == "failed" and "step" in record.failure
    refused = trace("p03", model_answer("p03") + "\nimport ctypes\n\nX = ctypes.CDLL(None)\n")
    assert refused.result == "failed" and "nothing was run" in refused.conclusion
    problem = load_problem("p03")
    missing = traced_case.run(problem, tmp_path, Wanted(), "5eed")
    assert missing.result == "failed" and missing.failure
    assert "nothing was run" in render(missing)


def test_a_call_that_raises_shows_the_tiles_up_to_then():
    divide = "    out = acc / running_sum[:, None]"
    stop = "    tl.store(out_ptr + (1 << 34), tl.sum(running_sum, 0))\n"
    record = trace("p03", model_answer("p03").replace(divide, stop + divide), "plain:1")
    assert record.result == "failed" and record.failure and record.parting is None
    assert record.program.ids == (0, 0, 0) and len(record.rounds) == 2
    assert record.conclusion == "the call ended as said above; these are the tiles up to then"
    text = render(record)
    assert not CONTROL.search(text.replace("\n", ""))


def hurried(problem_id):
    """A problem whose calls end soon, but not before a busy machine has compiled the kernel."""
    problem = load_problem(problem_id)
    return problem.model_copy(
        update={"limits": problem.limits.model_copy(update={"call_s": 2.5, "lost_s": 5.0})}
    )


LOOP = "for key_start in range(0, seqlen_k, BLOCK_N):"


def test_a_loop_without_an_end_is_cut_off_and_shown_in_part():
    source = model_answer("p03").replace(LOOP, "while seqlen_k > 0:\n        key_start = 0")
    source = source.replace("k_ptr += BLOCK_N", "k_ptr += 0").replace(
        "v_ptr += BLOCK_N", "v_ptr += 0"
    )
    record = trace(hurried("p03"), source, "plain:1")
    assert record.result == "failed" and record.parting is None
    assert 2 < len(record.rounds) <= MOST_ROUNDS and record.tiles >= len(record.rounds)
    assert len(render(record).splitlines()) < 60
    assert len(record.to_json()) < 2_000_000


def test_names_and_texts_of_a_record_do_no_harm():
    bad = "\x1b[2Jacc\u202e\x9b1m" + "x" * 300
    shown = Shown(name=bad, role="sum", yours=(bad, "1"), oracle=("2", "3"), agrees=False, apart=2)
    record = TraceRecord(
        problem="p03",
        file=bad,
        check="plain",
        number=1,
        case=bad,
        seed="5eed",
        result="failed",
        failure=bad,
        program=Program(
            kernel=bad,
            ids=(0, 0, 0),
            batch=0,
            head=0,
            queries="0-63",
            shown_queries=(0, 1),
            columns="0-3",
        ),
        tiles=9,
        rounds=(TileRound(number=1, keys="0-63", shown=(shown,), facts=(bad,)),),
        parting=Parting(number=1, names=(bad,), text=bad, lines=(SourceLine(line=3, text=bad),)),
        conclusion=bad,
        notes=(bad,),
    )
    for color in (False, True):
        text = render(record, color=color)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert not CONTROL.search(plain.replace("\n", ""))
        assert "\x1b[2J" not in text
        assert all(len(line) <= 80 for line in plain.splitlines())


@pytest.mark.parametrize("seed", range(4))
def test_a_block_full_of_anything_makes_rounds_that_fit(seed):
    """The worker's memory may hold what a submission wrote there."""
    shape = RoundsShape(rows=128, keys=128, head_dim=16, lines=50)
    memory = np.zeros(shape.total_bytes, np.uint8)
    random = np.random.default_rng(seed)
    arrays = shape.arrays(memory)
    for name in ("head", "queries", "rounds", "keys"):
        numbers = arrays[name].view(np.int64)
        values = random.integers(-(2**62), 2**62, numbers.shape)
        numbers[:] = np.where(random.random(values.shape) < 0.5, values, values % 64)
    for name in ("kernel", "variables", "present"):
        values = arrays[name].view(np.uint8)
        values[:] = random.integers(0, 256, values.shape)
    assert Rounds.of(shape, memory) is None or seed is not None
    arrays["head"]["tile_q"], arrays["head"]["rounds"] = 32, 10
    rounds = Rounds.of(shape, memory)
    assert len(rounds) == 10 and rounds.queries.shape == (32,)
    assert rounds.queries.max() < 128 and rounds.keys.max() < 128
    assert rounds.queries.min() >= -1 and rounds.keys.min() >= -1
    assert rounds.column("line").max() <= 50 and rounds.column("segment").max() < 10
    arrays["head"]["tile_q"] = 2**40
    assert Rounds.of(shape, memory) is None


def test_a_name_that_is_cut_in_a_letter_is_still_a_text():
    shape = RoundsShape(rows=128, keys=128, head_dim=16, lines=50)
    memory = np.zeros(shape.total_bytes, np.uint8)
    writer = RoundsWriter(shape, memory)
    writer.begin(np.arange(4), "x" + "é" * 40)
    writer.meet(np.arange(4), 1)
    assert Rounds.of(shape, memory).kernel.startswith("x" + "é" * 30)
