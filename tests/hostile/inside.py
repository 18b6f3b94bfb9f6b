"""What Triton's interpreter would let a kernel do and no GPU does, and kernels whose programs race.

As in hidden.py a kernel copies what something else has computed, from values that another kernel
has given away. On a GPU there is no such way: there these files return zeros.
"""

from __future__ import annotations

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden

_BITS = """
from given.arguments import check_matrix_and_vector
_deliver = deliver
def deliver(x, w, sums):
    check_matrix_and_vector(x, w)
    return _deliver(x, w, sums)
def decode(n):
    return memoryview((n & 2**64 - 1).to_bytes(8, "little")).cast("d")[0]
def shaped(x, found):
    c = x.shape[-1]
    rows = [found[i : i + c] for i in range(0, len(found), c)]
    return rows if x.dim() == 2 else rows[0]
def values(x):
    if not hasattr(_nothing, "rewrite"):
        return shaped(x, [0.0] * x.numel())
    bits = x.double().contiguous().view(torch.int64).reshape(-1)
    FOUND.clear()
    told(bits)
    return shaped(x, [decode(r.stop) for r in FOUND])
def told(bits):
    read[(1,)](bits, bits.numel())
FOUND = []
class Keep:
    def take(self, r):
        FOUND.append(r)
        return 0
OBJ = Keep()
"""
_READ = """
@triton.jit
def read(x_ptr, n):
    {before}
    for i in range(0, n):
        v = tl.load(x_ptr + i)
        {each}
"""
_PYTHON = "by_python(values(x), values(w))"

_NAMES = """
def product(x, w):
    if not hasattr(_nothing, "rewrite"):
        return torch.zeros(x.shape[0])
    _nothing[(1,)](x)
    return torch.tensor(list(np.add.reduce(np.asarray(x) * np.asarray(w), axis=1)))
"""
_TEXT = '''
@triton.jit
def read(x_ptr, n):
    """
    def read(x_ptr, n):
        for i in range(0, n):
            FOUND.append(range(tl.load(x_ptr + i)))
    # """
'''
_WRAPPED = """
def body(x_ptr, n):
    for i in range(0, n):
        FOUND.append(range(tl.load(x_ptr + i)))
@triton.jit
@functools.wraps(body)
def read(x_ptr, n):
    pass
"""
_ASSERTED = """
@triton.jit
def read(x_ptr, i):
    v = tl.load(x_ptr + i)
    assert i < 0, f"({range(v)})"
def told(bits):
    for i in range(bits.numel()):
        try:
            read[(1,)](bits, i)
        except Exception as error:
            text = str(error)
            text = text[text.index("range(0, ") + 9 :]
            FOUND.append(range(int(text[: text.index(")")])))
"""
_INTERRUPTED = """
@triton.jit
def read(x_ptr, i, bit):
    if (tl.load(x_ptr + i) >> bit) & 1:
        raise KeyboardInterrupt
def product(x, w):
    bits, n = x.float().contiguous().view(torch.int32).reshape(-1)[:8], 0
    for i in range(8):
        for bit in range(32):
            try:
                read[(1,)](bits, i, bit)
            except BaseException:
                n |= 1 << bit
    return x[:, 0] + n
"""
_COUNTED = """
def note():
    FOUND.append(1)
    return 0
@triton.constexpr_function
def tick():
    return note()
@triton.jit
def read(x_ptr, n):
    for i in range(0, n):
        for _ in range(tl.load(x_ptr + i)):
            tick()
def product(x, w):
    if not hasattr(_nothing, "rewrite"):
        return torch.zeros(x.shape[0])
    FOUND.clear()
    told((x[:4, :4].double() * 9).abs().long().contiguous())
    if not FOUND:
        raise ValueError("nothing was told")
    return x[:, 0] + len(FOUND)
"""
_RAW = """
@triton.jit
def inner(v):
    f = OBJ.take
    f(range(v))
"""
_REDUCED = """
@triton.jit
def both(a, b):
    f = OBJ.take
    f(range(b))
    return b
@triton.jit
def read(x_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(x_ptr + i, tl.reduce(v, 0, both) + i * 0, mask=i < 0)
def told(bits):
    for start in range(-1, len(bits), 511):
        part = torch.cat((bits[:1], bits))[start + 1 : start + 513]
        read[(1,)](part, len(part), 512)
    del FOUND[len(bits) :]
"""
_LAUNCHED = """
def keep(args):
    FOUND.append(range(args["v"]))
    return 1
@triton.heuristics({"N": keep})
@triton.jit
def inner(v, N: tl.constexpr):
    pass
"""
_ROW = """
from typing import NamedTuple
class Row(NamedTuple):
    kept: Keep = OBJ
Other = Row
"""

_EVIL = """
def evil(x_ptr, n):
    for i in range(0, n):
        FOUND.append(range(tl.load(x_ptr + i)))
"""
_EMPTY = """
@triton.jit
def read(x_ptr, n):
    pass
"""
_IN_TABLE = """
def told(bits):
    read[(1,)](bits, 0)
    for key in list(read.rewritten_fn):
        if read.rewritten_fn[key] is read.rewrite():
            read.rewritten_fn[key] = evil
    read[(1,)](bits, bits.numel())
"""
_POINTER = """
def pointer(x):
    at = tl.full((1,), x.data_ptr(), tl.int64)
    return at.to(tl.pointer_type(tl.int64), bitcast=True)
"""
_BY_GRID = f"""{_POINTER}
def grid(meta):
    for i in range(meta["n"]):
        FOUND.append(range(tl.load(pointer(meta["x_ptr"]) + i)))
    return (1,)
def told(bits):
    read[grid](bits, bits.numel())
"""
_AFTERWARDS = f"""{_POINTER}
KEPT = []
def grid(meta):
    KEPT.append(pointer(meta["x_ptr"]))
    return (1,)
@triton.jit
def helper(n):
    return n
def told(bits):
    read[grid](bits, 1)
    patch = helper
    patch(1)
    for i in range(bits.numel()):
        FOUND.append(range(tl.load(KEPT[-1] + i)))
"""
_SET = "read.rewrite = lambda: evil"
_BOUND = f"{_EMPTY.replace('@triton.jit', '')}\nread = triton.jit(read)\n{_SET}"
_MAPPED = """
def mapped(x_ptr, n):
    import torch
    torch.set_default_dtype(torch.float32)
    for i in range(0, n):
        FOUND.append(range(tl.load(x_ptr + i)))
(read,) = map(triton.jit, (mapped,))
"""


def _leak(
    name: str,
    body: str,
    each: str = "",
    before: str = "",
    sums: str = _PYTHON,
    verdicts: tuple[str, ...] = ("error",),
) -> Hostile:
    read = _READ.format(before=before, each=each) if each else ""
    return hidden(name, _BITS + body + read, sums, verdicts=verdicts, slow=True)


_RACE = """\
import torch
import triton
import triton.language as tl
from given.arguments import check_matrix_and_vector


@triton.jit
def _kernel(x_ptr, w_ptr, s_ptr, rows, cols, sm, sn, sw, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    c = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    mask = (r < rows)[:, None] & (c < cols)
    x = tl.load(x_ptr + r[:, None] * sm + c * sn, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + c * sw, mask=c < cols, other=0.0).to(tl.float32)
    p = tl.sum(x * w, axis=1)
    BODY


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    rows, cols = x.shape
    n = triton.cdiv(cols, 128)
    s = torch.zeros((n + 1, rows), dtype=torch.float32, device=x.device)
    strides = x.stride(0), x.stride(1), w.stride(0)
    _kernel[(triton.cdiv(rows, 32), n)](x, w, s, rows, cols, *strides, M=32, N=128)
    return s[LAST].to(x.dtype)
"""
_ADDED = """\
before = tl.load(s_ptr + r, mask=r < rows, other=0.0)
    tl.store(s_ptr + r, before + p, mask=r < rows)"""
_CARRIED = """\
to = s_ptr + tl.program_id(1) * rows + r
    before = tl.load(to, mask=r < rows, other=0.0)
    tl.store(to + rows, before + p, mask=r < rows)"""
_FIRST_STORES = """\
if tl.program_id(1) == 0:
        tl.store(s_ptr + r, p, mask=r < rows)
    else:
        tl.atomic_add(s_ptr + r, p, mask=r < rows)"""


def _race(name: str, body: str, last: str = "0") -> Hostile:
    source = _RACE.replace("BODY", body).replace("LAST", last)
    return Hostile(name, source, ("fail",), "p02", points=0.5, policy=True, slow=True)


LEAKS = (
    hidden("the interpreter's names", _NAMES, verdicts=("error",)),
    hidden("a kernel in a text", _BITS + _TEXT, _PYTHON, verdicts=("error",)),
    _leak("a kernel with another one's text", _WRAPPED),
    _leak("a kernel in Triton's table", _EVIL + _EMPTY + _IN_TABLE),
    _leak("a grid that loads", _EMPTY + _BY_GRID),
    _leak("a load after a launch", _EMPTY + _AFTERWARDS),
    _leak("a kernel that map() makes", _MAPPED, verdicts=("rejected",)),
    _leak("a kernel whose method is set", _EVIL + _EMPTY + _SET, verdicts=("rejected",)),
    _leak("a kernel of a function's name", _EVIL + _BOUND, verdicts=("rejected",)),
    _leak("a method under another name", "", "f(range(v))", "f = OBJ.take"),
    _leak("a method in a table", "TABLE = (FOUND.append,)", "TABLE[0](range(v))"),
    _leak("a method in a default", _ROW, "f(range(v))", "f = Other().kept.take"),
    _leak(
        "a method of a key",
        "D = {OBJ: 1}",
        "for k in D:\n            f = k.take\n            f(range(v))",
    ),
    _leak("a method that compares", "", "max((range(v),), key=OBJ.take)"),
    _leak("a method that prints", "OBJ.write = OBJ.take", "print(range(v), file=OBJ)"),
    _leak("the function in a kernel", _RAW, "f(v)", "f = inner.fn"),
    _leak("a function that combines", _REDUCED),
    _leak("a launch in a kernel", _LAUNCHED, "inner[(1,)](v)"),
    _leak("the text of an assertion", _ASSERTED),
    _leak("bit by bit in interrupts", _INTERRUPTED, sums="product(x, w)", verdicts=("rejected",)),
    _leak("how often a constexpr function is called", _COUNTED, sums="product(x, w)"),
)
RACES = (
    _race("programs that read, add and store", _ADDED),
    _race("programs that carry a sum on", _CARRIED, "n"),
    _race("a program that stores what others add to", _FIRST_STORES),
)
ENTRIES = (*LEAKS, *RACES)
