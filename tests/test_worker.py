"""The real worker process: what a submission can reach in it, and what it makes of results."""

import contextlib
import json

import pytest
import torch
import triton

from grader.isolate import worker
from grader.isolate.sandbox import Sandbox
from grader.isolate.session import Budget, Session
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.inputs import make_inputs
from grader.spec.problem import ROOT, load_problem
from grader.spec.protocol import Status
from tests.forked import forked_workers

P03 = load_problem("p03")
SEED = "5eed0123456789ab"

ANSWER = b"""
import json, os, resource, socket, sys
links = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{fd}")}
fork = socket.socket(fileno=os.dup(int(sys.argv[1])))
for nonce in range(20):  # forged: every answer but the one that was asked for
    fork.send(b"grader2\\0" + nonce.to_bytes(8, "little") + bytes(2121))
print(json.dumps({
    "environment": dict(os.environ), "descriptors": links, "path": sys.path, "argv": sys.orig_argv,
    "modules": [m for m in sys.modules if m.startswith(("grader", "reference", "pytest"))],
    "session": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(),
    "first": open("/proc/self/oom_score_adj").read(),
    **{name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))
       for name in ("CORE", "FSIZE", "AS")},
}))
"""

# What the entry point does is chosen by the softmax_scale of the call.
MANY = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(out_ptr, SIZE: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, SIZE), 1.0)

@triton.heuristics({"SIZE": lambda args: 8})
@triton.jit
def wrapped(out_ptr, SIZE: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, SIZE), 1.0)

@triton.jit
def copied(in_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, 2 * tl.load(in_ptr + at))

@triton.jit
def added(out_ptr, SIZE: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, SIZE), 1.0)

@triton.jit
def increased(out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(out_ptr + at) + 1.0)

def partly(out):
    out[..., :4] = 1.0
    return out

def after(launch, out):
    launch()
    return out

def late(q):
    many = [torch.empty(1) for _ in range(40)]
    return partly(torch.empty_like(q))

def read_later(q, out):
    kernel[(1,)](out, SIZE=8)
    copied[(1,)](out, torch.empty_like(q), SIZE=128)
    return out

def attention(q, k, v, *, softmax_scale=None):
    out, fresh, other = torch.ones_like(q), torch.empty_like(q), torch.empty_like(q)
    lse = torch.ones(q.shape[:3])
    for _ in range(int(softmax_scale) if softmax_scale > 0 else 0):
        kernel[(3,)](out, SIZE=8)
    if softmax_scale == 5:
        wrapped[(1,)](out)
    return {
        -1: lambda: out,
        -2: lambda: (out,),
        -3: lambda: [out, lse],
        -4: lambda: (out, lse.double()),
        -5: lambda: (out, None),
        -6: lambda: (out.double(), lse),
        -7: lambda: (out, lse, lse),
        -8: lambda: (),
        -9: lambda: {"out": out, "lse": lse},
        -10: lambda: (lse, out),
        -11: lambda: (out.transpose(2, 3).contiguous().transpose(2, 3), lse),
        -12: lambda: partly(torch.empty_like(q)),
        -13: lambda: torch.full_like(q, float("nan")),
        -14: lambda: q.add_(1.0).clone(),
        -15: lambda: torch.empty_like(q) + q,
        -16: lambda: torch.empty_like(q).add_(q),
        -17: lambda: after(lambda: added[(1,)](fresh, SIZE=128), fresh),
        -18: lambda: after(lambda: copied[(1,)](fresh, out, SIZE=128), out),
        -19: lambda: after(lambda: copied[(1,)](fresh, other, SIZE=64), other),
        -20: lambda: after(lambda: increased[(1,)](fresh, SIZE=128), fresh),
        -21: lambda: partly(torch.empty_like(q)).clone(),
        -22: lambda: late(q),
        -23: lambda: read_later(q, fresh),
    }.get(softmax_scale, lambda: (out, lse))()
"""


@pytest.mark.parametrize("forked", [False, True])
def test_the_real_worker_gives_a_submission_little(monkeypatch, tmp_path, forked):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    monkeypatch.setenv("GRADER_SECRET", SEED)
    monkeypatch.setenv("LD_PRELOAD", "")
    server = forked_workers() if forked else contextlib.nullcontext()
    options = {"device": "cpu", "role": "plan"}
    with server, Sandbox(ANSWER, "answer.py", "answer", **options) as worker:
        assert worker.ready().status is Status.NO_ENTRY
        found = json.loads(worker.output())
        assert worker.ask("release", 10.0).status is Status.OK
    known = {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_HOME", "CC", "HOME"}
    known |= {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "TRITON_LIBCUDA_PATH", "TMPDIR"}
    known |= {"TRITON_PTXAS_PATH", "TRITON_CACHE_DIR", "TRITON_INTERPRET", "OMP_NUM_THREADS"}
    unknown = found["environment"].keys() - known - {"PYTHONDONTWRITEBYTECODE"}
    assert {n for n in unknown if not n.startswith(("KMP_", "TORCH", "PYTORCH"))} == set()
    assert SEED not in json.dumps(found)
    assert found["environment"]["HOME"] == found["environment"]["TMPDIR"] == found["cwd"]
    others = {n: t for n, t in found["descriptors"].items() if int(n) > 2}
    assert sum("socket" in target for target in others.values()) == 1
    assert not [t for t in others.values() if str(ROOT) in t or "memfd" in t or "pipe" in t]
    assert str(ROOT) not in found["path"] and str(tmp_path) not in found["path"]
    assert not [m for m in found["modules"] if m.startswith(("reference", "pytest"))]
    assert found["session"] == found["pid"] == worker.pid
    assert found["CORE"] == [0, 0] and found["FSIZE"][1] == 2**30 and found["first"] == "1000\n"
    assert found["AS"][1] < 40 * 2**30


@pytest.fixture(scope="module")
def call():
    """Call MANY in one worker; return what was seen of the call."""
    torch.set_num_threads(1)
    source, budget = Source("p03", MANY.encode()), Budget(P03.limits)
    session = Session(P03, source, device="cpu", machine=True, budget=budget)

    def make_call(what, *outputs):
        given = {"seqlen": 8, "head_dim": 16, "softmax_scale": what}
        case = resolve(given, "fp32", "")
        return session.call(case, make_inputs(P03, case, 0), outputs)

    yield make_call
    session.close()


@pytest.mark.parametrize(("what", "launches"), [(0, 0), (1, 1), (3, 3), (3, 3), (5, 6), (0, 0)])
def test_launches_are_counted_anew_for_each_call(call, what, launches):
    reply = call(what, "out").result
    assert (reply.status, reply.launches) == (Status.OK, launches)


@pytest.mark.parametrize("what", [-1, -2, -3])
def test_a_lone_tensor_is_the_first_output_and_a_list_is_a_tuple(call, what):
    evidence = call(what, "out")
    assert evidence.result.status is Status.OK
    assert list(evidence.outputs) == ["out"] and bool((evidence.outputs["out"] == 1.0).all())


WRONG = {
    -1: ("lse", "lse: got no such value, expected a tuple (out, lse)"),
    -2: ("lse", "lse: got no such value, expected a tuple (out, lse)"),
    -4: ("lse", "lse: got dtype torch.float64, expected torch.float32"),
    -5: ("lse", "lse: got None, expected a tensor"),
    -6: ("out", "out: got dtype torch.float64, expected torch.float32"),
    -7: ("out", "return value: got 3 values, expected (out, lse)"),
    -8: ("out", "return value: got 0 values, expected (out, lse)"),
    -9: ("out", "return value: got dict, expected a tuple (out, lse)"),
    -10: ("out", "out: got shape (1, 1, 8), expected (1, 1, 8, 16)"),
    -11: ("out", "out: got strides (128, 128, 1, 8), expected a dense tensor with strides"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_result_that_does_not_fit_says_got_and_expected(call, what):
    output, text = WRONG[what]
    evidence = call(what, output)
    assert evidence.result.status is Status.BAD_RETURN
    assert evidence.result.text.startswith(text)
    assert evidence.outputs == {}


@pytest.mark.parametrize(("what", "output"), [(-4, "out"), (-5, "out"), (-6, "lse")])
def test_only_outputs_that_are_judged_are_looked_at(call, what, output):
    evidence = call(what, output)
    assert evidence.result.status is Status.OK and list(evidence.outputs) == [output]


def test_what_nobody_wrote_is_told_apart_from_what_was_computed_as_nan(call):
    half = call(-12, "out").unwritten["out"]
    assert bool(half[..., 4:].all()) and not bool(half[..., :4].any())
    evidence = call(-13, "out")
    assert bool(evidence.outputs["out"].isnan().all())
    assert not bool(evidence.unwritten["out"].any())


@pytest.mark.parametrize(
    ("what", "unwritten", "left_over"),
    [
        (-12, 96, 0),  # half of it was never written
        (-15, 0, 128),  # a sum with what nobody wrote
        (-16, 0, 128),  # the same in place
        (-17, 0, 128),  # an atomic sum
        (-18, 0, 128),  # a kernel's copy, stored everywhere
        (-19, 64, 64),  # stored to half of what nobody wrote either
        (-20, 0, 128),  # read, added to and stored
        (-21, 0, 96),  # a copy of what was half written: it may be either
        (-22, 0, 96),  # so many allocations that two have one mark
        (-23, 120, 0),  # read by a later launch
    ],
)
def test_what_was_made_from_memory_that_nobody_wrote_was_written(call, what, unwritten, left_over):
    evidence = call(what, "out")
    assert evidence.result.status is Status.OK, evidence.result
    assert int(evidence.unwritten["out"].sum()) == unwritten
    assert int(evidence.left_over["out"].sum()) == left_over


def test_the_first_launch_of_a_worker_finds_the_digest_of_triton():
    worker.import_ahead(gradients=False)
    assert triton.runtime.cache.triton_key.cache_info().currsize == 1


def test_an_answer_cannot_change_its_inputs_unseen(call):
    evidence = call(-14, "out")
    assert (evidence.overwritten, evidence.changed) == ("q", None)
    assert call(0, "out").changed is None
