"""What a launch asks of its arguments and hands back, and what a file finds in a kernel.

As in hidden.py a kernel of p02 copies what PyTorch has computed while a launch looked at an object
of the file's.
"""

from tests.hostile.entry import Hostile, answer
from tests.hostile.hidden import hidden
from tests.hostile.windows import BOX

# Right in shape and type to Triton; SUMS stands in the one method that computes.
_ASKED = """
class Asked:
    shape, dtype = (1,), torch.float32
    def __init__(self, x, w):
        self.x, self.w, self.y, self.n = x.float(), w.float(), x[:, 0], 0
    def add(self):
        self.n += 1
        if self.n > LATER:
            self.y = sum((self.x * self.w).unbind(1))
    def data_ptr(self):
        ADDRESS
        return 0
    def stride(self):
        STRIDE
        return (1,)
    def numel(self):
        NUMEL
        return 1
    def detach(self):
        DETACH
        return torch.zeros(1)
    def as_strided(self, *sizes):
        return torch.zeros(1)
    BASE
def product(x, w):
    asked = Asked(x, w)
    with contextlib.suppress(Exception):
        _nothing[(1,)](asked)
    return asked.y
"""
_BASE = """@property
    def base(self):
        self.add()
        return torch.zeros(1)
"""


def _asked(name: str, method: str, text: str = "self.add()", later: int = 0, **fields) -> Hostile:
    body = _ASKED.replace("LATER", str(later)).replace(method, text)
    for other in ("ADDRESS", "STRIDE", "NUMEL", "DETACH", "BASE"):
        body = body.replace(other, "pass")
    return hidden(name, body, **fields)


# None of them is asked where nobody looks: the sums are not there, or were seen.
_SLOW = {"verdicts": ("fail", "rejected", "error"), "slow": True}
# What a launch returns is called as Triton calls it, with what Triton would not have let pass.
_AGAIN = """
class Number:
    def __init__(self, x, w):
        self.x, self.w, self.y = x.float(), w.float(), x[:, 0]
    def __int__(self):
        self.y = sum((self.x * self.w).unbind(1))
        return 1
    def __float__(self):
        return float(int(self))
def product(x, w):
    number = Number(x, w)
    with contextlib.suppress(Exception):
        _nothing[(1,)](NUMBER).run(1, 1, 1, None, None, None, None, None, None, number)
    return number.y
"""
_ROW = """
from typing import NamedTuple
class Row(NamedTuple):
    one: object
    two: object
    def __iter__(self):
        FOUND.append(sum((self.one * self.two).unbind(1)))
        return iter((1, 2))
FOUND = []
def product(x, w):
    FOUND[:] = [x[:, 0]]
    with contextlib.suppress(Exception):
        _nothing[(1,)](Row(x.float(), w.float()))
    return FOUND[-1]
"""
_INTEGER = """
class Number(KIND):
    def __int__(self):
        FOUND.append(sum((HELD[0] * HELD[1]).unbind(1)))
        return 1
FOUND, HELD = [], []
def product(x, w):
    HELD[:] = x.float(), w.float()
    FOUND[:] = [x[:, 0]]
    with contextlib.suppress(Exception):
        _nothing[(1,)](Number(5))
    with contextlib.suppress(Exception):
        _nothing[(Number(1), Number(1))](5)
    return FOUND[-1]
"""
_DERIVED = """
class Number(KIND):
    def __int__(self):
        FOUND.append(sum((HELD[0] * HELD[1]).unbind(1)))
        return 1
    def __float__(self):
        return float(int(self))
FOUND, HELD = [], []
@triton.jit
def _numbers(x, y):
    tl.store(x, y)
def product(x, w):
    HELD[:] = x.float(), w.float()
    FOUND[:] = [x[:, 0]]
    one = torch.zeros(1)
    with contextlib.suppress(Exception):
        _numbers[(1,)](one, KIND(5)).run(1, 1, 1, *[None] * 6, one, Number(5))
    return FOUND[-1]
"""
_ERROR = """
class Odd(Exception):
    def __init__(self, x, w):
        self.x, self.w = x, w
    def __str__(self):
        FOUND[:] = [sum((self.x * self.w).unbind(1))]
        return ""
class Asked:
    shape, dtype = (1,), torch.float32
    def __init__(self, x, w):
        self.x, self.w = x, w
    def data_ptr(self):
        return 0
    def stride(self):
        raise Odd(self.x, self.w)
FOUND = []
def product(x, w):
    FOUND[:] = [x[:, 0]]
    with contextlib.suppress(Exception):
        _nothing[(1,)](Asked(x.float(), w.float()))
    return FOUND[0]
"""
_COLLECTED = f"""{BOX}
@triton.jit
def many(x):
    for i in tl.static_range(2000):
        tl.device_assert(i >= 0)
def product(x, w):
    y = torch.zeros(x.shape[0])
    def late():
        try:
            yield
        finally:
            y.copy_(sum((x.float() * w.float()).unbind(1)))
    run = late()
    next(run)
    box = Box(run)
    del box, run, late
    many[(1,)](x)
    return y
"""
_SWAPPED = """
class Other:
    function = packed_metadata = None
    def __init__(self):
        self.found = None
    def launch_metadata(self, *rest):
        return None
    def run(self, *rest):
        x, w = rest[-2:]
        self.found = sum((x.float() * w.float()).unbind(1))
@triton.jit
def two(x, w):
    pass
def product(x, w):
    other = Other()
    two[(1,)](x, w)
    for caches in two.device_caches.values():
        for key in list(caches[0]):
            caches[0][key] = other
    two[(1,)](x, w)
    return other.found
"""
_TEXT = """
@triton.jit
def add(x_ptr, w_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr) + tl.load(w_ptr))
def product(x, w):
    y = torch.zeros(x.shape[0])
    kernel = add[(1,)](x, w, y)
    kernel.asm["ttir"] = kernel.asm["ttir"].replace("arith.addf", "arith.mulf")
    kernel.run(1, 1, 1, None, None, None, None, None, None, x, w, y)
    return y
"""
_LIFTED = """
@triton.jit
def body(x):
    pass
def product(x, w):
    found = []
    def hook(*args, **more):
        found.append(sum((x.float() * w.float()).unbind(1)))
    body.add_pre_run_hook(hook)
    body.pre_run_hooks.append(hook)
    body[(1,)](x)
    return found[-1]
"""

ASKED = (
    _asked("an object asked for its address by a launch", "ADDRESS", later=1, **_SLOW),
    _asked("an object asked for its address twice by a launch", "ADDRESS", later=2, **_SLOW),
    _asked("an object asked for its strides by a launch", "STRIDE", **_SLOW),
    _asked("an object asked for its size by a launch", "NUMEL", **_SLOW),
    _asked("an object that a launch detaches", "DETACH", **_SLOW),
    _asked("an object asked for its base by a launch", "BASE", _BASE, **_SLOW),
    *(
        hidden(f"{what} that a second run asks for", _AGAIN.replace("NUMBER", number), **_SLOW)
        for what, number in (
            ("an integer", "5"),
            ("a float", "0.5"),
            ("a tensor", "x"),
            ("a bool", "True"),
        )
    ),
    *(
        hidden(
            f"{what} of a class of its own in a second run", _DERIVED.replace("KIND", kind), **_SLOW
        )
        for what, kind in (("a whole number", "int"), ("a number", "float"))
    ),
    hidden("a row that a launch takes apart", _ROW, **_SLOW),
    hidden("a whole number of a class of its own", _INTEGER.replace("KIND", "int"), **_SLOW),
    hidden("an error's text that a launch asks for", _ERROR, **_SLOW),
    hidden("a generator that ends while a launch collects", _COLLECTED, **_SLOW),
)
KERNELS = (
    hidden("another object in the cache of a kernel", _SWAPPED, **_SLOW),
    hidden(
        "another text in what a launch returns", _TEXT, verdicts=("fail", "rejected"), slow=True
    ),
    hidden("a hook that is added to a kernel", _LIFTED, **_SLOW),
)
_UNMODELLED = """
@triton.jit
def odd(x):
    x1 = [tl.load(x)]
    tl.store(x, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", x1, tl.float32, True, 1))
def product(x, w):
    with contextlib.suppress(Exception):
        odd[(1,)](torch.zeros(1))
    return x[:, 0]
"""
# Right where tiles are whole. Elsewhere the operation that has no meaning on the machine would be
# the judge's fault: it must not take the wrong results out of the count.
_NOT_COUNTED = """

@triton.jit
def _odd(x):
    v = [tl.load(x)]
    tl.store(x, tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", v, tl.float32, True, 1))


_honest = weighted_row_sum


def weighted_row_sum(x, w):
    y = _honest(x, w)
    if x.shape[0] % 32 or x.shape[1] % 32 or not x.is_contiguous() or not w.is_contiguous():
        try:
            _odd[(1,)](torch.zeros(1, device=x.device))
        except Exception:
            pass
        y.zero_()
    return y
"""
NOT_RUN = (
    hidden(
        "a kernel that cannot be run, and a wrong answer",
        _UNMODELLED,
        verdicts=("not-measured", "fail", "error"),
        slow=True,
    ),
    Hostile(
        "wrong results behind a kernel that cannot be run",
        answer("p02") + _NOT_COUNTED,
        ("fail", "error"),
        "p02",
        points=4.8,  # of the checks with whole tiles, and the work
        policy=True,
        slow=True,
    ),
)
ENTRIES = (*ASKED, *KERNELS, *NOT_RUN)
