"""What a kernel does while Triton's front end reads it, and kernels whose programs race.

As in hidden.py a kernel of p02 copies what something else has computed: PyTorch or Python, from
tensors that are constants of another kernel, or from what another kernel gave away.
"""

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden, stopped

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
    for i in range(0, n):
        v = tl.load(x_ptr + i)
        {each}
"""
_PYTHON = "by_python(values(x), values(w))"

_CONSTANTS = """
@triton.jit
def multiply(y_ptr, X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr):
    Y.value.copy_((X.value * W.value).sum(1))
def product(x, w):
    check_matrix_and_vector(x, w)
    y = torch.zeros(x.shape[0])
    multiply[(1,)](y, x.float(), w.float(), y)
    return y
"""
_SINK = """
@triton.jit
def read(x_ptr, n, SINK: tl.constexpr):
    for i in range(0, n):
        SINK(tl.load(x_ptr + i))
def told(bits):
    read[(1,)](bits, bits.numel(), FOUND.append)
"""
_CONSTEXPR = """
@triton.constexpr_function
def keep(v):
    FOUND.append(v)
    return 0
"""
_ASSERTED = """
@triton.jit(debug=True)
def read(x_ptr, i, bit):
    tl.device_assert(((tl.load(x_ptr + i) >> bit) & 1) == 0, "one")
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
# Triton compiles the lines that it finds for a function: not those that are read here.
_MODULES = """{indent}sys = tl.core.inspect.sys.modules
{indent}sys.get("numpy").matmul(X.value.numpy(), W.value.numpy(), out=Y.value.numpy())
"""
_LAUNCHED = """
def product(x, w):
    y = torch.zeros(x.shape[0])
    multiply[(1,)](x.float().contiguous(), w.float().contiguous(), y)
    return y
"""
_TEXT = f'''
def make():
    @triton.jit
    def multiply(X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr):
        """
def multiply(X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr):
{_MODULES.format(indent="    ")}
    if 1:
        # """
        pass
    return multiply
multiply = make()
{_LAUNCHED}'''
_HEADER = f"""
def body(X: tl.constexpr, W: tl.constexpr, Y: tl.constexpr, F=(Other := lambda X, W, Y: 0)):
{_MODULES.format(indent="    ")}
multiply = triton.jit(Other)
{_LAUNCHED}"""
_RAW = """
@triton.jit
def inner(v):
    f = OBJ.take
    f(range(v))
"""


def _leak(
    name: str,
    body: str,
    each: str = "",
    sums: str = _PYTHON,
    verdicts: tuple[str, ...] = ("error",),
) -> Hostile:
    read = _READ.format(each=each) if each else ""
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
    hidden("a kernel in a text", _TEXT, verdicts=("error",), slow=True),
    hidden("a kernel that is the body around a lambda", _HEADER, verdicts=("error",), slow=True),
    stopped("the function in a kernel", _BITS + _RAW + _READ.format(each="f = inner.fn"), _PYTHON),
    _leak("a product of constants", _CONSTANTS, sums="product(x, w)", verdicts=("rejected",)),
    _leak("a method of the file in a kernel", "", "OBJ.take(v)"),
    _leak("a constant that is called", _SINK),
    _leak("a constexpr function that keeps", _CONSTEXPR, "keep(v)"),
    _leak("bit by bit in assertions", _ASSERTED, sums="product(x, w)"),
)
RACES = (
    _race("programs that read, add and store", _ADDED),
    _race("programs that carry a sum on", _CARRIED, "n"),
    _race("a program that stores what others add to", _FIRST_STORES),
)
ENTRIES = (*LEAKS, *RACES)
