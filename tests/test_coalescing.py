"""Which lane asks for which bytes, how many sectors that takes, and what the report shows of it."""

import itertools
import json
import re

import pytest
import torch

from grader.isolate.compiled import call_of, compile_calls, unavailable
from grader.isolate.predicted import CHIPS, like, predicted_call, timed_case
from grader.kernel.compile.layouts import UnknownLayout, accessed, bases_of, elements
from grader.kernel.compile.listing import Listing, read
from grader.kernel.compile.requests import requests
from grader.kernel.compile.stages import CachedKernel
from grader.kernel.machine.ttir import Operation, Place
from grader.kernel.machine.visits import Seen, addressed
from grader.report import predicted as words
from grader.report.html.grids import request_grid
from grader.report.html.page import render
from grader.report.predicted import request
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.grade_record import CheckResult, GradeRecord
from grader.spec.kernel_report import PredictedCall, Prediction
from grader.spec.problem import ROOT, load_problem
from tests import forked
from tests.exports import NAMES, record
from tests.harness import whole_answer
from tests.unusual import ANSWERS

_quick = forked.quick
needs_ptxas = pytest.mark.skipif(unavailable(90) is not None, reason="no assembler of NVIDIA's")
# Worked out by hand: a lane holds 8 rows of a column, 16 lanes are 128 rows, two are 2 columns.
COLUMNS = (
    "#ttg.blocked<{sizePerThread = [8, 1], threadsPerWarp = [16, 2], warpsPerCTA = [1, 8],"
    " order = [0, 1]}>"
)
ROWS = (
    "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1],"
    " order = [1, 0]}>"
)


def test_lanes_of_a_layout_that_was_worked_out_by_hand():
    held = elements(COLUMNS, (128, 64))  # of 128 rows of 64: element 64 * row + column
    assert held.shape == (8, 32, 32)
    assert held[0, 0, :8].tolist() == [64 * row for row in range(8)]
    assert held[0, 1, 0] == 64 * 8  # rows 8 to 15
    assert held[0, 16, 0] == 1  # the next column
    assert held[1, 0, 0] == 2 and held[7, 0, 0] == 14  # warps have two columns each
    assert held[0, 0, 8] == 16  # what is left of the 64 columns
    assert held.unique().numel() == 128 * 64


def test_lanes_that_hold_the_same():
    weights = elements(f"#ttg.slice<{{dim = 0, parent = {COLUMNS}}}>", (64,))
    assert weights[0, :16].unique().tolist() == [0, 16, 32, 48]
    assert weights[0, 16:].unique().tolist() == [1, 17, 33, 49]
    with pytest.raises(UnknownLayout):
        elements("#ttg.amd_mfma<{version = 3}>", (16, 16))


def test_layouts_are_triton_s_own():
    gluon = pytest.importorskip("triton.experimental.gluon.language._layouts")
    from triton._C.libtriton import gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    layouts = [
        (enc, gluon.BlockedLayout(*_lists(enc)))
        for enc in (COLUMNS, ROWS, ROWS.replace("[1, 8]", "[4, 4]").replace("[4, 8]", "[1, 32]"))
    ]
    for version, warps, shape in (
        (2, [4, 1], [16, 8]),
        (2, [2, 2], [16, 8]),
        (3, [4, 1], [16, 64, 16]),
        (3, [8, 1], [16, 128, 16]),
    ):
        text = f"versionMajor = {version}, versionMinor = 0, warpsPerCTA = {warps}"
        mma = gluon.NVMMADistributedLayout([version, 0], warps, shape)
        layouts.append((f"#ttg.nvidia_mma<{{{text}, instrShape = {shape}}}>", mma))
    for (text, layout), shape in itertools.product(layouts, [(128, 64), (16, 16), (64, 128)]):
        if "mma" in text and shape[0] < 64:
            continue
        sliced = f"#ttg.slice<{{dim = 1, parent = {text}}}>"
        for ours, theirs, of in (
            (text, layout, shape), (sliced, gluon.SliceLayout(1, layout), shape[:1])
        ):  # fmt: skip
            linear = builder.to_linear_layout(theirs._to_ir(builder), list(of))
            expected = {
                "register": [tuple(base) for base in linear.reg_bases if any(base)],
                "lane": [tuple(base) for base in linear.lane_bases],
                "warp": [tuple(base) for base in linear.warp_bases],
            }
            assert bases_of(ours, of) == expected, ours


def _lists(text):
    return [[int(n) for n in found.split(",")] for found in re.findall(r"\[([\d, ]+)\]", text)]


def seen(addresses, *, kind="load", width=2, mask=None):
    place = Place("a.py", 7)
    op = Operation(f"tt.{kind}", (), (1,), place)
    return Seen(op, 0, tuple(addresses.shape[1:]), width, [(addresses, mask)])


def asked(addresses, encoding, **how):
    one = seen(addresses, **how)
    ttgir = (
        f'#loc1 = loc("a.py":7:1)\n#e = {encoding}\n'
        f"%1 = tt.{one.kind} %p, %q : tensor<{'x'.join(map(str, one.shape))}x!tt.ptr<bf16>, #e>"
        " loc(#loc1)\n"
    )
    (laid,) = accessed(ttgir)
    assert laid.encoding == encoding and laid.place.line == 7
    return next(requests(Listing((), ()), [laid], [one]))


def test_sectors_of_a_request():
    rows, columns = torch.arange(32)[:, None], torch.arange(64)
    dense = asked((2 * (64 * rows + columns))[None], ROWS)
    assert (dense.sectors, dense.least, dense.bytes, dense.apart) == (16, 16, 16, 16)
    assert dense.lanes[:3] == (0, 16, 32)
    # A matrix whose columns lie in one piece each: a lane's 8 elements are 4096 bytes apart.
    apart = asked((2 * (rows + 2048 * columns))[None], ROWS)
    assert (apart.sectors, apart.least, apart.bytes) == (8, 2, 2)  # 4 rows share a sector
    assert apart.lanes[0] == 0 and apart.lanes[1] == 8 * 4096
    spread = asked((4096 * torch.arange(256))[None], "#ttg.blocked<{sizePerThread = [1],"
                   " threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>")  # fmt: skip
    assert (spread.sectors, spread.least, spread.apart) == (32, 2, 4096)


def test_what_a_mask_leaves_out_takes_no_sector():
    addresses, mask = (2 * torch.arange(256))[None], (torch.arange(256) < 40)[None]
    line = "#ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4],"
    found = asked(addresses, line + " order = [0]}>", mask=mask)
    assert found.requests == 2  # of lanes 0 to 31, and 32 to 39
    assert found.sectors == (2 + 1) / 2
    # Of lanes that hold the same element the first stores it.
    rows = f"#ttg.slice<{{dim = 1, parent = {ROWS}}}>"
    assert asked((2 * torch.arange(16))[None], rows, kind="store").requests == 4


WALK = """
tt.func public @k(%p: !tt.ptr<f32>, %i: !tt.ptr<i32>) {
  %x = tt.get_program_id x : i32
  %r = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>
  %s = tt.splat %p : !tt.ptr<f32> -> tensor<32x!tt.ptr<f32>>
  %b = tt.splat %x : i32 -> tensor<32xi32>
  %o = arith.muli %r, %b : tensor<32xi32>
  %q = tt.addptr %s, %o : tensor<32x!tt.ptr<f32>>, tensor<32xi32>
  %v = tt.load %q : tensor<32x!tt.ptr<f32>>
  %t = tt.splat %i : !tt.ptr<i32> -> tensor<32x!tt.ptr<i32>>
  %n = tt.load %t : tensor<32x!tt.ptr<i32>>
  %w = tt.addptr %s, %n : tensor<32x!tt.ptr<f32>>, tensor<32xi32>
  tt.store %w, %v : tensor<32x!tt.ptr<f32>>
  tt.return
}
"""


def test_addresses_are_those_of_the_programs_and_none_are_made_of_data():
    arguments = [("p", torch.zeros(4096)), ("i", torch.zeros(4, dtype=torch.int32))]
    found = addressed(WALK, (8, 1, 1), arguments, [3, 7])
    assert [one.kind for one in found] == ["load", "load"]  # where the store goes was loaded
    ((addresses, _),) = found[0].rounds
    assert addresses.diff(dim=1).tolist() == [[12] * 31, [28] * 31]
    assert int(addresses[0, 0]) % 512 == 0


def test_loads_that_wait_one_behind_the_other():
    load = "/*0010*/ LDG.E.128 R{}, [R2.64] ;\n"
    use = "/*0020*/ FADD R1, R{}, R1 ;\n"
    together = read(load.format(4) + load.format(8) + use.format(5) + use.format(9))
    assert together.blocks[0].mix.fetches == 1
    apart = read((load.format(4) + use.format(7)) * 3)
    assert apart.blocks[0].mix.fetches == 3
    assert read(load.format(4)).blocks[0].mix.fetches == 1  # what uses it is in another block


def predicted_of(id, case):
    problem = load_problem("p02")
    answer = next((a for a in ANSWERS if a.id == id), None)
    text = whole_answer("p02")
    source = Source("p02", (answer.applied_to(text) if answer else text).encode())
    call = call_of(problem, case, problem.outputs)
    return predicted_call(
        case, compile_calls(source, problem, [call], capabilities=[90], predicts=call)
    )


@needs_ptxas
@pytest.mark.parametrize("layout", ["dense", "transposed"])
def test_the_model_answer_reads_both_layouts_of_p02_side_by_side(layout):
    shape = {"rows": 4096, "cols": 8192} | ({"layout": layout} if layout != "dense" else {})
    (launch,) = predicted_of("p02", resolve(shape, "bf16", "")).launches
    (x,) = (a for a in launch.accesses if a.line == launch.accesses[0].line)
    assert x.kind == "load" and x.sectors == x.least
    assert "as its bytes need" in request(x)
    assert {time.gpu for time in launch.times} == {"H100", "H200"}


@needs_ptxas
def test_rows_read_across_a_transposed_x_are_not_predicted():
    case = resolve({"rows": 4096, "cols": 8192, "layout": "transposed"}, "bf16", "")
    (launch,) = predicted_of("p02-rows_by_stride", case).launches
    x = launch.accesses[0]
    assert (x.sectors, x.least, x.lane_bytes, x.apart) == (32, 2, 2, 8 * 2 * 4096)
    assert not launch.times
    assert launch.unknown == f"line {x.line} reads 16 times the bytes that it needs"
    grid = request_grid(x)
    assert [(layer.letter, layer.count) for layer in grid.layers] == [("#", 32), (".", 992)]
    assert "32 sectors down, 2 would do" in grid.title


def test_what_a_check_compiles_is_predicted_as_large_as_what_is_timed():
    for id in ("p02", "p09"):
        problem = load_problem(id)
        (check,) = (check for check in problem.checks if check.compiles)
        (case, *_) = problem.cases(check, "1").values()
        large = like(case, timed_case(problem))
        assert (large.head_dim, large.cols, large.dtype) == (case.head_dim, case.cols, case.dtype)
        assert large.options == case.options
        timed = timed_case(problem)
        assert (large.rows, large.seqlen_k) == (timed.rows, timed.seqlen_k)
        assert large.batch * large.num_q_heads == timed.batch * timed.num_q_heads
    assert CHIPS == [80, 90]


def test_code_is_kept_beside_the_figures_and_damage_is_noticed(tmp_path):
    cached, made = (
        CachedKernel(tmp_path / "a.json"),
        {"ttgir": "tt.func \u00e9", "cubin": b"\x7fELF\0"},
    )
    assert cached.read_code() == {}
    cached.write_code(made)
    assert cached.read_code() == made
    (tmp_path / "a.code").write_bytes(b"no code")
    assert cached.read_code() == {}


ACCESS = {"file": "", "line": 41, "kind": "load", "sectors": 32, "least": 4, "lane_bytes": 4}
ACCESS |= {"apart": 4096, "lanes": [4096 * n for n in range(31)] + [-1], "taken": 31, "needed": 4}


def page_of(call):
    check = CheckResult(id="compiles", title="it compiles", verdict="fail", predicted=call)
    told = record(NAMES[0])
    problem = told.problems[0].model_copy(update={"checks": (check,)})
    told = told.model_copy(update={"problems": (problem,)})
    read_again = GradeRecord.model_validate_json(told.to_json())
    assert read_again.problems[0].checks[0].predicted == call
    return render(read_again), "\n".join(words.lines(read_again.problems))


def test_the_report_says_what_is_predicted_though_the_check_failed():
    each = {"ms": 0.25, "bound": "issue slots", "peak": 0.4}
    times = [{"gpu": gpu} | each for gpu in words.GPU_NAMES]
    launch = {"kernel": "_k", "line": 9, "launches": 2, "programs": 64, "times": times}
    launch |= {"costs": [{"file": "", "line": 41, "share": 0.5}], "accesses": [ACCESS]}
    call = PredictedCall(shape="rows=8", launches=(Prediction.model_validate(launch),))
    page, told = page_of(call)
    assert page.count("0.5 ms") == 3 and "No points depend on them" in page
    sentence = (
        "line 41: 32 sectors per request, 4 would do; neighbouring lanes are 4096 bytes apart"
    )
    assert sentence in page and "its 31 sectors down, 4 would do" in page
    assert "docs/predict.md says how far predictions for an H100 were off" in page
    assert told.startswith("predicted, never counts: A100 0.5 ms, H100 0.5 ms, H200 0.5 ms; rows=8")
    assert "_k: A100, H100, H200: bound by issue slots, 40 % of the peak of its dots" in told
    check = CheckResult(id="compiles", title="it compiles", verdict="fail", predicted=call)
    problem = record(NAMES[0]).problems[0].model_copy(update={"checks": (check,)})
    (line,) = words.lines([problem] * 2)  # of several no shape is said
    assert line.startswith("predicted for an H100, for other shapes than those timed, never counts")


def test_the_report_says_why_nothing_is_predicted():
    page, told = page_of(PredictedCall(shape="rows=8", unknown="A100: this Triton came without"))
    assert "Predicted: cannot tell: A100: this Triton came without" in page
    assert told == "predicted: cannot tell: A100: this Triton came without"
    unknown = "its dots use no tensor cores, and such dots are not modelled"
    launch = Prediction(kernel="_k", line=9, launches=1, programs=1, unknown=unknown)
    page, told = page_of(PredictedCall(shape="rows=1", launches=(launch,)))
    assert f"cannot tell: {unknown}" in page and f"_k: cannot tell: {unknown}" in told
    page, told = page_of(None)  # as in records that are older
    assert ">Predicted<" not in page and told == ""


@needs_ptxas
def test_one_row_is_predicted_too():
    (launch,) = predicted_of("p02", resolve({"rows": 1, "cols": 64}, "fp32", "")).launches
    assert launch.programs == 1 and launch.times and not launch.unknown


def test_what_the_page_says_was_counted_is_in_the_record():
    record = json.loads((ROOT / "docs" / "records" / "sectors-h100-2026-11-27.json").read_text())
    page = " ".join((ROOT / "docs" / "predict.md").read_text("utf-8").split())
    each = {name: k["load_sectors"] / k["load_requests"] for name, k in record["kernels"].items()}
    answers = {each["p02-answer, 16384x4096"], each["p04-answer, 2,16,16,4096,128"]}
    assert answers == {16.0} and "16.0 sectors per request of the loads of p02's and p04's" in page
    apart = each["p02-rows_by_stride, 4096x8192, x transposed"]
    assert apart == pytest.approx((8 * 32 + 16) / 9)  # 32 of x, 16 of w and of what is dense
    assert f"{apart:.1f} of those of p02_rows_by_stride" in page
