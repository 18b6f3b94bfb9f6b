"""Records that every report is tested with: all right, all kinds of wrong, and hostile texts."""

import functools
import io
import tempfile
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.commands.progress import Progress
from grader.judge import scoring
from grader.judge.request import Request
from grader.source.steps import step_regions
from grader.spec.findings import Evidence
from grader.spec.grade_record import (
    Amount,
    ComponentResult,
    Diagnosis,
    GradeRecord,
    MemoryFigures,
    Message,
    Points,
    SpeedFigures,
    TileMap,
    Verdict,
    WorkFigures,
)
from tests.environments import CPU, H200
from tests.harness import edited, model_answer
from tests.once import once
from tests.records import SEED, graded
from tests.tracing import evil as evil_trace

# What Markdown, HTML, XML, JSON and the commands of GitHub's Actions take for their own.
EVIL = (
    "<script>alert(1)</script>|`x` ``` ![i](https://e.x/i.png) [l](javascript:0) \x1b[31m]]>\ufffe"
    '\n```\n# head\n| a | b |\n::error::x %0A::add-mask::y\r\n##[error]z, "q" \\\' &amp; \x00\x08'
    "\u202e www.e.x @all $x$ <!-- ---\n\n- - 1. " + "\ud800" + "`" * 40
)
NAMES = (
    "full marks on the CPU",
    "a known mistake",
    "an exception with output",
    "not implemented",
    "against the source policy",
    "a fault of the judge",
    "measured on a GPU",
    "interrupted",
    "mixed",
    "nothing",
)
ENTRY = "    rows, cols = x.shape\n"
SPEED = SpeedFigures(
    speedup=41.23,
    median_ms=0.357,
    naive_ms=14.72,
    spread_percent=1.04,
    naive_drift_percent=0.3,
    samples=7,
    worst_error_over_allowed=0.4,
    device="NVIDIA H200",
    shape="batch=4 num_q_heads=16 seqlen=4096 head_dim=64 bf16",
)
MEMORY = MemoryFigures(
    lengths=(8192, 16384),
    extra_bytes=(655_360, 1_258_291),
    naive_extra_bytes=(2 * 2**30, 11_059_658_752),
    allowed_bytes=(2**26, 2**27),
)
END_KEY = "tl.minimum(query_start + BLOCK_M, seqlen)"
# Every tile is visited and masked.
IN_VAIN = ((END_KEY, "seqlen"), ("if key_start >= full_end:", "if key_start >= 0:"))
TWICE = (
    ("range(0, end_key, BLOCK_N)", "range(-BLOCK_N, end_key, BLOCK_N)"),
    ("keys = key_start + offs_n  #", "keys = tl.maximum(key_start, 0) + offs_n  #"),
    ("k_ptr += BLOCK_N * stride", "k_ptr += tl.where(key_start < 0, 0, BLOCK_N) * stride"),
    ("v_ptr += BLOCK_N * stride", "v_ptr += tl.where(key_start < 0, 0, BLOCK_N) * stride"),
)
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x9b31mall checks pass [bold red]x[/] \u202egnp.exe\u2066\n"
    "9 problems: 9 passed\r\x00\x7f\u200b" + "\ud800" + "e" + "\u0301" * 40 + "W" * 5000
)
VAST = WorkFigures(
    elements_read=Amount(done=10**30, needed=0, naive=-1),
    shape=HOSTILE,
    tiles=TileMap(
        product="dk", batch=3, head=999, tile_q=2**31, tile_k=2**31, rows=("#/ox!2." * 7,) * 49
    ),
)


def in_entry(lines):
    return {"p02": edited(model_answer("p02"), (ENTRY, ENTRY + lines))}


def unfinished(problem_id, step):
    """The model answer as a stub of which the steps before `step` are filled in."""
    lines = model_answer(problem_id).split("\n")
    regions = step_regions("\n".join(lines))
    for number, (first, last) in regions.items():
        if number >= step:
            stands = "    raise NotImplementedError" if number == 1 else ""
            lines[first : last - 1] = [stands] + [""] * (last - first - 2)
    return "\n".join(lines)


def p02(old, new):
    return {"p02": edited(model_answer("p02"), (old, new))}


ANSWERS = {
    "full marks on the CPU": {"p02": model_answer("p02"), "p03": model_answer("p03")},
    "a known mistake": p02(" * w_tile.to(tl.float32)[None, :]", ""),
    "a mistake in one check": p02("col_ids * stride_wn", "col_ids"),
    "a wrong number": p02("acc += products", "acc += 0.75 * products"),
    "never written": p02("row_mask = row_ids < rows", "row_mask = row_ids < 99"),
    "computed as NaN": p02("tl.sum(acc, axis=1)", "tl.sum(acc, axis=1) * float('inf') * 0.0"),
    "an exception with output": in_entry(
        "    print('rows', rows)\n    raise RuntimeError(f'no room for {cols}')\n"
    ),
    "an exception in a kernel": p02("w_ptr + col_ids *", "w_ptr + columns *"),
    "an endless loop": in_entry("    while rows: pass\n"),
    "no kernel": in_entry("    return x.new_zeros(x.shape[0])\n"),
    "sums by PyTorch": in_entry(
        "    products = (x.float() * w.float()).unbind(1)\n    return sum(products).to(x.dtype)\n"
    ),
    "against the source policy": {
        "p02": "import os; os.getpid()\n"
        + in_entry("    return torch.einsum('mn,n->m', x, w)\n")["p02"]
    },
    "outside a tensor": p02("w_ptr + col_ids *", "w_ptr + (rows + col_ids) *"),
    "not implemented": {"p02": unfinished("p02", 1), "p03": unfinished("p03", 1)},
    "a syntax error": {"p02": "import torch\n\ndef weighted_row_sum(x, w:\n    return x\n"},
    "tiles visited twice": {"p04": edited(model_answer("p04"), *TWICE)},
    "tiles never visited": {"p04": edited(model_answer("p04"), (END_KEY, END_KEY + " - BLOCK_N"))},
    "a walk as it is due": {
        "p04": edited(model_answer("p04"), ("v, running_max, new_max,", "v, new_max, new_max,"))
    },
    "tiles in vain": {"p04": edited(model_answer("p04"), *IN_VAIN)},
    "a fault of the judge": {"p02": model_answer("p02"), "p03": "# fault\n" + model_answer("p03")},
}
MEASURED = {
    "p02": (
        Evidence(figures=SPEED.model_copy(update={"speedup": 1.8, "naive_ms": 0.643})),
        Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured on this device"),
    ),
    "p03": (Evidence(figures=SPEED), Evidence(figures=MEMORY)),
    "p04": (
        Evidence(verdict=Verdict.FAIL, reason="a timed output is wrong (23 x the allowed error)"),
        Evidence(figures=MEMORY.model_copy(update={"extra_bytes": (2**25, 2**31)})),
    ),
    "p08": (
        Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured: the machine is busy (two"
                 " baselines 18 % apart); make grade P=p08 again"),
        Evidence(verdict=Verdict.INTERNAL, reason="the judge failed: OSError: no space left"),
    ),
}  # fmt: skip
COUNTED = {
    "p04": Evidence(
        figures=WorkFigures(
            multiply_adds=Amount(done=1310, needed=1000, naive=1800),
            elements_read=Amount(done=1200, needed=1000, naive=1700),
            full=1.2,
        )
    ),
    "p08": Evidence(
        verdict=Verdict.NOT_MEASURED,
        reason="needs Triton's interpreter, which this Triton has not with this numpy",
    ),
}


def with_problems(record, *problems, **fields):
    totals, bonus = scoring.total(problems)
    update = {"problems": problems, "totals": totals, "bonus": bonus}
    return record.model_copy(update=update | fields)


def hostile(problem, text=HOSTILE):
    """A problem all of whose texts are `text`."""
    words = "headline test file input first worst extent help repeat".split()
    message = Message(**dict.fromkeys(words, text), output=text * 30, trace=evil_trace(text))
    diagnosis = Diagnosis(id=text, title=text, note=text, help=text)
    wide = Message(headline="wide", file="漢字" * 90)
    verdicts = [Verdict.FAIL, Verdict.CRASH, Verdict.FAIL, Verdict.TIMEOUT]
    messages = [message, wide, message, message.model_copy(update={"first": None})]
    check = problem.checks[0]
    checks = [
        check.model_copy(update={"id": f"{i}{text}", "verdict": verdict, "message": told})
        for i, (verdict, told) in enumerate(zip(verdicts, messages, strict=True))
    ]
    checks[2] = checks[2].model_copy(update={"diagnosis": diagnosis})
    figures = SPEED.model_copy(update={"device": text, "shape": text})
    lost = {"verdict": Verdict.FAIL, "points": Points(available=4, possible=4), "reason": text}
    components = {
        **problem.components,
        "speed": ComponentResult(**lost, figures=figures),
        "work": ComponentResult(**lost, figures=VAST.model_copy(update={"shape": text})),
        "memory": scoring.withheld(Verdict.NOT_MEASURED, 1, text),
    }
    update = {"id": text, "title": text, "next_step": text, "components": components}
    update |= {"checks": tuple(checks), "verdict": Verdict.CRASH, "unseen": text}
    return problem.model_copy(update=update)


@functools.cache
def record(name: str) -> GradeRecord:
    """Return one of the records of `NAMES` or `ANSWERS`, made when it is first asked for."""
    return once(f"record of {name}", functools.partial(_record, name))


def _record(name: str) -> GradeRecord:
    if name == "nothing":
        return with_problems(record("a known mistake"))
    if name == "mixed":
        gpu, fault = record("measured on a GPU"), record("a fault of the judge")
        (mistake,) = record("a known mistake").problems
        problems = (mistake, fault.problems[1], *gpu.problems[2:])
        return with_problems(gpu, *problems, duration_s=12.5)
    with tempfile.TemporaryDirectory() as folder:
        if name == "interrupted":
            request = Request(Path(folder), "answers", ("p02", "p08"), CPU, SEED)
            return Grader(request, Progress(Console(file=io.StringIO()))).record(unfinished=True)
        if name == "measured on a GPU":
            answers = {problem_id: model_answer(problem_id) for problem_id in MEASURED}
            given = {"measured": MEASURED, "work": COUNTED}
            return graded(Path(folder), answers, environment=H200, **given)
        return graded(Path(folder), ANSWERS[name])


def evil(text: str = EVIL) -> GradeRecord:
    """Return a record of which every text that a submission may reach is `text`, and more."""
    whole = record("measured on a GPU")
    environment = whole.environment.model_copy(update={"device_name": text, "notes": (text,)})
    broken = hostile(whole.problems[1], text)
    checks = [check.model_copy(update={"duration_s": float("nan")}) for check in broken.checks]
    broken = broken.model_copy(update={"checks": tuple(checks), "message": checks[0].message})
    totals, bonus = scoring.total([broken])
    update = {"problems": (broken,), "totals": totals, "bonus": bonus, "submission": text}
    return whole.model_copy(update=update | {"environment": environment, "seed": text})
