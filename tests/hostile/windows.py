"""Code that runs where the judge does not look, and objects that pass for somebody else's.

As in hidden.py a kernel of p02 copies what something else has computed.
"""

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden, stopped
from tests.hostile.inside import _BITS, _PYTHON

BOX = """
class Box:
    def __init__(self, kept):
        self.kept, self.own = kept, self
"""
_FINISHED = f"""{BOX}
def product(x, w):
    y = torch.zeros(x.shape[0])
    def late():
        try:
            yield
        finally:
            z = x.float() * w.float()
            n = z.shape[1]
            while n > 1:
                h = (n + 1) // 2
                a, b = z[:, :h].clone(), z[:, h:]
                a[:, : b.shape[1]] += b
                z, n = a, h
            y.copy_(z[:, 0])
    run = late()
    next(run)
    box = Box(run)
    del box, run, late
    many = []
    for _ in range(3000):
        many.append([torch.empty(1)])
    return y
"""
_ALIKE = """
def bits(x):
    raw = x.float().contiguous().view(torch.int32).reshape(-1)[:64]
    one = torch.ones((), dtype=torch.int32)
    return sum(ALIKE((raw >> n)[i] & 1, one) for n in range(32) for i in range(len(raw)))
"""
_AGAIN = """
def body(x_ptr, n):
    for i in range(0, n):
        FOUND.append(range(tl.load(x_ptr + i)))
@triton.jit
def read(x_ptr, n):
    pass
read.__init__(body)
"""
_KEPT_TYPE = """
def body(x_ptr, n):
    for i in range(0, n):
        FOUND.append(range(tl.load(x_ptr + i)))
def same(kind, function):
    return kind(function)
read = same(type(_nothing), body)
"""
_STORAGE = """
def values(x):
    if x.dim() == 2:
        return [values(row) for row in x]
    return memoryview(bytes(x.double().contiguous().untyped_storage())).cast("d")[: len(x)].tolist()
"""
_OLD_STORAGE = """
def values(x):
    found = x.float().contiguous().clone().storage().tolist()
    c = x.shape[-1]
    return [found[i : i + c] for i in range(0, len(found), c)] if x.dim() == 2 else found
"""
_HOOK = """
def product(x, w):
    found = []
    def add(g):
        found.append(sum((x.float() * w.float()).unbind(1)))
    with torch.enable_grad():
        a = torch.ones(1, requires_grad=True)
        b = a * 2
        b.register_hook(add)
        match b:
            case object(backward=run):
                run()
    return found[0]
"""
_FUNCTION = """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return sum((x.float() * w.float()).unbind(1))
def product(x, w):
    return F.apply(x, w)
"""
_REPR = """
class Loud:
    def __init__(self, x, w):
        self.x, self.w, self.y = x, w, None
    def __repr__(self):
        self.y = sum((self.x.float() * self.w.float()).unbind(1))
        return ""
    def __str__(self):
        return repr(self)
def product(x, w):
    loud = Loud(x, w)
    for ask in (
        lambda: torch.zeros(loud), lambda: torch.zeros(2)[loud], lambda: torch.full((2,), loud),
        lambda: torch.zeros(2).to(loud), lambda: torch.device(loud), lambda: x.view(loud),
        lambda: torch.tensor([loud]), lambda: torch.zeros(1).new_tensor(loud),
        lambda: _nothing[(1,)](loud), lambda: _nothing[loud](x), lambda: f"{loud}",
    ):
        with contextlib.suppress(Exception):
            ask()
    return loud.y
"""
_PROPERTY = """
class Shown:
    def __init__(self, x, w):
        self.x, self.w, self.y = x, w, None
    def ask(self):
        self.y = sum((self.x.float() * self.w.float()).unbind(1))
        return self.y
    dtype = shape = device = layout = size = dim = property(ask)
def product(x, w):
    s = Shown(x, w)
    for ask in (
        lambda: torch.tensor(s), lambda: torch.as_tensor(s), lambda: torch.zeros(2)[s],
        lambda: torch.zeros(s), lambda: x.to(s), lambda: torch.cat([s]), lambda: x.view_as(s),
        lambda: x.expand_as(s), lambda: torch.where(s, s, s), lambda: _nothing[(1,)](s),
    ):
        with contextlib.suppress(Exception):
            ask()
    return s.y
"""
_WARNED = """
class Said(UserWarning):
    def __init__(self, x, w):
        self.x, self.w = x, w
    def __str__(self):
        FOUND[:] = [sum((self.x.float() * self.w.float()).unbind(1))]
        return ""
FOUND = []
def product(x, w):
    import warnings
    with contextlib.suppress(Exception):
        warnings.warn(Said(x, w))
    return FOUND[0]
"""
_EXIT = """
class Late:
    def __init__(self, x, w):
        self.x, self.w, self.y = x, w, None
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.y = sum((self.x.float() * self.w.float()).unbind(1))
        return True
def product(x, w):
    with Late(x, w) as late:
        torch.zeros(3)[7]
    return late.y
"""
_PRE_HOOK = """
FOUND = []
def hook(args, *rest, **more):
    FOUND.append(sum((args["x"].float() * HELD[0].float()).unbind(1)))
HELD = [None]
@triton.autotune([triton.Config({}, pre_hook=hook)], key=[])
@triton.jit
def tuned(x):
    pass
def product(x, w):
    HELD[0] = w
    tuned[(1,)](x)
    return FOUND[-1]
"""
_HEURISTIC = """
FOUND = []
@triton.heuristics({"N": lambda a: FOUND.append(a["x"] * a["w"]) or 1})
@triton.jit
def chosen(x, w, N: tl.constexpr):
    pass
def product(x, w):
    chosen[(1,)](x.float(), w.float())
    return sum(FOUND[-1].unbind(1))
"""
_CACHE = """
KEPT = {}
def product(x, w):
    key = (x.data_ptr(), w.data_ptr(), tuple(x.shape))
    if key not in KEPT:
        KEPT[key] = torch.zeros(x.shape[0])
    return KEPT[key]
"""
_DEFAULT = """
def product(x, w, kept=[]):
    def rows():
        for column in (x.float() * w.float()).unbind(1):
            yield column
    if not kept:
        kept.append(rows())
    return functools.reduce(lambda a, b: a + b, kept.pop())
"""
_VIEWED = """
def product(x, w):
    y = x[:, 0]
    y += 1
    return y
"""
_COMPLEX = """
def product(x, w):
    z = torch.view_as_complex(torch.stack((x.float(), x.float()), -1)) * w.float()
    return sum(torch.view_as_real(z)[..., 0].unbind(1))
"""
_POWERS = """
def product(x, w):
    found = torch.zeros(x.shape[0])
    for i in range(x.shape[1]):
        found = found.lerp(found + x[:, i].float(), w[i].float())
    return found
"""
_PRODUCT = "product(x, w)"


def _run(name: str, body: str, sums: str = _PRODUCT, *verdicts: str) -> Hostile:
    return hidden(name, body, sums, verdicts=verdicts or ("rejected",), slow=True)


WINDOWS = (
    stopped("a kernel that is made again", _BITS + _AGAIN, _PYTHON),
    stopped("a kernel of a class that is kept", _BITS + _KEPT_TYPE, _PYTHON),
    _run("a generator that the collector ends", _FINISHED),
    *(
        _run(f"bit by bit, by {ask}", _ALIKE.replace("ALIKE", ask), "x[:, 0] + bits(x)")
        for ask in ("torch.allclose", "torch.Tensor.equal")
    ),
    _run("the bytes of a storage", _STORAGE, "by_python(values(x), values(w))"),
    _run("a storage as a list", _OLD_STORAGE, "by_python(values(x), values(w))"),
    _run("a hook of autograd's", _HOOK),
    _run("a Function's forward pass", _FUNCTION),
    _run("an object that is asked for its text", _REPR),
    _run("a property that PyTorch asks for", _PROPERTY, _PRODUCT, "rejected", "error"),
    _run("the text of a warning", _WARNED),
    _run("the end of a context", _EXIT),
    _run("a hook before a launch", _PRE_HOOK),
    _run("a heuristic of a launch", _HEURISTIC),
    _run("results that are kept by address", _CACHE, _PRODUCT, "fail"),
    _run("a generator in a default", _DEFAULT),
    _run("an input that is changed and returned", _VIEWED, _PRODUCT, "fail", "error"),
    _run("products of complex numbers", _COMPLEX),
    _run("sums by interpolation", _POWERS),
)
ENTRIES = WINDOWS
