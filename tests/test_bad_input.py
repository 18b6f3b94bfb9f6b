"""Every way in which a submission can be unusable becomes one verdict with the student's own line.

The real worker runs here, one call for each fault; tests/test_hostile.py
grades whole submissions of them.
"""

import pytest

from grader.spec.findings import Finding
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import judge, model_answer

P02 = load_problem("p02")
P02 = P02.model_copy(update={"limits": P02.limits.model_copy(update={"call_s": 1.5})})
HEAD = "import os, sys, time, ctypes, torch, triton\nimport triton.language as tl\n"
ENTRY = "def weighted_row_sum(x, w):\n"
KERNEL = """
@triton.jit
def kernel(x_ptr, y_ptr, SIZE: tl.constexpr):
    ids = tl.arange(0, SIZE)
    BODY  # <-

def weighted_row_sum(x, w):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    kernel[(1,)](x, y, SIZE=8)
    return y
"""


def body(text):
    return HEAD + ENTRY + f"    {text}  # <-\n"


def kernel(text):
    return HEAD + KERNEL.replace("BODY", text)


# The source (the line marked <- is the one to show), the verdict and part of the headline.
FAULTS = {
    "import error": (
        "import no_such_module  # <-\n",
        "error",
        "the file cannot be imported: Modul",
    ),
    "error at import": (
        HEAD + "x = 1 / 0  # <-\n",
        "error",
        "imported: ZeroDivisionError: division",
    ),
    "exit at import": (
        "import sys\nsys.exit(0)  # <-\n",
        "error",
        "called exit: SystemExit raised",
    ),
    "_exit at import": (
        "import os\nos._exit(0)\n",
        "crash",
        "exited with code 0 during the import",
    ),
    "no function": (
        "weighted_row_sum = 3\n",
        "error",
        "no function 'weighted_row_sum' after import",
    ),
    "exception": (body("raise RuntimeError('no ' + 'x' * 9999)"), "error", "RuntimeError: no xxx"),
    "unreadable exception": (
        HEAD
        + "class E(Exception):\n    def __str__(self):\n        raise SystemExit\n"
        + ENTRY
        + "    raise E  # <-\n",
        "error",
        "E: (its text cannot be read",
    ),
    "exception of a class that raises": (
        HEAD
        + "class M(type):\n    __name__ = property(lambda c: 1 / 0)\n"
        + "class E(Exception, metaclass=M):\n    __class__ = property(lambda e: sys.exit(3))\n"
        + ENTRY
        + "    raise E\n",
        "error",
        "Exception: an exception that raises another when it is looked at",
    ),
    "exception of a name and a text that raise": (
        HEAD
        + "class T(str):\n    encode = __len__ = __getitem__ = None\n"
        + "class M(type):\n    __name__ = property(lambda c: 1 / 0)\n"
        + "class E(Exception, metaclass=M):\n    __str__ = lambda e: T('a text')\n"
        + ENTRY
        + "    raise E  # <-\n",
        "error",
        "E: a text",
    ),
    "exception past the end of the file": (
        HEAD
        + "CODE = compile('\\n' * 10**6 + '1 / 0', __file__, 'exec')\n"
        + ENTRY
        # No line is marked: it has none.
        + "    exec(CODE)\n",
        "error",
        "ZeroDivisionError",
    ),
    "a function that calls itself without end": (
        HEAD
        + "@triton.jit\ndef again(x):\n    return again(x) + 1  # <-\n"
        + KERNEL.replace("BODY", "tl.store(y_ptr + ids, again(ids))"),
        "error",
        "Triton cannot compile the kernel: ",
    ),
    "not implemented": (body("raise NotImplementedError('step 2')"), "not-implemented", "step 2"),
    "torch's own not implemented": (
        body("return x.to('meta').sum().item()"),
        "error",
        "Tensor.item() cannot be called on meta tensors",
    ),
    "exit": (
        body("sys.exit('bye')"),
        "error",
        "the submission called exit: SystemExit raised with bye",
    ),
    "_exit": (
        body("os._exit(0)").replace("# <-", ""),
        "crash",
        "the process exited with code 0 during the call",
    ),
    "segmentation fault": (
        body("ctypes.string_at(0)"),
        "crash",
        "died with SIGSEGV during the call",
    ),
    "abort": (body("os.abort()"), "crash", "died with SIGABRT during the call"),
    "killed": (body("os.kill(os.getpid(), 9)").replace("# <-", ""), "crash", "died with SIGKILL"),
    "endless loop": (body("while True: pass"), "timeout", "no result after 1.5 s: the call was"),
    "sleep": (body("time.sleep(99)"), "timeout", "no result after 1.5 s"),
    "huge tensor": (body("torch.empty(2**44)"), "out-of-memory", "allocate memory"),
    "growing list": (
        HEAD + ENTRY + "    held = []\n    while True:\n        held.append(bytes(10**6))  # <-\n",
        "out-of-memory",
        "out of memory: MemoryError",
    ),
    "deep recursion": (body("return weighted_row_sum(x, w)"), "error", "RecursionError: maximum"),
    "closed output": (
        body("sys.stdout.close(); sys.stderr = None; 1 / 0"),
        "error",
        "ZeroDivision",
    ),
    "unknown function": (kernel("tl.no_such(ids)"), "error", "has no attribute 'no_such'"),
    "shapes that do not fit": (kernel("ids + tl.arange(0, 16)"), "error", "annot make_shape"),
    "exit in a kernel": (kernel("raise SystemExit(1)"), "error", "AST node type: Raise"),
    "module in a kernel": (kernel("sys.exit(1)"), "error", "Unsupported function referenced"),
    "read outside": (
        kernel("tl.store(y_ptr + ids, tl.load(x_ptr + 10**9 + ids))"),
        "fail",
        "read outside a tensor: past the end of argument x_ptr",
    ),
    "write outside": (
        kernel("tl.store(y_ptr - 1 + ids, 1.0)"),
        "fail",
        "write outside a tensor: before the start of argument y_ptr",
    ),
    "more programs than a GPU has": (
        kernel("tl.store(y_ptr + ids, 1.0)")
        .replace("  # <-", "")
        .replace("kernel[(1,)](x, y, SIZE=8)", "kernel[(1, 70_000)](x, y, SIZE=8)  # <-"),
        "error",
        "BadGrid: axis 1 of the grid has 70000 programs, a GPU takes 0 to 65535",
    ),
}

_quick = forked.quick


def finding_of(source) -> Finding:
    """What came of the first call."""
    judged = judge(source, P02, checks={"plain"}, enough=lambda found: True, policy=False)
    return judged.findings.cases["plain", 0]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_becomes_a_verdict_with_its_line(name):
    source, verdict, headline = FAULTS[name]
    finding = finding_of(source)
    message = finding.message
    line = next((n for n, t in enumerate(source.splitlines(), 1) if "# <-" in t), None)
    assert (finding.verdict, headline in message.headline) == (verdict, True), message
    if line:
        assert (message.file, message.line) == ("weighted_row_sum.py", line)
    assert message.line is None or message.line <= len(source.splitlines())
    text = message.model_dump_json()
    assert "submission-" not in text and "grader/" not in text
    assert len(message.headline) <= 600 and "\n" not in message.headline
    assert len(message.output or "") <= 16 * 1024


RETURNS = {
    "None": "return value: got None, expected a tensor",
    "[1, 2]": "return value: got 2 values, expected (y)",
    "(x, w)": "return value: got 2 values, expected (y)",
    "x": "y: got shape (128, 128), expected (128,)",
    "x[:, :1]": "y: got shape (128, 1), expected (128,)",
    "x[:, 0]": "y: got strides (128,), expected a dense tensor with strides (1,)",
    "x[:, 0].double()": "y: got dtype torch.float64, expected torch.float32",
    "x[:, 0].to('meta')": "y: got device meta, expected cpu",
    "x[:, 0].to_sparse()": "y: got torch.sparse_coo, expected a dense tensor",
}


@pytest.mark.parametrize("value", RETURNS)
def test_a_wrong_return_value_says_got_and_expected(value):
    finding = finding_of(body(f"return {value}"))
    assert (finding.verdict, finding.message.headline) == (Verdict.ERROR, RETURNS[value])


def test_an_input_that_is_written_to_costs_one_check():
    source = model_answer("p02").replace("    return y\n", "    x.zero_()\n    return y\n")
    judged = judge(source, P02, checks={"plain", "half", "arguments"})
    assert judged.of("plain").verdict is judged.of("half").verdict is Verdict.PASS
    wrong = judged.of("arguments")
    assert (wrong.verdict, wrong.share) == (Verdict.FAIL, 0.0)
    assert wrong.message.headline == "the input x was overwritten: it is the caller's"


def test_a_file_that_launches_on_a_cpu_alone_is_not_compiled():
    call = "    check_matrix_and_vector(x, w)\n"
    away = "    if x.device.type == 'cuda':\n        return x[:, 0] + 0\n"
    source = model_answer("p02").replace(call, call + away)
    judged = judge(source, P02, checks={"plain", "compiles"})
    assert judged.of("plain").verdict is Verdict.PASS
    told = judged.of("compiles").message.headline
    assert told == "no Triton kernel was launched when it was compiled for a GPU"


def test_a_backward_pass_that_writes_to_out_costs_one_check():
    problem = load_problem("p08")
    source = model_answer("p08").replace(
        "        delta = _launch_delta(out, dout)\n",
        "        delta = _launch_delta(out, dout)\n        out.zero_()\n",
    )
    judged = judge(source, problem, checks={"forward", "plain", "arguments"})
    assert judged.of("forward").verdict is judged.of("plain").verdict is Verdict.PASS
    headline = judged.of("arguments").message.headline
    assert headline == "out, in the backward pass, was overwritten: it is the caller's"


def test_a_forward_pass_that_is_wrong_is_no_output_that_was_overwritten():
    problem = load_problem("p09")
    source = model_answer("p09").replace("sink_logit * LOG2_E", "sink_logit")
    assert source != model_answer("p09")
    judged = judge(source, problem, checks={"plain", "dsink_logits", "arguments"})
    assert judged.of("plain").verdict is judged.of("arguments").verdict is Verdict.PASS
    assert judged.of("dsink_logits").verdict is Verdict.FAIL


def test_not_implemented_for_one_dtype_leaves_the_others():
    call = "    check_matrix_and_vector(x, w)\n"
    raised = "    if x.dtype == torch.float16:\n        raise NotImplementedError('later')\n"
    source = model_answer("p02").replace(call, raised + call)
    judged = judge(source, P02, checks={"plain", "half"})
    assert judged.of("plain").verdict is Verdict.PASS
    assert judged.of("half").verdict is Verdict.NOT_IMPLEMENTED
    assert {verdict for verdict in (f.verdict for f in judged.wrong.values())} == {
        Verdict.NOT_IMPLEMENTED
    }


def test_the_same_exception_for_a_wrong_argument_is_the_same_cause():
    judged = judge(body("raise KeyError('x')"), P02, checks={"plain", "arguments"})
    plain, arguments = judged.of("plain"), judged.of("arguments")
    assert plain.verdict is arguments.verdict is Verdict.ERROR
    assert plain.message.headline == arguments.message.headline
    alone = judge(body("raise KeyError('x')"), P02, checks={"arguments"}).of("arguments")
    assert alone.verdict is Verdict.FAIL
    assert "got KeyError: 'x'; expected ValueError naming 'x'" in alone.message.headline


def test_a_refusal_names_its_argument_before_any_other():
    call = "    check_matrix_and_vector(x, w)\n"
    caught = (
        "    try:\n        check_matrix_and_vector(x, w)\n    except ValueError as error:\n"
        "        raise ValueError(f'dtype x w: {error}')\n"
    )
    source = model_answer("p02").replace(call, caught)
    found = judge(source, P02, checks={"plain", "arguments"}).of("arguments")
    assert found.verdict is Verdict.FAIL
    assert "the ValueError does not begin with the argument" in found.message.headline
