"""What the worker replies when the submission raises."""

import ast

import pytest
from triton.compiler.errors import CompilationError

from grader.running.faults import explain
from grader.running.protocol import Status

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
