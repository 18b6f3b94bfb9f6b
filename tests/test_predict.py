"""`make predict`: how often regions run, what machine code asks for, and how good the model is."""

import json
import math
import re
import statistics

import pytest

from benchmarks.predicting import SHAPES, is_fitted
from grader.commands.cli import main
from grader.commands.predict.command import Predicted, predicted, render
from grader.isolate.compiled import Compiled, call_of, compile_calls, unavailable
from grader.isolate.predicted import predicted_call
from grader.kernel.compile.listing import read
from grader.kernel.compile.model import GPUS, CannotTell, Launched, _handed_out, expect_known
from grader.kernel.compile.work import work
from grader.kernel.machine.visits import DependsOnData, Region, Visited, visited
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.problem import ROOT, load_problem
from grader.spec.protocol import Ended
from tests import forked
from tests.harness import edited, whole_answer

RECORD = json.loads((ROOT / "docs/records/predicted-h100-2026-11-27.json").read_text("utf-8"))
PAGE = (ROOT / "docs/predict.md").read_text("utf-8")
_quick = forked.quick
needs_ptxas = pytest.mark.skipif(unavailable(90) is not None, reason="no assembler of NVIDIA's")

LOOP = """
tt.func public @k(%n: i32, %p: !tt.ptr<f32>) {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %x = tt.get_program_id x : i32
  %some = arith.cmpi slt, %x, %n : i32
  %end = arith.addi %x, %c1 : i32
  %y = scf.for %i = %c0 to %end step %c1 iter_args(%a = %c0) -> (i32) : i32 {
    %last = arith.cmpi eq, %i, %x : i32
    scf.if %last {
      tt.store %p, %BODY% : !tt.ptr<f32>
    }
    %b = arith.addi %a, %c1 : i32
    scf.yield %b : i32
  }
  tt.return
}
"""


def test_regions_are_counted_program_by_program():
    text = LOOP.replace("%BODY%", "%f").replace("%c0 = ", "%f = arith.constant 1.0 : f32\n  %c0 = ")
    found = visited(text, (4, 1, 1), [("n", 2), ("p", 0)])
    whole, body, side = found.counts.tolist()
    assert whole == [1, 1, 1, 1]
    assert body == [1, 2, 3, 4]
    assert side == [1, 1, 1, 1]
    assert [region.loop for region in found.regions] == [False, True, False]
    assert found.regions[2].stored == 4


def test_a_branch_on_what_a_kernel_loads_is_not_known():
    text = LOOP.replace("%BODY%", "%f").replace(
        "%last = arith.cmpi eq, %i, %x : i32", "%last = arith.cmpf ogt, %f, %f : f32"
    )
    text = text.replace("%c0 = arith", "%f = tt.load %p : !tt.ptr<f32>\n  %c0 = arith", 1)
    with pytest.raises(DependsOnData):
        visited(text, (4, 1, 1), [("n", 2), ("p", 0)])


SASS = """
        //## File "a.py", line 3
        /*0000*/                   S2R R0, SR_CTAID.X ;
.L_x_0:
        //## File "a.py", line 5
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0030*/                   MUFU.EX2 R1, R1 ;
        /*0040*/               @P0 BRA `(.L_x_0) ;
        //## File "a.py", line 7
        /*0050*/                   STG.E.U16 [R2.64], R1 ;
        /*0060*/                   EXIT ;
.L_x_1:
        /*0070*/                   BRA `(.L_x_1);
"""


def test_machine_code_is_read_into_blocks_loops_and_what_they_ask_for():
    code = read(SASS)
    assert code.loops == ((1, 1),)
    loop, end = code.blocks[1].mix, code.blocks[2].mix
    assert (loop.macs, loop.special, loop.global_bytes, loop.fetches) == (2048, 1, 512, 1)
    assert (end.global_bytes, end.narrow_bytes) == (64, 64)
    whole, body = Region(0, None, loop=False), Region(1, None, loop=True)
    body.parent = whole
    whole.lines["a.py", 3] = whole.lines["a.py", 7] = body.lines["a.py", 5] = 1
    body.macs = 4 * 2048
    torch = pytest.importorskip("torch")
    done = work(code, Visited((whole, body), torch.tensor([[1, 1], [10, 30]])), num_warps=4)
    by_program = [done.mixes[kind].macs for kind in done.kinds.tolist()]
    assert by_program == [20480, 61440]
    assert done.macs == 4 * 2048 * 40
    expect_known(done, Launched(4, 64, 0, 0, 1 << 30))
    with pytest.raises(CannotTell, match="registers"):
        expect_known(done, Launched(4, 64, 0, 16, 1 << 30))


def test_programs_are_handed_out_in_order():
    assert _handed_out([1.0] * 5, 2) == 3.0
    assert _handed_out([3.0, 1.0, 1.0, 1.0], 2) == 3.0
    assert _handed_out([1.0, 1.0, 1.0, 3.0], 2) == 4.0


def errors(*, fitted):
    return sorted(
        abs(math.log(k["predicted_ms"] / k["measured_ms"]))
        for k in RECORD["kernels"]
        if k["fitted"] is fitted
    )


def test_the_page_says_how_good_the_model_is_by_the_record():
    held_out = errors(fitted=False)
    nine_of_ten = held_out[math.ceil(0.9 * len(held_out)) - 1]
    said = [f"{100 * math.expm1(e):.0f} %" for e in (statistics.median(held_out), nine_of_ten)]
    page = " ".join(PAGE.split())
    assert f"half of them are predicted within {said[0]}, nine of ten within {said[1]}" in page
    assert f"largest error is a factor of {math.exp(held_out[-1]):.1f}" in page
    assert all(k["fitted"] is is_fitted(k["id"]) for k in RECORD["kernels"])
    answers = {k["id"] for k in RECORD["kernels"]}
    assert f"{len(RECORD['kernels'])} kernels of {len(answers)} answers" in PAGE
    assert f"The other half has {len(held_out)} kernels" in page
    assert len(answers) >= 60


def test_the_page_shows_the_counters_of_the_record():
    for row in RECORD["counters"]:
        cells = [
            f"{row['percent'][n]:.0f}" for n in ("tensor", "special", "issue", "shared", "memory")
        ]
        cells += [row["bound"] or "cannot tell"]
        assert f"| {row['id']} `{row['kernel']}` | {' | '.join(cells)} |" in PAGE


def render_of(problem_id, source=None):
    problem = load_problem(problem_id)
    text = source or whole_answer(problem_id)
    return render(predicted(problem, Source(problem_id, text.encode())))


@needs_ptxas
def test_the_model_predicts_what_the_record_says():
    """Compiled by this Triton, not by the one of the record: the same within a tenth."""
    problem = load_problem("p04")
    (row,) = (
        k for k in RECORD["kernels"] if k["id"] == "p04-answer" and k["shape"] == SHAPES["p04"][2]
    )
    call = call_of(problem, resolve(row["shape"], "bf16", ""), problem.outputs)
    (found,) = compile_calls(
        Source("p04", whole_answer("p04").encode()),
        problem,
        [call],
        capabilities=(90,),
        predicts=call,
    )
    times = {time.gpu: time.ms for time in found.predictions[0].times}
    assert times["H100"] == pytest.approx(row["predicted_ms"], rel=0.1)


@needs_ptxas
def test_what_is_not_modelled_is_said():
    summed = "y_tile = tl.sum(acc, axis=1)  # (BLOCK_M,)\n"
    branch = "    if tl.max(y_tile) > 1.0:\n        y_tile = 2 * y_tile\n"
    shown = render_of("p02", edited(whole_answer("p02"), (summed, summed + branch)))
    assert "cannot tell: a loop or a branch depends on what the kernel computes" in shown


@needs_ptxas
def test_a_view_of_eighty_columns():
    shown = render_of("p02")
    assert max(map(len, shown.splitlines())) <= 80
    assert all(gpu.name in shown for gpu in GPUS)
    assert re.search(r"_weighted_row_sum_kernel +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms\n", shown)
    assert "costs most: " in shown and "never counts" in shown


def test_what_has_no_kernels_or_cannot_run_has_a_sentence(capsys):
    assert render(Predicted(load_problem("p01"), None, reason="no kernels")) == "p01: no kernels\n"
    assert main(["predict", "--only", "p01,p03"]) == 1
    told = capsys.readouterr().out
    assert "p01: it has no kernels to predict" in told and "p03" in told
    assert main(["predict", "--only", "p44"]) == 2


@needs_ptxas
def test_a_call_that_fails_says_so():
    text = whole_answer("p04").replace(
        "    check_attention(q, k, v", "    raise KeyError(3)\n    check_attention(q, k, v", 1
    )
    assert "the call did not end: KeyError" in " ".join(render_of("p04", text).split())


def test_a_call_that_was_stopped_says_so():
    stopped = Compiled(80, (), (), 0, 10.0, predicted=Ended(timeout=True, waited_s=10.0))
    call = predicted_call(resolve({"rows": 8, "cols": 8}, "bf16", ""), [stopped])
    assert call.unknown.endswith(": no result after 10 s: the call was stopped")
