"""Kernels are compiled for GPUs that are not there: what is found, refused and let pass.

The sources here are small; most share one worker, and the scale of a call chooses what it launches.
That worker is why they are all in this file, of over 400 lines.
"""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from grader.checks import outcome
from grader.isolate import capacity, compiled
from grader.isolate.compiled import Call, Compiled, compile_calls
from grader.kernel.compile.chips import CHIPS, resident_programs
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from grader.spec.protocol import Ended, Status
from tests.harness import PROMPT_S, model_answer

P03 = load_problem("p03")
A100, H100 = CHIPS[80], CHIPS[90]

MANY = """\
import torch, triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def narrow(q_ptr, out_ptr):
    rows, cols = tl.arange(0, 16), tl.arange(0, 8)
    a = tl.load(q_ptr + rows[:, None] * 8 + cols[None, :])
    b = tl.load(q_ptr + cols[:, None] * 16 + rows[None, :])
    tl.store(out_ptr + rows[:, None] * 16 + rows[None, :], tl.dot(a, b))  # narrow

@triton.jit
def leaves_a_loop(out_ptr, n):
    for i in range(n):
        tl.store(out_ptr + i, 0.0)
        if i > 3:
            break  # leaves_a_loop

@triton.jit
def product(a, b):
    return tl.dot(a, b)  # product

@triton.jit
def mixed(q_ptr, out_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    a = tl.load(q_ptr + at)
    tl.store(out_ptr + at, product(a.to(tl.float32), a))

@triton.jit
def runtime_size(out_ptr, n):
    tl.store(out_ptr + tl.arange(0, n), 0.0)  # runtime_size

@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, n, SIZE: tl.constexpr, PRECISION: tl.constexpr = "ieee"):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    acc = tl.zeros((SIZE, SIZE), tl.float32)
    for i in range(n):
        a, b = tl.load(a_ptr + at + i * SIZE), tl.load(b_ptr + at + i * SIZE)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)  # matmul
    tl.store(out_ptr + at, acc)

tuned = triton.autotune(
    [triton.Config({"SIZE": 128}, num_stages=8), triton.Config({"SIZE": 64}, num_stages=2),
     triton.Config({"SIZE": 32}, num_stages=2)], key=["n"])(matmul)
chosen = triton.heuristics({"SIZE": lambda args: 32})(matmul)

@triton.jit
def fill(out_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out_ptr + at, 1.0, mask=at < n)

@triton.jit
def copy_all(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.load(x_ptr + at + SIZE))

@triton.jit
def device_descriptor(q_ptr, out_ptr, rows):
    tiles = tl.make_tensor_descriptor(q_ptr, [rows, 64], [64, 1], [32, 64])
    at = tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out_ptr + at, tiles.load([0, 0]).to(tl.float32))

@triton.jit
def host_descriptor(tiles, outs, OPTIONS: tl.constexpr):
    at = tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(outs[0] + at, tiles.load([0, 0]).to(tl.float32) * OPTIONS[1])

@triton.jit
def no_tensor_cores(q_ptr, out_ptr):
    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    a = tl.load(q_ptr + at)
    tl.store(out_ptr + at, tl.dot(a.to(tl.float32), a.to(tl.float32), input_precision="ieee"))

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        ctx.save_for_backward(q)
        return 2 * q

    @staticmethod
    def backward(ctx, dout):
        dq = torch.empty(dout.shape, dtype=dout.dtype, device=ctx.saved_tensors[0].device)
        fill[(1,)](dq, dq.numel(), SIZE=16)
        return dq

@triton.jit
def assembly(out_ptr):
    x = tl.load(out_ptr)
    tl.store(out_ptr, tl.inline_asm_elementwise(
        "bogus.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1))

@triton.jit
def spills(out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    a, b = tl.load(out_ptr + at), tl.load(out_ptr + SIZE + at)
    tl.store(out_ptr + at, a + b * tl.sum(a * b))

@triton.jit
def many(out_ptr, N: tl.constexpr):
    tl.store(out_ptr, N)

def attention(q, k, v, *, softmax_scale=None):
    out = torch.empty(q.shape, dtype=torch.float32, device="cuda")
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    flat, n = q.view(-1), q.shape[2]
    WAYS[int(softmax_scale)](q, flat, out, n)
    return out, lse

def differentiated(q, flat, out, n):
    with torch.enable_grad():
        x = q.float().requires_grad_()
        (dq,) = torch.autograd.grad(Doubled.apply(x.to(torch.float16)).sum(), x)
    assert dq.device == q.device

def with_second_way(q, flat, out, n):
    try:
        matmul[(1,)](q, q, out, n, SIZE=128, num_stages=8)
    except triton.runtime.OutOfResources as error:
        matmul[(1,)](q, q, out, n, SIZE=16)

def asks_about_the_gpu(q, flat, out, n):
    properties = torch.cuda.get_device_properties(q.device)
    driver = triton.runtime.driver.active
    with torch.cuda.device(q.device), torch.device("cuda"):
        on_gpu = torch.ones(4)
    on_cpu = torch.ones(4)
    assert q.is_cuda and q.get_device() == torch.cuda.current_device() == 0
    assert driver.get_current_target().arch == 10 * properties.major + properties.minor
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] > 100
    assert torch.isfinite(q).all() and (q == q[0, 0, 0, 0]).all() and q.sum().item() != 0.0
    assert torch.cuda.is_available()
    for x in (on_gpu, on_cpu.to(q.device), on_cpu.cuda(), on_cpu.to(q), q.new_zeros(4),
              torch.as_tensor(q), torch.zeros_like(q), on_gpu.double(), q.to(torch.float32)):
        fill[(1,)](x, 4, SIZE=32)
    kernel = fill.warmup(out, 4, SIZE=64, grid=(1,))
    kernel._init_handles()
    kernel[(kernel.n_regs, 1, 1)](out, 4, 64)

WAYS = {
    0: lambda q, flat, out, n: None,
    1: lambda q, flat, out, n: narrow[(1,)](q, out),
    2: lambda q, flat, out, n: leaves_a_loop[(1,)](out, n),
    3: lambda q, flat, out, n: mixed[(1,)](q, out),
    4: lambda q, flat, out, n: runtime_size[(1,)](out, n),
    5: lambda q, flat, out, n: matmul[(1,)](q, q, out, n, SIZE=128, num_stages=8),
    6: lambda q, flat, out, n: [fill[lambda meta: (meta["SIZE"],)](out, i + 32, SIZE=128)
                                for i in range(5000)],
    7: lambda q, flat, out, n: tuned[lambda meta: (meta["SIZE"],)](q, q, out, n),
    8: lambda q, flat, out, n: fill[(1,)](torch.empty(n), n, SIZE=128),
    9: lambda q, flat, out, n: chosen[(1,)](q, q, out, n),
    10: lambda q, flat, out, n: device_descriptor[(1,)](q, out, n),
    11: lambda q, flat, out, n: host_descriptor[(1,)](
        TensorDescriptor.from_tensor(q.view(-1, 64), [32, 64]), (out, n), (1, 2.0)),
    12: with_second_way,
    13: lambda q, flat, out, n: [narrow[(1,)](q, out), runtime_size[(1,)](out, n),
                                 fill[(1,)](out, n, SIZE=256)],
    14: lambda q, flat, out, n: fill[(1, 70000)](out, n, SIZE=128),
    15: lambda q, flat, out, n: [copy_all[(1,)](flat[8 * i:], out, SIZE=2048) for i in (0, 1, 2)],
    16: lambda q, flat, out, n: [copy_all[(1,)](flat[i:], out, SIZE=2048) for i in (1, 3)],
    17: asks_about_the_gpu,
    18: lambda q, flat, out, n: no_tensor_cores[(1,)](q, out),
    19: differentiated,
    20: lambda q, flat, out, n: fill[(1,)](out, n, SIZE=128, num_wraps=4),
    21: lambda q, flat, out, n: fill[(1,)](out, SIZE=128),
    22: lambda q, flat, out, n: [assembly[(1,)](out[..., i:]) for i in (0, 1)],
    23: lambda q, flat, out, n: spills[(1,)](out, SIZE=16384),
    24: lambda q, flat, out, n: fill[(1,)](out, n, SIZE=512, num_warps=64),
    25: lambda q, flat, out, n: fill[1](out, n, SIZE=1024),
    26: lambda q, flat, out, n: fill[(1,)](out, n, SIZE=1024),
    30: lambda q, flat, out, n: [many[(1,)](out, N=i) for i in range(100)],
}
"""


def call_of(scale, dtype="fp16", **given):
    given = {"seqlen": 64, "head_dim": 64, "softmax_scale": float(scale)} | given
    return Call.of(P03, resolve(given, dtype, ""), ("out",))


def compile_one(text: str, scales, capability=80, **options) -> Compiled:
    source = Source("p03", text.encode())
    calls = [call_of(scale) for scale in scales]
    return compile_calls(source, P03, calls, capabilities=(capability,), **options)[0]


def line_of(mark: str) -> int:
    lines = MANY.splitlines()
    return next(n for n, row in enumerate(lines, start=1) if row.endswith(f"# {mark}"))


@pytest.fixture(scope="module")
def seen():
    """What came of each way of MANY on each chip, which has one worker for all of them."""
    calls = [call_of(way) for way in range(27)]
    found = compile_calls(Source("p03", MANY.encode()), P03, calls)
    for whole in found:
        assert len(whole.results) == len(calls), (whole.results[-1], whole.output)
    return {whole.capability: whole for whole in found}


def result(seen, way, capability=80):
    return seen[capability].results[way]


def kernels(seen, name, capability=80):
    return [k for k in seen[capability].kernels if k.kernel.kernel == name]


@pytest.mark.parametrize("capability", CHIPS)
@pytest.mark.parametrize(
    ("way", "name", "mark", "words"),
    [
        (1, "narrow", "narrow", "K >= 16"),
        (2, "leaves_a_loop", "leaves_a_loop", "Break"),
        (3, "mixed", "product", "same dtype"),
        (4, "runtime_size", "runtime_size", "constexpr"),
    ],
)
def test_what_the_compiler_refuses_is_said_with_its_line(seen, way, name, mark, words, capability):
    reply = result(seen, way, capability)
    assert (reply.status, reply.line) == (Status.COMPILE_FAILED, line_of(mark))
    refusal = kernels(seen, name, capability)[0].kernel.refusal
    assert refusal.line == line_of(mark) and words in refusal.text


def test_shared_memory_beyond_the_chip_is_a_refusal(seen):
    for capability, has in ((80, 166912), (90, 232448)):
        assert result(seen, 5, capability).status is Status.COMPILE_FAILED
        (kernel,) = [k for k in kernels(seen, "matmul", capability) if k.kernel.refusal]
        report = kernel.kernel
        needs = report.shared_bytes
        assert needs > has and kernel.programs == 0
        assert report.refusal.text == f"needs {needs} bytes of shared memory, the chip has {has}"
        assert report.refusal.line == 1 + MANY.splitlines().index(
            "    5: lambda q, flat, out, n: matmul[(1,)](q, q, out, n, SIZE=128, num_stages=8),"
        )


def test_thousands_of_launches_of_one_kernel_are_one_record(seen):
    assert result(seen, 6).status is Status.OK and result(seen, 6).launches == 5000
    found = [k.kernel.types for k in kernels(seen, "fill") if "SIZE=128" in k.kernel.constants]
    assert 1 <= len(found) <= 3
    assert all(re.search(r"=\*fp(16|32)", types) and "SIZE" not in types for types in found)


def test_an_autotuned_kernel_takes_the_first_configuration_that_the_chip_has_room_for(seen):
    assert result(seen, 7).status is Status.OK
    sizes = [k.kernel.constants for k in kernels(seen, "matmul") if k.kernel.refusal is None]
    assert any("SIZE=64" in text for text in sizes)


def test_a_tensor_in_the_cpus_memory_is_refused(seen):
    reply = result(seen, 8)
    assert reply.status is Status.EXCEPTION
    assert reply.text == "out_ptr: got a tensor in the CPU's memory, expected the GPU's"


def test_heuristics_and_descriptors_compile(seen):
    for capability in CHIPS:
        assert result(seen, 9, capability).status is Status.OK
        assert result(seen, 11, capability).status is Status.OK
    (kernel,) = kernels(seen, "host_descriptor", 90)
    assert kernel.kernel.registers and kernel.programs


def test_a_descriptor_in_the_kernel_needs_an_allocator_where_there_is_hardware_for_it(seen):
    assert result(seen, 10, 80).status is Status.OK
    assert "no allocator was set" in result(seen, 10, 90).text


def test_what_a_submission_catches_is_no_refusal(seen):
    assert result(seen, 12).status is Status.OK
    assert len([k for k in kernels(seen, "matmul") if k.kernel.refusal]) == 1  # that of way 5


def test_after_a_refusal_the_other_kernels_are_compiled_too(seen):
    assert result(seen, 13).status is Status.COMPILE_FAILED
    assert [k for k in kernels(seen, "fill") if "SIZE=256" in k.kernel.constants]


def test_a_grid_that_no_gpu_takes_is_refused(seen):
    assert result(seen, 14).text == "axis 1 of the grid has 70000 programs, a GPU takes 65535"


def test_pointers_are_specialised_by_16_bytes(seen):
    assert result(seen, 15).status is result(seen, 16).status is Status.OK
    assert len(kernels(seen, "copy_all")) == 2  # 5 launches: divisible by 16, and not


@pytest.mark.parametrize("capability", CHIPS)
def test_a_submission_is_told_of_a_gpu_and_computes_with_values(seen, capability):
    reply = result(seen, 17, capability)
    assert (reply.status, reply.text) == (Status.OK, "")


def test_a_backward_pass_of_the_submissions_own(seen):
    assert result(seen, 19).status is Status.OK, result(seen, 19).text


@pytest.mark.parametrize(("way", "words"), [(20, "num_wraps"), (21, "'n'")])
def test_what_does_not_fit_the_kernel_is_refused_as_by_a_launch(seen, way, words):
    assert result(seen, way).status is Status.EXCEPTION and words in result(seen, way).text


@pytest.mark.parametrize("capability", CHIPS)
def test_what_the_assembler_refuses_is_a_sentence_with_the_line_of_the_instruction(
    seen, capability
):
    said = "NVIDIA's assembler knows no instruction 'bogus'"
    reply = result(seen, 22, capability)
    assert (reply.status, reply.text) == (Status.COMPILE_FAILED, said)
    (kernel,) = kernels(seen, "assembly", capability)  # for aligned pointers and for others
    refusal = kernel.kernel.refusal
    assert (refusal.text, refusal.line) == (said, reply.line)
    assert refusal.line == 1 + MANY.splitlines().index(
        '        "bogus.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1))'
    )


def test_spills_are_counted(seen):
    (kernel,) = kernels(seen, "spills")
    report = kernel.kernel
    assert report.registers == 255 and min(report.stack_bytes, report.spill_load_bytes) > 40
    assert (kernel.programs, kernel.limit) == (2, "registers")


def test_more_threads_than_a_program_may_have(seen):
    found = [k.kernel for k in kernels(seen, "fill") if "SIZE=512" in k.kernel.constants]
    assert [k.refusal.text for k in found] == ["needs 2048 threads, the chip has 1024"]


def test_a_mistake_in_one_launch_is_not_held_against_the_next(seen):
    assert "has no len()" in result(seen, 25).text and result(seen, 26).status is Status.OK


def test_dots_are_told_by_their_instructions(seen):
    instructions = {}
    for capability in CHIPS:
        for name in ("matmul", "no_tensor_cores"):
            report = next(k.kernel for k in kernels(seen, name, capability) if not k.kernel.refusal)
            instructions[name, capability] = [dot.instruction for dot in report.dots]
    assert instructions["no_tensor_cores", 80] == ["none"]
    assert instructions["matmul", 80] == ["mma"]


def test_a_call_without_a_launch_gives_an_empty_list():
    found = compile_one(MANY, [0])
    assert compiled.unavailable() is None
    assert found.kernels == () and found.launches == 0
    assert [reply.status for reply in found.results] == [Status.OK]


def test_no_more_kernels_than_a_report_holds():
    found = compile_one(MANY, [30])
    assert found.results[0].error_type == "TooManyKernels"
    assert len(found.kernels) == 32 and found.seconds < 40


HANGS = """\
import torch, triton
import triton.language as tl

@triton.constexpr_function
def endless(n):
    while True:
        n += 1  # here

@triton.jit
def first(out_ptr):
    tl.store(out_ptr, 1.0)

@triton.jit
def kernel(out_ptr):
    tl.store(out_ptr, endless(1))

def attention(q, k, v, *, softmax_scale=None):
    first[(1,)](q)
    kernel[(1,)](q)
"""


def test_a_compilation_without_end_is_ended_and_what_came_before_it_is_known():
    begin = time.monotonic()
    found = compile_one(HANGS, [0, 1], timeout_s=3.0)
    (ended,) = found.results
    assert isinstance(ended, Ended) and ended.timeout
    assert HANGS.splitlines()[ended.line - 1].strip() in ("while True:", "n += 1  # here")
    assert [k.kernel.kernel for k in found.kernels] == ["first"]
    assert time.monotonic() - begin < PROMPT_S


@pytest.mark.parametrize(
    ("line", "compiling", "word"),
    [(0, False, "less code"), (9, True, "less code"), (9, False, "never ends")],
)
def test_a_compilation_that_takes_too_long_is_told_as_one(line, compiling, word):
    ended = Ended(timeout=True, line=line, compiling=compiling, waited_s=60.0)
    told = outcome.of_result(ended, what=outcome.COMPILATION)
    assert told.verdict is Verdict.TIMEOUT and word in told.help
    assert "loop" in outcome.of_result(ended).help or compiling


@pytest.mark.parametrize("problem_id", ["p02", "p04", "p07", "p09"])  # tests/test_answers.py: all
def test_model_answers_compile_for_both_chips(problem_id):
    problem = load_problem(problem_id)
    on_rows = "rows" in problem.base.given
    source = Source(problem_id, model_answer(problem_id).encode())
    calls = []
    for head_dim in (64, 128):
        given = {"head_dim": head_dim} | dict.fromkeys(("seqlen",), 512)
        if on_rows:
            given = {"rows": 64, "cols": 16 * head_dim}
        elif problem_id >= "p05":
            given |= {"num_q_heads": 4, "num_kv_heads": 2}
        given |= {"window_size": 128} if problem_id in ("p06", "p07", "p09") else {}
        given |= {"num_sink_tokens": 4} if problem_id in ("p07", "p09") else {}
        given |= {"sink_logits": True} if problem_id == "p09" else {}
        outputs = problem.gradients[:3] or problem.returns[:1]
        case = resolve(given, "fp32" if on_rows else "fp16", "")
        calls.append(Call.of(problem, case, outputs))
    for found in compile_calls(source, problem, calls):
        assert [r.status for r in found.results] == [Status.OK] * 2, found.output
        assert found.refused == () and found.launches >= 2
        for kernel in found.kernels:
            assert kernel.programs and kernel.kernel.registers
            assert kernel.kernel.compile_ms
            # A kernel of `given` has no line in the submission.
            own = f"def {kernel.kernel.kernel}(" in model_answer(problem_id)
            assert bool(kernel.kernel.line) == own
            assert {dot.instruction for dot in kernel.kernel.dots} <= {"mma", "wgmma"}
        dots = [dot for kernel in found.kernels for dot in kernel.kernel.dots]
        assert bool(dots) != on_rows


KERNEL = {"kernel": "k", "line": 3, "num_warps": 4, "registers": 64, "shared_bytes": 1024}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b"{" * 5000,
        b"\xff\xfe",
        json.dumps(KERNEL | {"registers": 10**9}).encode(),
        json.dumps(KERNEL | {"registers": "many"}).encode(),
        json.dumps(KERNEL | {"points": 100}).encode(),
        json.dumps(KERNEL | {"kernel": "k" * 300}).encode(),
        json.dumps(KERNEL | {"line": -1}).encode(),
        json.dumps(KERNEL | {"compile_ms": float("nan")}).encode(),
        json.dumps(KERNEL | {"num_warps": 0}).encode(),
        json.dumps(KERNEL | {"dots": [{"line": 1, "instruction": "magic"}]}).encode(),
        json.dumps(KERNEL | {"constants": "x" * 10**6}).encode(),
    ],
)
def test_a_line_that_is_no_record_is_left_out(line):
    report = os.memfd_create("report")
    good = json.dumps(KERNEL).encode()
    os.write(report, b"\n".join([line, good, good, b'{"kernel": "unfini']))
    assert [found.kernel.line for found in compiled._read(report, 80)] == [KERNEL["line"]]
    os.close(report)


def test_a_report_without_end_is_cut():
    report = os.memfd_create("report")
    for i in range(20_000):
        os.write(report, json.dumps(KERNEL | {"line": i}).encode() + b"\n")
    assert len(compiled._read(report, 80)) == compiled.MAX_KERNELS
    os.close(report)


# From the occupancy calculator of CUDA 12.
@pytest.mark.parametrize(
    ("chip", "num_warps", "registers", "shared_bytes", "expected"),
    [
        (A100, 4, 32, 0, (16, "registers")),
        (A100, 4, 24, 0, (16, "threads")),
        (A100, 1, 16, 0, (32, "programs")),
        (A100, 4, 128, 0, (4, "registers")),
        (A100, 4, 255, 0, (2, "registers")),
        (A100, 8, 255, 0, (1, "registers")),
        (A100, 4, 64, 166912, (1, "shared memory")),
        (A100, 4, 64, 82944, (2, "shared memory")),
        (A100, 4, 64, 82945, (1, "shared memory")),
        (H100, 4, 168, 114688, (2, "shared memory")),
        (H100, 4, 168, 232448, (1, "shared memory")),
        (H100, 16, 128, 0, (1, "registers")),
    ],
)
def test_programs_that_share_a_multiprocessor(chip, num_warps, registers, shared_bytes, expected):
    usage = {"num_warps": num_warps, "registers": registers, "shared_bytes": shared_bytes}
    assert resident_programs(chip, **usage) == expected


@pytest.mark.parametrize(
    ("cores", "timeout_s", "at_a_time"), [(0.5, 120.0, 1), (1.0, 60.0, 1), (2.0, 60.0, 2)]
)
def test_where_a_container_has_less_than_a_core_it_takes_longer(
    monkeypatch, cores, timeout_s, at_a_time
):
    started, most, waits = [], [], []

    def compile_one_chip(source, problem, calls, capability, seconds, kernels):
        started.append(capability)
        most.append(len(started))
        waits.append(seconds)
        time.sleep(0.05)
        started.remove(capability)

    monkeypatch.setattr(capacity, "cores", lambda: cores)
    monkeypatch.setattr(compiled, "_compile", compile_one_chip)
    compiled.compile_calls(None, None, [])
    assert set(waits) == {timeout_s} and max(most) == at_a_time
