"""Every way in which a submission can be unusable becomes one verdict with the student's own line.

The real worker runs here, in Triton's interpreter, one call for each fault; tests/test_bad_run.py
grades a whole submission of them.
"""

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
import torch

import reference
from grader import sandbox
from grader.manifest import ROOT, load_problem
from grader.model import Verdict
from grader.policy import Source
from grader.sandbox import Sandbox
from grader.session import CaseFailed, Session
from grader.protocol import Status

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
    "import error": ("import no_such_module  # <-\n", "error", "the file cannot be imported: Modul"),
    "error at import": (HEAD + "x = 1 / 0  # <-\n", "error", "imported: ZeroDivisionError: division"),
    "exit at import": ("import sys\nsys.exit(0)  # <-\n", "error", "called exit: SystemExit raised"),
    "_exit at import": ("import os\nos._exit(0)\n", "crash", "exited with code 0 during the import"),
    "no function": ("weighted_row_sum = 3\n", "error", "no function 'weighted_row_sum' after import"),
    "returns None": (body("pass"), "error", "y: got None, expected a tensor"),
    "returns a list": (body("return [1, 2]"), "error", "y: got list, expected a tensor"),
    "wrong shape": (body("return x"), "error", "y: got shape (8, 1024), expected (8,)"),
    "wrong dtype": (body("return x[:, 0].double()"), "error", "got dtype torch.float64, expected"),
    "wrong device": (body("return x[:, 0].to('meta')"), "error", "got device meta, expected cpu"),
    "sparse": (body("return x[:, 0].to_sparse()"), "error", "got torch.sparse_coo, expected a dense"),
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
    "exit": (body("sys.exit('bye')"), "error", "the submission called exit: SystemExit raised with bye"),
    "_exit": (body("os._exit(0)"), "crash", "the process exited with code 0 during the call"),
    "segmentation fault": (body("ctypes.string_at(0)"), "crash", "died with SIGSEGV during the call"),
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
    "closed output": (body("sys.stdout.close(); sys.stderr = None; 1 / 0"), "error", "ZeroDivision"),
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
    "input written": (body("x.zero_(); return x[:, 0]").replace("# <-", ""), "fail", "x was overw"),
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
    ("session", "name"), [(FAULTS[name][0], name) for name in FAULTS], ids=FAULTS, indirect=["session"]
)
def test_a_fault_becomes_a_verdict_with_its_line(session, name, monkeypatch):
    source, verdict, headline = FAULTS[name]
    finding = finding_of(session)
    message = finding.message
    line = next((n for n, t in enumerate(source.splitlines(), 1) if "# <-" in t), None)
    if verdict == "error" and ("expected a" in headline or "expected (" in headline):
        line = None  # the value is wrong, no line is
    assert (finding.verdict, headline in message.headline) == (verdict, True), message
    if line and not headline.startswith(("y: ", "got d")):
        assert message.where.endswith(f"weighted_row_sum.py line {line}")
    text = json.dumps(dataclasses.asdict(message))
    assert "submission-" not in text and "grader/" not in text
    assert len(message.headline) <= 600 and "\n" not in message.headline
    assert len(message.output or "") <= 16 * 1024


ANSWER = b"""
import json, os, resource, socket, sys
links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{fd}")}
fork = socket.socket(fileno=os.dup(int(sys.argv[1])))
for nonce in range(20):  # forged: every answer but the one that was asked for
    fork.send(b"grader1\\0" + nonce.to_bytes(8, "little") + bytes(2144))
print(json.dumps({
    "environment": dict(os.environ), "descriptors": links, "path": sys.path,
    "modules": [m for m in sys.modules if m.startswith(("grader", "reference", "pytest"))],
    "session": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(),
    "first": open("/proc/self/oom_score_adj").read(),
    **{name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))
       for name in ("CORE", "FSIZE", "AS")},
}))
"""


def test_the_real_worker_gives_a_submission_little(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    monkeypatch.setenv("GRADER_SECRET", "seed")
    monkeypatch.setenv("LD_PRELOAD", "")
    with Sandbox(ANSWER, "answer.py", "answer", device="cpu", interpret=True) as worker:
        assert worker.ready().status is Status.NO_ENTRY
        found = json.loads(worker.output())
        assert worker.ask("release", 10.0).status is Status.OK
    known = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_HOME", "CC", "HOME"}
    known |= {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "TRITON_LIBCUDA_PATH", "TMPDIR"}
    known |= {"TRITON_PTXAS_PATH", "TRITON_CACHE_DIR", "TRITON_INTERPRET", "OMP_NUM_THREADS"}
    unknown = found["environment"].keys() - known - {"PYTHONDONTWRITEBYTECODE"}
    assert {n for n in unknown if not n.startswith(("KMP_", "TORCH", "PYTORCH"))} == set()
    assert found["environment"]["HOME"] == found["environment"]["TMPDIR"] == found["cwd"]
    others = {n: t for n, t in found["descriptors"].items() if int(n) > 2}
    assert sum("socket" in target for target in others.values()) == 1
    assert not [t for t in others.values() if str(ROOT) in t or "memfd" in t or "pipe" in t]
    assert str(ROOT) not in found["path"] and str(tmp_path) not in found["path"]
    assert not [m for m in found["modules"] if m.startswith(("reference", "pytest"))]
    assert found["session"] == found["pid"] == worker.pid
    assert found["CORE"] == [0, 0] and found["FSIZE"][1] == 2**30 and found["first"] == "1000\n"
    assert found["AS"][1] < 40 * 2**30


