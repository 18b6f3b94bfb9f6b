"""Traces source code in this process, and what the running state has to be after each tile."""

import dataclasses
import math
import re
import tempfile
from pathlib import Path

import numpy as np

from grader.checks.counted_pairs import due_pairs
from grader.commands.trace import traced_case
from grader.commands.trace.wanted import Wanted
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import Problem, load_problem
from grader.spec.trace_record import Parting, Program, Shown, SourceLine, TileRound, TraceRecord
from tests.records import write_answers

SEED = "5eed"


def trace(
    problem: Problem | str,
    source: str,
    case: str | None = None,
    program: str | None = None,
    seed: str = SEED,
) -> TraceRecord:
    """Trace `source` as the answer to a problem."""
    problem = load_problem(problem) if isinstance(problem, str) else problem
    wanted = Wanted.of(problem, case, program)
    with tempfile.TemporaryDirectory() as folder:
        write_answers(Path(folder), {problem.id: source})
        return traced_case.run(problem, Path(folder), wanted, seed)


def numbers_of(text: str) -> np.ndarray:
    """The positions that ranges such as "3, 8-9" name."""
    ends = [re.findall(r"\d+", part) for part in text.split(",")]
    return np.concatenate([np.arange(int(e[0]), int(e[-1]) + 1) for e in ends])


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A counted with a mistake: what it masks, (queries, keys), and what it does not carry over."""

    visible: np.ndarray | None = None
    rescale_sum: bool = True
    rescale_acc: bool = True
    carry_max: bool = True


def first_wrong_tile(record: TraceRecord, mistake: Mistake) -> int | None:
    """CountedPairs over the tiles of a record with a mistake and without, and say where they part.

    In numpy and fp64, with nothing of the judge's but the inputs and the mask.
    """
    problem = load_problem(record.problem)
    check = problem.check(record.check)
    index = record.number - 1
    case = problem.cases(check, record.seed)[index]
    seed = case_seed(record.seed, problem.id, check.id, index)
    tensors = make_inputs(problem, case, seed).tensors
    program = record.program
    group = case.num_q_heads // case.num_kv_heads
    q = tensors["q"][program.batch, program.head].double().numpy()
    k, v = (tensors[n][program.batch, program.head // group].double().numpy() for n in ("k", "v"))
    rows = numbers_of(program.queries)
    due = due_pairs(problem.id, case)
    scores = case.kwargs.get("softmax_scale", 1 / math.sqrt(case.head_dim)) * q[rows] @ k.T
    tiles = [numbers_of(tile.keys) for tile in record.rounds]
    right = walk(scores, v, tiles, due[rows], Mistake())
    visible = due if mistake.visible is None else mistake.visible
    wrong = walk(scores, v, tiles, visible[rows], mistake)
    for number, (good, bad) in enumerate(zip(right, wrong, strict=True), 1):
        for a, b in zip(good, bad, strict=True):
            if not np.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True):
                return number
    return None


def walk(scores, v, tiles, visible, mistake):
    """The running maximum, sum and accumulator after each tile."""
    largest = np.full(len(scores), -np.inf)
    total, acc, states = np.zeros(len(scores)), np.zeros((len(scores), v.shape[1])), []
    for keys in tiles:
        tile = np.where(visible[:, keys], scores[:, keys], -np.inf)
        new = tile.max(axis=1)
        if mistake.carry_max:
            new = np.maximum(new, largest)
        safe = np.where(np.isfinite(new), new, 0.0)
        with np.errstate(over="ignore"):
            rescale = np.exp(np.where(np.isfinite(largest), largest - safe, -np.inf))
        p = np.exp(tile - safe[:, None])
        total = total * (rescale if mistake.rescale_sum else 1.0) + p.sum(axis=1)
        acc = (acc * rescale[:, None] if mistake.rescale_acc else acc) + p @ v[keys]
        largest = new
        states.append((largest, total, acc))
    return states


def record(count: int = 40, part: int | None = 20, **fields: object) -> TraceRecord:
    """A record of `count` tiles that parts at one of them, or nowhere."""
    shown = (
        Shown(name="m", role="maximum", yours=("1", "2"), oracle=("1", "2"), agrees=True),
        Shown(name="l", role="sum", yours=("3", "4"), oracle=("5", "6"), agrees=False, apart=2),
        Shown(name="acc", query=64, yours=("1", "nan", "3", "4")),
    )
    rounds = tuple(
        TileRound(number=n, keys=f"{64 * n - 64}-{64 * n - 1}", line=9, shown=shown)
        for n in range(1, count + 1)
    )
    line = SourceLine(line=118, text="l = l + tl.sum(p, 1)")
    parting = part and Parting(number=part, names=("l",), text="l is not the sum", lines=(line,))
    told = {
        "problem": "p03",
        "file": "noncausal_attention.py",
        "check": "unequal",
        "number": 1,
        "case": "seqlen_q=128",
        "seed": "5eed",
        "result": "wrong",
        "program": Program(
            kernel="kernel",
            ids=(1, 0, 0),
            batch=0,
            head=2,
            queries="64-127",
            shown_queries=(64, 65),
            columns="0-3",
        ),
        "tiles": count,
        "rounds": rounds,
        "parting": parting or None,
        "conclusion": "the state agrees after each tile, and the result does not",
        "notes": ("a note",),
    }
    return TraceRecord(**told | fields)


def evil(text: str) -> TraceRecord:
    """A record of which each text that a submission reaches is `text`."""
    shown = Shown(name=text, role="sum", yours=(text, "1"), oracle=("2", text), agrees=False)
    tile = TileRound(number=2, keys=text, line=3, shown=(shown, shown), facts=(text,))
    program = record().program.model_copy(update={"kernel": text, "queries": text})
    lines = (SourceLine(line=3, text=text * 9),)
    return record(3, 2).model_copy(
        update={
            "rounds": (record().rounds[0], tile),
            "program": program,
            "parting": Parting(number=2, names=(text,), text=text, lines=lines),
            "conclusion": text,
            "notes": (text,),
        }
    )
