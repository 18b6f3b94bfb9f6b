"""Kernels are compiled for GPUs that are not there: what is found, refused and let pass.

Most share one worker, which tests/ways_to_launch.py says what to launch.
"""

import json
import os
import re
import time

import pytest

from grader.checks import outcome
from grader.isolate import capacity, compiled, sandbox
from grader.isolate.compiled import Compiled, call_of, compile_calls
from grader.isolate.compilers import Compilers
from grader.kernel.compile.chips import CHIPS, chip_of, resident_programs
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from grader.spec.protocol import Ended, Status
from tests import forked
from tests.harness import PROMPT_S, model_answer
from tests.shares import drawn
from tests.ways_to_launch import MANY

P03 = load_problem("p03")
A100, H100 = CHIPS[80], CHIPS[90]

_quick = forked.quick


def scaled_call(scale, dtype="fp16", **given):
    given = {"seqlen": 64, "head_dim": 64, "softmax_scale": float(scale)} | given
    return call_of(P03, resolve(given, dtype, ""), ("out",))


def compile_one(text: str, scales, capability=80, **options) -> Compiled:
    source = Source("p03", text.encode())
    calls = [scaled_call(scale) for scale in scales]
    return compile_calls(source, P03, calls, capabilities=(capability,), **options)[0]


def line_of(mark: str) -> int:
    lines = MANY.splitlines()
    return next(n for n, row in enumerate(lines, start=1) if row.endswith(f"# {mark}"))


@pytest.fixture(scope="module")
def seen():
    """What came of each way of MANY on each chip, which has one worker for all of them."""
    calls = [scaled_call(way) for way in range(27)]
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


def test_a_descriptor_of_the_host_compiles(seen):
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


def test_pointers_are_specialised_by_16_bytes(seen):
    assert result(seen, 15).status is result(seen, 16).status is Status.OK
    assert len(kernels(seen, "copy_all")) == 2  # 5 launches: divisible by 16, and not


@pytest.mark.parametrize("capability", CHIPS)
@pytest.mark.parametrize("way", [9, 11, 17, 19])
def test_heuristics_descriptors_questions_about_the_gpu_and_a_backward_pass(seen, way, capability):
    reply = result(seen, way, capability)
    assert (reply.status, reply.text) == (Status.OK, "")


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (8, "out_ptr: got a tensor in the CPU's memory, expected the GPU's"),
        (14, "axis 1 of the grid has 70000 programs, a GPU takes 0 to 65535"),
        (20, "num_wraps"),
        (21, "'n'"),
    ],
)
def test_what_does_not_fit_the_kernel_is_refused_as_by_a_launch(seen, way, words):
    reply = result(seen, way)
    assert reply.status is Status.EXCEPTION and words in reply.text


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


_ANSWERS = [(id, head_dim) for id in ("p02", "p04", "p07", "p09") for head_dim in (64, 128)]


@pytest.mark.parametrize(("problem_id", "head_dim"), drawn(_ANSWERS, 8))
def test_model_answers_compile_for_both_chips(problem_id, head_dim):
    problem = load_problem(problem_id)
    on_rows = "rows" in problem.base.given
    source = Source(problem_id, model_answer(problem_id).encode())
    given = {"head_dim": head_dim, "seqlen": 512}
    if on_rows:
        given = {"rows": 64, "cols": 16 * head_dim}
    elif problem_id >= "p05":
        given |= {"num_q_heads": 4, "num_kv_heads": 2}
    given |= {"window_size": 128} if problem_id in ("p06", "p07", "p09") else {}
    given |= {"num_sink_tokens": 4} if problem_id in ("p07", "p09") else {}
    given |= {"sink_logits": True} if problem_id == "p09" else {}
    outputs = problem.gradients[:3] or problem.returns[:1]
    case = resolve(given, "fp32" if on_rows else "fp16", "")
    for found in compile_calls(source, problem, [call_of(problem, case, outputs)]):
        assert [r.status for r in found.results] == [Status.OK], found.output
        assert found.refused == () and found.launches >= 1
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
    assert [found.kernel.line for found in compiled._kernels(report, 80)] == [KERNEL["line"]]
    os.close(report)


def test_a_report_without_end_is_cut():
    report = os.memfd_create("report")
    for i in range(20_000):
        os.write(report, json.dumps(KERNEL | {"line": i}).encode() + b"\n")
    assert len(compiled._kernels(report, 80)) == compiled.MAX_KERNELS
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


def test_a_cache_is_filled_with_what_a_launch_on_that_gpu_looks_for(tmp_path, monkeypatch):
    usual = sandbox._environment
    cache = {"TRITON_CACHE_DIR": str(tmp_path)}
    monkeypatch.setattr(sandbox, "_environment", lambda *given: usual(*given) | cache)
    calls, source = [scaled_call(2), scaled_call(7)], Source("p03", MANY.encode())
    Compilers(P03, source, calls, 1, None).wait()  # a GPU that is not known
    assert not list(tmp_path.iterdir())
    for _ in range(2):  # the second time all is there
        Compilers(P03, source, calls, 1, 90).wait()
        cubins = sorted(tmp_path.glob("*/*.cubin"))
        # Of the autotuned one each configuration, the one too large for the chip too.
        assert [path.stem for path in cubins].count("matmul") == 3
        written = {path: path.stat().st_mtime_ns for path in cubins}
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.cubin")}


def test_a_chip_that_is_not_listed_is_taken_for_the_next_older_one():
    assert chip_of(90) is H100 and chip_of(None) is None and chip_of(61) is None
    assert (chip_of(103).target, chip_of(103).name) == (("cuda", 103, 32), chip_of(100).name)
    assert chip_of(943) is None  # of AMD's each has a compiler target of its own


@pytest.mark.parametrize(
    ("cores", "timeout_s", "at_a_time"), [(0.5, 120.0, 1), (1.0, 60.0, 1), (2.0, 60.0, 2)]
)
def test_where_a_container_has_less_than_a_core_it_takes_longer(
    monkeypatch, cores, timeout_s, at_a_time
):
    started, most, waits = [], [], []

    def compile_one_chip(source, problem, calls, capability, seconds, *_):
        started.append(capability)
        most.append(len(started))
        waits.append(seconds)
        time.sleep(0.05)
        started.remove(capability)

    monkeypatch.setattr(capacity, "cores", lambda: cores)
    monkeypatch.setattr(compiled, "_compile", compile_one_chip)
    compiled.compile_calls(None, None, [])
    assert set(waits) == {timeout_s} and max(most) == at_a_time
