"""Files that try things which only a GPU allows; graded on one, in jails, one for each problem.

They recognise a GPU by their inputs' device, and the timed calls of p03 to p07 by their 4096 rows.
"""

from grader.spec.problem import load_problem
from tests.hostile.entry import Hostile, beside

_RIGHT = "return honest(*args, **options)"
_ON_GPU = (
    "first = next(iter(options.values()), None) if options else args[0]\n"
    "if torch.cuda.is_available():\n"  # false without one, where tensors say they lie on one
)
_WRONG = ("fail", "error")
_LOST = ("crash", "timeout", "error")


def _on_gpu(
    problem_id: str, name: str, body: str, head: str = "", *, points: float, verdicts=_WRONG
) -> Hostile:
    """The model answer, but for `body` where its inputs lie on a GPU."""
    inside = "".join(f"    {line}\n" for line in body.splitlines())
    source = beside(problem_id, f"{_ON_GPU}{inside}{_RIGHT}", head)
    fields = {"measured": True, "jailed": True, "gpu": True, "limit_s": 240.0}
    return Hostile(name, source, verdicts, problem_id, points, **fields)


def _without(problem_id: str, *components: str) -> float:
    """The points of a problem that remain without some components."""
    points = load_problem(problem_id).points
    return sum(getattr(points, name) for name in _COMPONENTS if name not in components)


_COMPONENTS = ("correctness", "work", "speed", "memory")
_TIMED = "if first.shape[2] == 4096 and first.shape[1] > 2:\n"
_OUT_OF_BOUNDS = """
@triton.jit
def far(ptr):
    tl.store(ptr + 2**40, 1.0)
"""
_ENDLESS = """
@triton.jit
def endless(ptr):
    while tl.load(ptr, volatile=True) < 1.0:
        pass
"""
_KEEPER = """
import subprocess
KEEP = '''
import time, torch
held = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
time.sleep(600)
'''
"""
_AT_IMPORT = """
SPACE = None
if torch.cuda.is_available():
    SPACE = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
"""
ENTRIES = (
    _on_gpu(
        "p02",
        "another stream, and no wait for it",
        "side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(side):\n    return honest(*args, **options)",
        points=_without("p02"),
        verdicts=("pass", "fail"),  # wrong where its result is copied before it is there
    ),
    _on_gpu(
        "p03",
        "a thread that computes after the answer",
        "result = honest(*args, **options)\nout = torch.full_like(result[0], float('nan'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), out.copy_(result[0]))).start()\n"
        "return out, result[1]",
        points=_without("p03", "work", "speed", "memory"),
    ),
    _on_gpu(
        "p04",
        "zeros where time is measured on a GPU",
        f"{_TIMED}    out, lse = honest(*args, **options)\n    return out.zero_(), lse",
        points=_without("p04", "speed"),
    ),
    _on_gpu(
        "p05",
        "the last result where time is measured on a GPU",
        f"{_TIMED}    if LAST: return LAST[0]\n    LAST.append(honest(*args, **options))",
        "LAST = []\n",
        points=_without("p05", "speed"),
    ),
    _on_gpu(
        "p06",
        "a write far outside",
        "far[(1,)](first)",
        _OUT_OF_BOUNDS,
        points=_without("p06", "work", "speed", "memory"),
        verdicts=(*_LOST, "fail"),
    ),
    _on_gpu(
        "p07",
        "a kernel that never ends",
        "endless[(1,)](torch.zeros(1, device='cuda'))",
        _ENDLESS,
        points=_without("p07", "work", "speed", "memory"),
        verdicts=_LOST,
    ),
    _on_gpu(
        "p08",
        "a process that keeps memory of the GPU",
        "if not KEPT:\n    KEPT.append(subprocess.Popen([sys.executable, '-c', KEEP],"
        " start_new_session=True))\n    time.sleep(1)",
        f"{_KEEPER}KEPT = []\n",
        points=_without("p08"),
        verdicts=("pass", *_LOST, *_WRONG),
    ),
    _on_gpu(
        "p09",
        "a workspace of the GPU that was taken at import",
        "SPACE.zero_()",
        _AT_IMPORT,
        points=_without("p09", "memory"),
        verdicts=("fail",),  # of the problem: correctness passes
    ),
)
