"""Every way in which a submission can be unusable becomes one verdict with the student's own line.

The real worker runs here, in Triton's interpreter, one call for each fault; tests/test_bad_run.py
grades a whole submission of them.
"""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import reference
from grader import sandbox
from grader.manifest import ROOT, load_problem
from grader.model import Verdict
from grader.policy import Source
from grader.session import CaseFailed, Session

P02 = dataclasses.replace(load_problem("p02"), call_timeout_s=1.5)
CHECK, ARGUMENTS = P02.check("one_block"), P02.check("arguments")
HEAD = "import os, sys, time, ctypes, torch, triton\nimport triton.language as tl\n"
ENTRY = "def weighted_row_sum(x, w):\n"
GOOD = (ROOT / "solutions" / "p02" / P02.file).read_text(encoding="utf-8")
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
    "killed": (body("os.kill(os.getpid(), 9)").replace("# <-", ""), "out-of-memory", "SIGKILL"),
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
    "exit in a kernel": (kernel("sys.exit(1)"), "error", "SystemExit"),
    "read outside": (
        kernel("tl.load(x_ptr + 10**9 + ids)"),
        "fail",
        "read outside a tensor: past the end of argument x_ptr",
    ),
    "write outside": (
        kernel("tl.store(y_ptr - 1 + ids, 1.0)"),
        "fail",
        "write outside a tensor: before the start of argument y_ptr",
    ),
    "input written": (
        body("x.zero_(); return x[:, 0].clone()").replace("# <-", ""),
        "fail",
        "x was overw",
    ),
}


def session_of(source, problem=P02):
    torch.set_num_threads(1)
    data = Source("p02", Path(problem.file), source.encode())
    return Session(problem, data, device="cpu", interpret=True, seed="5eed")


def finding_of(session, index=0):
    try:
        session.compare(CHECK, CHECK.cases[index], index, reference.weighted_row_sum)
    except CaseFailed as failed:
        return failed.finding
    return None


@pytest.fixture
def session(request):
    session = session_of(request.param)
    yield session
    session.close()


@pytest.mark.parametrize(
    ("session", "name"),
    [(FAULTS[name][0], name) for name in FAULTS],
    ids=FAULTS,
    indirect=["session"],
)
def test_a_fault_becomes_a_verdict_with_its_line(session, name):
    source, verdict, headline = FAULTS[name]
    finding = finding_of(session)
    message = finding.message
    line = next((n for n, t in enumerate(source.splitlines(), 1) if "# <-" in t), None)
    assert (finding.verdict, headline in message.headline) == (verdict, True), message
    if line and not message.headline.startswith("y: got"):  # there the value is wrong, no line
        assert message.where.endswith(f"weighted_row_sum.py line {line}")
    text = json.dumps(dataclasses.asdict(message))
    assert "submission-" not in text and "grader/" not in text
    assert len(message.headline) <= 600 and "\n" not in message.headline
    assert len(message.output or "") <= 16 * 1024


RETURNS = {
    "None": "y: got None, expected a tensor",
    "[1, 2]": "y: got list, expected a tensor",
    "(x, w)": "y: got tuple, expected a tensor",
    "x": "y: got shape (4, 2048), expected (4,)",
    "x[:, :1]": "y: got shape (4, 1), expected (4,)",
    "x[:, 0]": "y: got strides (2048,), expected a dense tensor with strides (1,)",
    "x[:, 0].double()": "y: got dtype torch.float64, expected torch.float32",
    "x[:, 0].to('meta')": "y: got device meta, expected cpu",
    "x[:, 0].to_sparse()": "y: got torch.sparse_coo, expected a dense tensor",
}


def test_a_wrong_return_value_says_got_and_expected():
    source = (
        HEAD + f"returns = iter({list(RETURNS)!r})\n" + ENTRY + "    return eval(next(returns))\n"
    )
    session = session_of(source)
    for text, headline in RETURNS.items():
        finding = finding_of(session)
        assert (finding.verdict, finding.message.headline) == ("error", headline), text
    assert session.stopped is None
    session.close()


def test_a_crash_costs_one_case_and_four_end_the_run():
    session = session_of(body("os._exit(3)"))
    findings = [finding_of(session) for _ in range(6)]
    session.close()
    assert [f.verdict for f in findings] == ["crash"] * 4 + ["skipped"] * 2
    assert findings[-1].message.headline == "not run: a crash ended the worker 4 times before"


def test_two_timeouts_end_the_run():
    problem = dataclasses.replace(P02, call_timeout_s=0.3)
    session = session_of(body("time.sleep(99)"), problem)
    findings = [finding_of(session) for _ in range(3)]
    session.close()
    assert [f.verdict for f in findings] == ["timeout", "timeout", "skipped"]
    assert findings[-1].message.headline == "not run: 2 earlier calls did not return in time"


def test_filling_memory_twice_ends_the_run():
    session = session_of(body("torch.empty(2**44)"))
    findings = [finding_of(session) for _ in range(3)]
    session.close()
    assert [f.verdict for f in findings] == ["out-of-memory", "out-of-memory", "skipped"]


@pytest.mark.parametrize("first", [True, False], ids=["from the start", "for one dtype"])
def test_not_implemented_stops_the_run_unless_something_works(first):
    rule = "True" if first else "x.dtype == torch.float16"
    text = (
        f"    if {rule}:\n        raise NotImplementedError('later')\n    _check_arguments(x, w)\n"
    )
    session = session_of(GOOD.replace("    _check_arguments(x, w)\n", text))
    findings = [finding_of(session, index) for index in (0, 1, 0)]
    session.close()
    verdicts = [f and f.verdict for f in findings]
    assert CHECK.cases[1].dtype == "fp16"
    assert verdicts == (
        ["not-implemented", "skipped", "skipped"] if first else [None, "not-implemented", None]
    )


def test_the_same_exception_for_a_wrong_argument_is_the_same_cause():
    def refuse(session):
        with pytest.raises(CaseFailed) as caught:
            session.expect_value_error(ARGUMENTS, ARGUMENTS.cases[0], 0)
        return caught.value.finding

    broken = session_of(body("raise KeyError('x')"))
    first, second = finding_of(broken), refuse(broken)
    assert (second.verdict, second.message.headline) == (first.verdict, first.message.headline)
    broken.close()
    fresh = session_of(body("raise KeyError('x')"))
    finding = refuse(fresh)
    assert finding.verdict == "fail"
    assert "got KeyError: 'x'; expected ValueError naming 'x'" in finding.message.headline
    fresh.close()


def test_a_worker_that_cannot_start_is_the_judges_fault(monkeypatch, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text("raise ImportError('no torch')")
    monkeypatch.setattr(sandbox, "_WORKER", script)
    session = session_of(GOOD)
    findings = [finding_of(session) for _ in range(2)]
    session.close()
    assert [f.verdict for f in findings] == [Verdict.INTERNAL] * 2
    assert "the judge's worker did not start" in findings[0].message.headline
    assert "no torch" in findings[0].message.output


def test_a_good_answer_passes():
    session = session_of(GOOD)
    assert finding_of(session) is None
    session.close()
