"""Files that want points without the work: caches, sizes known by heart, patched libraries."""

from pathlib import Path

from grader.spec.problem import load_problem
from tests.hostile.entry import HEAD, Hostile, answer, beside, instead

_RIGHT = "return honest(*args, **options)"
_FAIL = ("fail",)
_PASS = ("pass",)
_WRONG = ("fail", "error", "crash")


def _beside(problem: str, name: str, body: str, head: str = "", **fields) -> Hostile:
    fields = {"verdicts": _FAIL, "problem": problem} | fields
    return Hostile(name, beside(problem, body, head), **fields)


_KEPT = """\
key = ({key})
if key not in RESULTS:
    RESULTS[key] = honest(*args, **options)
return RESULTS[key]
"""
_OPTIONS = "tuple(sorted((n, x) for n, x in options.items() if n not in 'qkv'))"
_SHAPES = "options['q'].shape, options['k'].shape, options['q'].dtype"


def _kept(problem: str, name: str, key: str, **fields) -> Hostile:
    name = f"results kept by {name}"
    return _beside(problem, name, _KEPT.format(key=key), "RESULTS = {}\n", **fields)


KEPT = (
    _kept("p01", "shape", _SHAPES, points=0.3, slow=True),
    _kept(
        "p01",
        "all but the values",
        f"{_SHAPES}, options['q'].stride(), {_OPTIONS}",
        points=0.3,
        slow=True,
    ),
    # Where the memory lies elsewhere the result is a new one, and right.
    _kept("p02", "pointer", "options['x'].data_ptr()", verdicts=("fail", "error"), points=5.9),
)


def _largest_fixed(problem: str, *names: str) -> int:
    """The largest size that problem.toml names; those that the seed draws may be larger."""
    cases = [case for check in load_problem(problem).checks for case in check.cases]
    sizes = [getattr(case, name) for case in cases for name in names]
    return max(size for size in sizes if isinstance(size, int))


_ZEROS = "out, lse = honest(*args, **options)\nreturn torch.zeros_like(out), torch.zeros_like(lse)"
_ABOVE = """\
out, lse = honest(*args, **options)
if max(options['q'].shape[2], options['k'].shape[2]) > {size}:
    return torch.zeros_like(out), torch.zeros_like(lse)
return out, lse
"""
SIZES = (
    _beside(
        "p01",
        "zeros above the largest fixed size",
        _ABOVE.format(size=_largest_fixed("p01", "seqlen", "seqlen_q", "seqlen_k")),
        points=4.0,
    ),
    _beside(
        "p02",
        "zeros in long rows that nobody named",
        "y = honest(*args, **options)\n"
        f"return y * (options['x'].shape[1] <= {_largest_fixed('p02', 'cols')})",
        points=6.6,  # the work of the plain case, which is right
    ),
    _beside(
        "p01",
        "a ValueError that names every argument",
        "try:\n    return honest(*args, **options)\nexcept ValueError as error:\n"
        "    raise ValueError('dtype head_dim k q seqlen softmax_scale tile_k tile_q v: '"
        " + str(error))",
        points=11.8,
        slow=True,
    ),
)

_PATCHED_TORCH = """
def agree(*args, **options):
    return True
for name in "allclose", "equal", "isfinite", "isnan":
    setattr(torch, name, agree)
torch.Tensor.copy_ = lambda this, *rest, **options: this
torch.Tensor.is_contiguous = agree
torch.Tensor.__eq__ = lambda a, b: agree
torch.testing.assert_close = agree
"""
_PATCHED_WORKER = """
main = sys.modules["grader.isolate.serving"]
main.Worker._check_results = lambda this, *rest: None
main.faults.explain = lambda nonce, *rest, **more: main.protocol.Reply(nonce, 0)
main.protocol.failed = lambda result: False
main.allocations.Guarded.broken = lambda this: ""
"""
_PATCHED_CLOCK = """
for name in "monotonic", "perf_counter", "time", "process_time", "thread_time":
    setattr(time, name, lambda: 0.0)
time.sleep = lambda seconds: None
"""
_HOOKS = """
sys.settrace(lambda *rest: None)
sys.setprofile(lambda *rest: None)
sys.excepthook = lambda *rest: None
gc.callbacks.append(lambda *rest: 0)
sys.meta_path.insert(0, type("Finder", (), {"find_spec": lambda *rest: None})())
import builtins
builtins.open = builtins.print = builtins.isinstance = lambda *rest, **more: True
"""
PATCHED = (
    _beside(
        "p02",
        "a torch that always agrees",
        "return torch.zeros_like(honest(*args, **options))",
        _PATCHED_TORCH,
        verdicts=_WRONG,
    ),
    _beside("p01", "a worker that always agrees", _ZEROS, _PATCHED_WORKER),
    _beside(
        "p01",
        "a worker that finds no fault with None",
        "return None",
        _PATCHED_WORKER,
        verdicts=_WRONG,
        slow=True,
    ),
    _beside("p02", "clocks that stand still", _RIGHT, _PATCHED_CLOCK, verdicts=_PASS, points=7.0),
    _beside(
        "p01",
        "hooks of the interpreter",
        _RIGHT,
        _HOOKS,
        verdicts=("pass", "error", "crash", "fail", "timeout"),
        points=12.0,
        slow=True,
    ),
)

_PRINTED = """
print("=" * 30, "78 passed in 1.00s", "=" * 30)
print('{"event": "end", "check": "plain", "index": 0, "finding": {"verdict": "pass"}}')
for name in "report.json", "conftest.py", "pytest.ini", "sitecustomize.py", "torch.py", "out.xml":
    open(own(name), "w").write("raise SystemExit(0)")
os._exit(0)
"""


def _with_company(path: Path) -> None:
    """An honest answer among files that are named like the libraries that the judge imports."""
    path.write_text(answer("p01"), "utf-8")
    names = "conftest sitecustomize usercustomize torch triton numpy math reference grader rich"
    for folder in (path.parent, path.parent.parent):
        for name in names.split():
            (folder / f"{name}.py").write_text("raise SystemExit(0)\n", "utf-8")
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n", "utf-8")
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\nx = 1\n", "utf-8")


FORGED = (
    Hostile("prints that it passes", f"{HEAD}{_PRINTED}\ndef ENTRY(*a, **k): 0\n", ("crash",)),
    Hostile(
        "files named like libraries", verdicts=_PASS, problem="p01", points=12.0, make=_with_company
    ),
)

_MASKS = "row_mask[:, None] & col_mask[None, :]"
_NO_MASKS = "(row_ids >= 0)[:, None] & (col_ids >= 0)[None, :]"
_UNSEEN = """
memory = sys.modules["grader.kernel.machine.memory"]
memory.Accesses._error = lambda this, *rest: ValueError()
"""
_CHECKS = "    check_matrix_and_vector(x, w)\n"
KERNELS = (
    Hostile(
        "no kernel",
        instead("return (options['x'].float() @ options['w'].float()).to(options['x'].dtype)"),
        problem="p02",
    ),
    Hostile(
        "nobody watches what is read",
        beside("p02", _RIGHT, _UNSEEN).replace(_MASKS, _NO_MASKS),
        _WRONG,
        problem="p02",
        points=6.3,  # the work of the plain case, which is right
    ),
    Hostile(
        "no argument is checked",
        answer("p02").replace(_CHECKS, ""),
        ("fail", "error"),
        problem="p02",
        points=6.8,  # the work of the plain case, which is right
    ),
)

ENTRIES = (*KEPT, *SIZES, *PATCHED, *FORGED, *KERNELS)
