"""What the worker replies when the submission raises."""

import ast
import runpy

import pytest
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure
from triton.runtime.errors import PTXASError

from grader.checks.outcome import of_result
from grader.kernel.compile.faults import explain, unexplained
from grader.spec.protocol import Status

KERNEL = """import triton


@triton.jit
def kernel(x_ptr):
    x = 1
    {last}
"""


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("raise NotImplementedError('p04 step 1')", Status.NOT_IMPLEMENTED),
        ("x = x[", Status.COMPILE_FAILED),
        ("# raise NotImplementedError", Status.COMPILE_FAILED),
    ],
)
def test_triton_refuses_a_line(tmp_path, last, status):
    file = tmp_path / "submission.py"
    file.write_text(KERNEL.format(last=last), "utf-8")
    kernel = file.read_text("utf-8").split("@triton.jit\n")[1]
    node = ast.Pass(lineno=3, col_offset=4)
    reply = explain(7, CompilationError(kernel, node, "unsupported"), str(file), importing=False)
    assert (reply.status, reply.line, reply.nonce) == (status, 7, 7)


def test_an_assertion_without_a_message_is_told_by_its_line(tmp_path):
    file = tmp_path / "submission.py"
    file.write_text(KERNEL.format(last="tl.static_assert(x == 2)") + "\nassert 1 == 2\n", "utf-8")
    kernel = file.read_text("utf-8").split("@triton.jit\n")[1]
    error = CompileTimeAssertionFailure(kernel, ast.Pass(lineno=3, col_offset=4), None)
    assert explain(7, error, str(file), importing=False).text == "tl.static_assert(x == 2)"
    with pytest.raises(AssertionError) as caught:
        runpy.run_path(str(file))
    assert explain(7, caught.value, str(file), importing=False).text == "assert 1 == 2"


def test_triton_refuses_a_function_that_a_kernel_calls(tmp_path):
    file = tmp_path / "submission.py"
    helper = "def plain(x):\n    return x\n\n\n@triton"
    file.write_text(KERNEL.format(last="plain(x)").replace("@triton", helper), "utf-8")
    with pytest.raises(RuntimeError, match="Unsupported function") as caught:
        runpy.run_path(str(file))["kernel"].cache_key  # noqa: B018
    assert explain(7, caught.value, str(file), importing=False).line == 11


# What ptxas prints, word for word, and what becomes of it.
REFUSED = {
    "{ptx}, line 7; error   : Instruction 'wgmma.fence' not supported on .target 'sm_80'": (
        "NVIDIA's assembler refuses 'wgmma.fence', which this chip (sm_80) lacks"
    ),
    "{ptx}, line 7; error   : Modifier '.bf16' requires .target sm_90 or higher": (
        "NVIDIA's assembler refuses '.bf16', which this chip lacks: it needs sm_90 or higher"
    ),
    "{ptx}, line 7; error   : Modifier '.e4m3' on 'cvt' requires .target sm_89 or higher": (
        "NVIDIA's assembler refuses '.e4m3', which this chip lacks: it needs sm_89 or higher"
    ),
    "{ptx}, line 7; error   : Not a name of any known instruction: 'bogus'": (
        "NVIDIA's assembler knows no instruction 'bogus'"
    ),
    "{ptx}, line 7; error   : Arguments mismatch for instruction 'mov'": (
        "NVIDIA's assembler refuses the kernel: Arguments mismatch for instruction 'mov'"
    ),
    "error   : Entry function 'k' uses too much shared data (0x493e0 bytes, 0x28c00 max)": (
        "NVIDIA's assembler refuses the kernel: it needs 300000 bytes of shared memory, the chip"
        " has 166912"
    ),
    "fatal   : (C7600) Register allocation failed with register count of '64'. Compile the program"
    " with a higher register target": (
        "NVIDIA's assembler refuses the kernel: 64 registers per thread are not enough for it"
    ),
    "fatal   : Value 'sm_999' is not defined for option 'gpu-name'": (
        "NVIDIA's assembler does not know this GPU (sm_999)"
    ),
    "{ptx}, line 1; fatal   : Unsupported .version 99.0; current version is '8.7'": (
        "NVIDIA's assembler is too old for this Triton: it reads PTX 8.7, the kernel is PTX 99.0"
    ),
}
PTX = """\
.version 8.0
.visible .entry k(
)
{
.loc 1 3 0
add.f32 %f1, %f2, %f3;
{instruction}
.loc 1 8 0
.file 1 "{file}"
"""


def refused_by_the_assembler(tmp_path, line, instruction="", error="Internal Triton PTX codegen"):
    """What is replied when Triton raises with such a line, and leaves this PTX behind."""
    file, ptx = tmp_path / "submission.py", tmp_path / "tmp1234.ptx"
    file.write_text("import triton\n\n\ndef launch(error):\n    raise error\n", "utf-8")
    ptx.write_text(PTX.replace("{instruction}", instruction).replace("{file}", str(file)), "utf-8")
    log = f"ptxas {line.format(ptx=ptx)}\nptxas fatal   : Ptx assembly aborted due to errors"
    command = f"/opt/triton/bin/ptxas -lineinfo -v --gpu-name=sm_80 {ptx} -o {ptx}.o"
    text = f"{error}\n`ptxas` stderr:\n{log}\n\nRepro command: {command}\n"
    names = {}
    exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
    with pytest.raises(PTXASError) as raised:
        names["launch"](PTXASError(text))
    return explain(7, raised.value, str(file), importing=False)


@pytest.mark.parametrize("line", REFUSED)
def test_the_assembler_refuses_a_kernel(tmp_path, capsys, line):
    reply = refused_by_the_assembler(tmp_path, line)
    assert (reply.status, reply.text) == (Status.COMPILE_FAILED, REFUSED[line])
    assert reply.line == (3 if "line 7" in line else 5)  # that of `.loc`, or of the launch
    told = of_result(reply)
    assert told.headline == f"Triton cannot compile the kernel: {REFUSED[line]}"
    printed = capsys.readouterr().err
    assert line.replace("{ptx}", "tmp1234.ptx") in printed  # its own words, for who wants them
    for text in (told.headline, told.help or "", printed.splitlines()[-1]):
        assert str(tmp_path) not in text and "/opt" not in text and "Repro" not in text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("`ptxas` raised SIGSEGV", "NVIDIA's assembler died with SIGSEGV on the kernel"),
        (
            "`ptxas` failed with error code -9",
            "NVIDIA's assembler failed on the kernel with error code -9",
        ),
    ],
)
def test_the_assembler_dies(tmp_path, error, said):
    reply = refused_by_the_assembler(tmp_path, "info    : 0 bytes gmem", error=error)
    assert (reply.text, reply.line) == (said, 5)


def test_an_error_made_of_the_assemblers_is_said_in_the_same_words(tmp_path):
    text = "PTXAS error: x\n`ptxas` stderr:\nptxas t.ptx, line 3; error   : Unknown modifier '.x'\n"
    reply = explain(7, RuntimeError(f"failed: {text}"), str(tmp_path / "s.py"), importing=False)
    assert reply.text == "NVIDIA's assembler refuses the kernel: Unknown modifier '.x'"


def test_an_error_that_leaves_no_memory_to_look_at_it_is_out_of_memory():
    assert unexplained(7, MemoryError()).status is Status.OUT_OF_MEMORY
    assert unexplained(7, RuntimeError()).status is Status.EXCEPTION
