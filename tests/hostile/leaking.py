"""Values that reach Python, and sums and products of p02, where no rule about the text sees it.

A kernel copies what was computed, as in hidden.py.
"""

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden

_FOREIGN = """
from typing import Optional, get_args
class A:
    def f(self):
        return self._evaluate({}, {}, recursive_guard=frozenset())
Num = A.f(get_args(Optional["__import__('sys').modules['torch']._C.TensorBase.tolist"])[0])
def product(x, w):
    return by_python(Num(x), Num(w))
"""
_PATCHED = """
class A:
    def f(self):
        self.tolist = None
A.f(type(torch.empty(0)))
def product(x, w):
    return by_python(x.tolist(), w.tolist())
"""
_TEXT = """
torch.set_printoptions(precision=9, threshold=10**9, linewidth=10**9, sci_mode=True)
def values(x):
    text = str(x.float())
    text = text[text.index("(") + 1 : text.rindex(")")]
    rows = text.split("]")
    for sign in "[,\\n":
        rows = [row.replace(sign, " ") for row in rows]
    found = [[float(v) for v in row.split()] for row in rows]
    found = [r for r in found if r]
    return found if x.dim() == 2 else found[0]
"""
_ASKED_FOR_TEXT = """
class Quiet(torch.Tensor):
    def dim(self):
        FOUND.append(PLAIN[0].tolist())
        return 1
FOUND, PLAIN = [], [None]
def values(x):
    PLAIN[0] = x.float()
    FOUND.clear()
    with contextlib.suppress(Exception):
        str(torch.zeros(1).as_subclass(Quiet))
    return FOUND[0]
"""
_ERRORS = """
def values(x):
    if x.dim() == 2:
        return [values(row) for row in x]
    bits = x.double().contiguous().view(torch.int64)
    zero = torch.zeros(1)
    found = []
    for i in range(len(bits)):
        n = 0
        try:
            zero[bits[i : i + 1]]
        except (IndexError, RuntimeError) as error:
            n = int(str(error).split()[1])
        found.append(n)
    return [decode(n) for n in found]
def decode(n):
    return memoryview((n & 2**64 - 1).to_bytes(8, "little")).cast("d")[0]
"""
_DEVICE = """
cm = torch.device("cpu")
cm.__enter__()
def values(x):
    cm.__exit__(None, None, None)
    found = x.float().tolist()
    cm.__enter__()
    return found
"""
_LENGTH = """
class Seq:
    def __init__(self, x):
        self.x, self.found = x, None
    def __len__(self):
        self.found = self.found or self.x.tolist()
        return 1
    def __getitem__(self, i):
        self.found = self.found or self.x.tolist()
        if i:
            raise IndexError
        return 0
def values(x):
    s = Seq(x.float())
    with contextlib.suppress(Exception):
        torch.tensor(s)
    return s.found
"""
_MASKS = """
def values(x):
    if x.dim() == 2:
        return [values(row) for row in x]
    n = len(x)
    raw = x.double().contiguous().view(torch.uint8).view(n, 8)
    table = TABLE[raw.reshape(-1).long()].view(n, 64)
    one = torch.zeros(1)
    told = [one[table[i, b : b + 1]].shape[0] << b for i in range(n) for b in range(64)]
    raw = [sum(told[64 * i : 64 * i + 64]).to_bytes(8, "little") for i in range(n)]
    return [memoryview(eight).cast("d")[0] for eight in raw]


TABLE = torch.tensor([[bool(v >> b & 1) for b in range(8)] for v in range(256)])
"""
_CACHED = """
class P:
    shape, dtype = (), torch.float32
    def __init__(self, call):
        self.data_ptr = call
def values(x):
    x = x.float()
    read = functools.cache(torch.Tensor.tolist)
    class C:
        base = property(functools.partial(max, (x,), key=read))
    class D:
        def __init__(self): pass
    for make in (lambda: C(), lambda: P(functools.partial(read, x))):
        with contextlib.suppress(Exception):
            _nothing[(1,)](make())
    return read(x)
"""
_PROPERTY = """
def product(x, w):
    y = torch.zeros(x.shape[0], 1)
    run = functools.partial(y.addbmm_, x.float()[None])
    w3 = w.float()[None, :, None]
    class C:
        data_ptr = property(functools.partial(max, w3, key=run))
    with contextlib.suppress(Exception):
        _nothing[(1,)](C())
    return y[:, 0]
"""
_HALVES = """
def product(x, w):
    p = x.float() * w.float()
    n = p.shape[1]
    while n > 1:
        h = (n + 1) // 2
        a, b = p[:, :h].clone(), p[:, h:]
        a[:, : b.shape[1]] += b
        p, n = a, h
    return p[:, 0]
"""
_MODULUS = """
def product(x, w):
    p = x.float() * w.float()
    both = []
    for s in (p.clamp(min=0), (-p).clamp(min=0)):
        s = s.sqrt()
        while s.shape[1] > 1:
            if s.shape[1] % 2:
                s = torch.cat((s, torch.zeros_like(s[:, :1])), 1)
            s = torch.view_as_complex(s.contiguous().view(s.shape[0], -1, 2)).abs()
        both.append(s[:, 0] ** 2)
    return both[0] - both[1]
"""
_SUM = """
def product(x, w):
    return sum((x.float() * w.float()).unbind(1))
"""
_PYTHON = "by_python(values(x), values(w))"


def _leak(name: str, body: str, sums: str = "product(x, w)", *verdicts: str) -> Hostile:
    return hidden(name, body, sums, verdicts=verdicts or ("rejected",), slow=True)


ENTRIES = (
    _leak("a method called on a text that is evaluated", _FOREIGN, "product(x, w)"),
    _leak("a method called on PyTorch's class", _PATCHED, "product(x, w)"),
    _leak("numbers out of a text", _TEXT, _PYTHON, "error"),
    _leak("a class asked while its text is written", _ASKED_FOR_TEXT, _PYTHON),
    _leak("numbers out of errors", _ERRORS, _PYTHON),
    _leak("a device that takes a mode off", _DEVICE, _PYTHON),
    _leak("a class asked for its length", _LENGTH, _PYTHON),
    _leak("how many are true", _MASKS, _PYTHON, "rejected", "timeout"),
    _leak("a read that a launch makes", _CACHED, _PYTHON),
    _leak("a product that a launch makes", _PROPERTY),
    _leak("sums by halves", _HALVES),
    _leak("sums by the modulus", _MODULUS),
    _leak("Python's sum of columns", _SUM),
)
