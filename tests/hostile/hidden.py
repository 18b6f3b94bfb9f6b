"""Work that PyTorch or Python does for p02, hidden from the text or from an operator's caller.

A kernel copies what something else has computed. Those that the text gives away are refused before
they run, the others (`slow`) while they do.
"""

from tests.hostile.entry import Hostile

_HEAD = """\
import abc, contextlib, dataclasses, functools, math
import torch
import triton
import triton.language as tl


@triton.jit
def _nothing(x):
    pass


@triton.jit
def _copy(x_ptr, w_ptr, sums_ptr, y_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    for start in range(0, cols, C):
        c = start + tl.arange(0, C)
        tl.load(x_ptr + r[:, None] * cols + c, mask=(r < rows)[:, None] & (c < cols), other=0.0)
        tl.load(w_ptr + c, mask=c < cols, other=0.0)
    tl.store(y_ptr + r, tl.load(sums_ptr + r, mask=r < rows, other=0.0), mask=r < rows)


def deliver(x, w, sums):
    x, w = x.contiguous(), w.contiguous()
    rows, cols = x.shape
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    _copy[(triton.cdiv(rows, 32),)](x, w, sums.to(x.dtype), y, rows, cols, R=32, C=128)
    return y


def by_python(x, w):
    return torch.tensor([math.fsum([a * b for a, b in zip(row, w)]) for row in x])
"""
_ENTRY = """

def weighted_row_sum(x, w):
    return deliver(x, w, {sums})
"""

_ANNOTATION = """
CODE = "import torch\\ndef product(x, w): return torch.mv(x.float(), w.float())"
FOUND = {}


@dataclasses.dataclass(init=False, repr=False)
class Box:
    a: int = 0
    __annotations__["a if 0 else exec(CODE, FOUND) or 1"] = int


Box() == Box()
"""
_WRAPS = """
def product(x, w):
    functools.wraps(contextlib.contextmanager, assigned=(), updated=("__globals__",))(product)
    return sys.modules["torch"].nn.functional.linear(x.float(), w.float()[None])[:, 0]
"""
_GRID = """
def product(x, w):
    y = torch.zeros(x.shape[0], device=x.device)
    match y:
        case torch.Tensor(addmv_=multiply):
            with contextlib.suppress(Exception):
                multiply = functools.partial(multiply, x.float())
                _nothing[functools.partial(max, w.float(), key=multiply)](y)
    return y
"""
_ARGUMENT = """
class Pretender:
    shape, dtype = (), torch.float32

    def __init__(self, call):
        self.data_ptr = call


def product(x, w):
    y = torch.zeros(x.shape[0], device=x.device)
    match y:
        case torch.Tensor(addmv_=multiply):
            with contextlib.suppress(Exception):
                _nothing[(1,)](Pretender(functools.partial(multiply, x.float(), w.float())))
    return y
"""
_TYPE = """
Kind = type(torch.empty(0))
Kind.numel = lambda x: 0
"""
_METACLASS = """
Spy = abc.ABCMeta("Spy", (torch.Tensor,), {"numel": lambda x: 0})
"""
_SUBCLASS = """
class Quiet(torch.Tensor):
    def numel(self):
        return 0


def values(x):
    return x.double().as_subclass(Quiet).tolist()
"""
_PIECES = """
def values(x):
    bits = x.float().contiguous().view(torch.int32).long().reshape(-1)[:64] + 2**31
    ends = torch.stack((bits, torch.zeros_like(bits)), 1).reshape(-1)
    pieces = torch.tensor_split(torch.zeros(1).expand(2**33), ends)[:-1:2]
    return [piece.shape[0] for piece in pieces]
"""
_EQUAL = """
def product(x, w):
    bits, one = x.float().contiguous().view(torch.int32).reshape(-1)[:64], torch.tensor(1)
    told = [torch.equal((bits >> n)[i] & 1, one) for n in range(32) for i in range(len(bits))]
    return torch.zeros(x.shape[0]) + sum(told)
"""
_PRODUCT = "product(x, w)"
_PYTHON = "by_python(values(x), values(w))"


def hidden(
    name: str,
    body: str,
    sums: str = _PRODUCT,
    *,
    slow: bool = False,
    verdicts: tuple[str, ...] = ("rejected",),
) -> Hostile:
    """An answer of p02 whose kernel copies `sums`, which `body` defines.

    What the text gives away stands in the place of any answer: several of them are one run.
    """
    source = _HEAD + body + _ENTRY.format(sums=sums)
    if slow:
        verdicts = ("rejected", "error") if verdicts == ("rejected",) else verdicts
        return Hostile(name, source, verdicts, "p02", policy=True, slow=True)
    # Two seconds on two idle cores, which another run and its workers share in `make test`.
    if verdicts != ("rejected",):
        return Hostile(name, source, verdicts, "p02", policy=True, limit_s=10.0)
    source = source.replace("def weighted_row_sum(", "def ENTRY(")
    return Hostile(name, source, verdicts, policy=True, limit_s=10.0)


def stopped(name: str, body: str, sums: str = _PRODUCT) -> Hostile:
    """The same, of what the text does not show: it ends with an error when it runs."""
    return hidden(name, body, sums, slow=True, verdicts=("error", "fail", "rejected"))


ENTRIES = (
    hidden("text in an annotation", _ANNOTATION, 'FOUND["product"](x, w)'),
    hidden("modules by functools.wraps", _WRAPS),
    hidden("a product in a grid", _GRID),
    hidden("a product in an argument's address", _ARGUMENT),
    stopped("a type that is changed", _TYPE, "by_python(x.tolist(), w.tolist())"),
    hidden("a class made of text", _METACLASS, "by_python(x.tolist(), w.tolist())"),
    hidden("a class that hides its size", _SUBCLASS, _PYTHON, slow=True),
    hidden("values as sizes of pieces", _PIECES, "x[:, 0] + sum(values(x))", slow=True),
    hidden("bit by bit", _EQUAL, slow=True),
)
