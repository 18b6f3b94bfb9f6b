"""Python's own code in a kernel, which keeps the values that it is called with.

As in hidden.py a kernel of p02 copies what Python has computed. `LIVE` is false where the kernel is
compiled; in Triton's interpreter a constexpr function is called with numbers that a run has. They
are kept in objects of Triton's, carried out by an exit, or by which classes are related.
"""

from __future__ import annotations

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden
from tests.hostile.inside import _BITS, _PYTHON

_READ = """
@triton.constexpr_function
def keep(f, j):
    {keep}
    return 0
@triton.jit
def read(x_ptr, n, LIVE: tl.constexpr):
    for i in range(0, n):
        v = tl.load(x_ptr + i)
        if LIVE:
            keep({given}, int(v))
    if LIVE:
        leave(0)
@triton.constexpr_function
def leave(n):
    {leave}
def told(bits):
    {before}
    try:
        read[(1,)](bits, bits.numel(), hasattr(_nothing, "rewrite"))
    except BaseException as error:
        {caught}
    FOUND.extend(range(v) for v in {kept})
"""
_SHARED = """
HELD = []
def grid(meta):
    HELD[:] = [meta["{name}"]{part}]
    return (1,)
@triton.constexpr_function
def keep(box, j):
    {keep}
    return 0
@triton.jit
def read(x_ptr, n, BOX: tl.constexpr, LIVE: tl.constexpr):
    for i in range(0, n):
        v = tl.load(x_ptr + i)
        if LIVE:
            keep({name}, int(v))
def told(bits):
    read[grid](bits, bits.numel(), {{}}, hasattr(_nothing, "rewrite"))
    FOUND.extend(range(v) for v in HELD[0]{values})
    HELD[0].clear()
"""
_UNNAMED = """
@triton.jit
def read(x_ptr, n, LIVE: tl.constexpr, BOX):
    f = BOX.take
    for i in range(0, n):
        v = tl.load(x_ptr + i)
        if LIVE:
            f(range(v))
if hasattr(_nothing, "rewrite"):
    read.arg_names[3:] = []
def told(bits):
    live = hasattr(_nothing, "rewrite")
    read[(1,)](bits, bits.numel(), live, OBJ if live else 1)
"""
_RELATED = """
from numbers import Number
class A: pass
@triton.constexpr_function
def keep(j):
    Number.register(A)
    return 0
@triton.jit
def read(x_ptr, n, LIVE: tl.constexpr):
    for i in range(0, n):
        if LIVE and tl.load(x_ptr + i) > 0:
            keep(i)
def product(x, w):
    if not hasattr(_nothing, "rewrite"):
        return torch.zeros(x.shape[0])
    read[(1,)](x, 9, True)
    return x[:, 0] + issubclass(A, Number)
"""


def _kept(
    name: str,
    keep: str,
    kept: str,
    *,
    box: str = "BOX = tl.flip",
    given: str = "tl.flip",
    leave: str = "return n",
    before: str = "pass",
    caught: str = "raise",
) -> Hostile:
    read = _READ.format(
        keep=keep, given=given, leave=leave, before=before, caught=caught, kept=kept
    )
    return hidden(name, f"{_BITS}\n{box}{read}", _PYTHON, verdicts=("error", "timeout"), slow=True)


def _shared(name: str, keep: str, values: str, parameter: str, part: str = "") -> Hostile:
    read = _SHARED.format(name=parameter, part=part, keep=keep, values=values)
    return hidden(name, _BITS + read, _PYTHON, verdicts=("error", "timeout"), slow=True)


ENTRIES = (
    _shared("numbers in a dictionary that a grid has", "box[len(box)] = j", ".values()", "BOX"),
    _shared(
        "numbers in the shape of a pointer that a grid has",
        "box.shape.values.append(j)",
        "",
        "x_ptr",
        ".shape.values",
    ),
    _kept(
        "numbers in the list of a function's arguments",
        "f.arg_names.append(j)",
        "BOX.arg_names[size:]",
        before="size = len(BOX.arg_names)",
    ),
    _kept(
        "numbers in the options of a function of Triton's",
        "f.kwargs[len(f.kwargs)] = j",
        "[BOX.kwargs[n] for n in range(size, len(BOX.kwargs))]",
        before="size = len(BOX.kwargs)",
    ),
    _kept(
        "numbers in a configuration",
        "BOX.kwargs[len(BOX.kwargs)] = j",
        "BOX.kwargs.values()",
        box="BOX = triton.Config({})",
        given="0",
        before="BOX.kwargs.clear()",
    ),
    _kept(
        "numbers among what a constexpr function has used",
        "f.used_global_vals[len(f.used_global_vals)] = j",
        "[BOX.used_global_vals[n] for n in range(size, len(BOX.used_global_vals))]",
        box="BOX = triton.cdiv",
        given="triton.cdiv",
        before="BOX.cache_key\n    size = len(BOX.used_global_vals)",
    ),
    _kept(
        "numbers that an exit carries out",
        "BOX[len(BOX)] = j",
        "OUT[-1]",
        box="BOX, OUT = {}, []",
        given="0",
        leave="raise SystemExit([*BOX.values()])",
        caught="OUT.append(error.args[0])",
    ),
    *(
        _kept(
            f"numbers in an attribute of {what}",
            "BOX.told = f'{BOX.told} {j}'",
            "map(int, BOX.told.split())",
            box=f"import enum\nclass BOX{base}:\n    A = 1",
            given="0",
            before="BOX.told = ''",
        )
        for what, base in (("a class", ""), ("an enum", "(enum.Enum)"))
    ),
    hidden(
        "an argument that has no name",
        _BITS + _UNNAMED,
        _PYTHON,
        verdicts=("error",),
        slow=True,
    ),
    hidden(
        "a number by which classes are related",
        _BITS + _RELATED,
        "product(x, w)",
        verdicts=("error",),
        slow=True,
    ),
)
