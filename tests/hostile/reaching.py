"""Code that is asked unseen, and kernels that are not what they seem.

As in hidden.py a kernel of p02 copies what something else has computed; or programs race behind a
lock that is none; or the kernel that is judged is not the one that is compiled.
"""

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden
from tests.hostile.inside import _ADDED, _RACE

_CHECKED = """
from given.arguments import check_matrix_and_vector
_deliver = deliver
def deliver(x, w, call):
    check_matrix_and_vector(x, w)
    return _deliver(x, w, call(x, w))
"""
_ASKED = """
class Seq:
    def __init__(self, x, w):
        self.x, self.w, self.y, self.n = x, w, None, 0
    def __len__(self):
        return 1
    def __getitem__(self, i):
        if i:
            raise IndexError
        self.n += 1
        if self.n < 3:
            return 0
        p = self.x.float() * self.w.float()
        n = p.shape[1]
        while n > 1:
            h = (n + 1) // 2
            a, b = p[:, :h].clone(), p[:, h:]
            a[:, : b.shape[1]] += b
            p, n = a, h
        self.y = p[:, 0]
        return 0
def product(x, w):
    s = Seq(x, w)
    ASK
    return s.y
"""

ASKED = tuple(
    hidden(name, _CHECKED + _ASKED.replace("ASK", ask), "product", verdicts=("error",), slow=True)
    for name, ask in (
        ("a sequence that torch.tensor asks", "torch.tensor(s)"),
        ("a sequence that an index asks", "torch.zeros(2)[s]"),
    )
)

_VOLATILE = "tl.load(w_ptr, volatile=True)\n    "
_COUNT = "tl.atomic_add(c_ptr + {}, 1)"
_MINE = "tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)"


def _race(name: str, body: str) -> Hostile:
    source = _RACE.replace("BODY", body).replace("LAST", "0")
    source = source.replace("w_ptr, s_ptr", "w_ptr, s_ptr, c_ptr").replace(
        "w, s, rows", "w, s, c, rows"
    )
    counters = "    c = torch.zeros(n * rows, dtype=torch.int32, device=x.device)\n"
    source = source.replace("    strides = ", f"{counters}    strides = ", 1)
    return Hostile(name, source, ("fail",), "p02", points=0.5, policy=True, slow=True)


RACES = (
    _race("a race behind a volatile read of an input", _VOLATILE + _ADDED),
    _race(
        "a race in which sums are read as volatile",
        _ADDED.replace("other=0.0)", "other=0.0, volatile=True)"),
    ),
    _race("a race behind a counter", f"{_COUNT.format(0)}\n    {_ADDED}"),
    _race(
        "a race between locks of each program's own",
        f"{_COUNT.format(_MINE)}\n    {_ADDED}\n    {_COUNT.format(_MINE)}",
    ),
)

_TWO = """\
import torch
import triton
import triton.language as tl
from given.arguments import check_matrix_and_vector


@triton.jit
def _decoy(x_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr))


@triton.jit
def _kernel(x_ptr, w_ptr, y_ptr, rows, cols, sm, sn, sw, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    acc = tl.zeros((M, N), tl.float32)
    c = tl.arange(0, N).to(tl.int64)
    while True:
        mask = (r < rows)[:, None] & (c < cols)
        x = tl.load(x_ptr + r[:, None] * sm + c * sn, mask=mask, other=0.0).to(tl.float32)
        acc += x * tl.load(w_ptr + c * sw, mask=c < cols, other=0.0).to(tl.float32)
        c += N
        if tl.min(c, 0) >= cols:
            break  # which Triton does not compile
    tl.store(y_ptr + r, tl.sum(acc, 1), mask=r < rows)


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    rows, cols = x.shape
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    if CONDITION:
        _decoy[(1,)](x, y)
    else:
        strides = x.stride(0), x.stride(1), w.stride(0)
        _kernel[(triton.cdiv(rows, 32),)](x, w, y, rows, cols, *strides, M=32, N=128)
    return y
"""


def _two(name: str, condition: str) -> Hostile:
    source = _TWO.replace("CONDITION", condition)
    return Hostile(name, source, ("error",), "p02", policy=True, slow=True)


KERNELS = (
    _two("another kernel on a GPU", "x.device.type == 'cuda'"),
    _two("another kernel for the shape that is compiled", "rows == 4096"),
)
ENTRIES = (*ASKED, *RACES, *KERNELS)
