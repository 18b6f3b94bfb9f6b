"""Classes that are not what is written, and what passes for Triton's own in a kernel.

As in hidden.py a kernel of p02 copies what Python has computed, from values that another kernel has
given away: by a method that Triton's own class was given, by a function that says it is Triton's,
or in the members of an enum.
"""

from __future__ import annotations

from tests.hostile.entry import Hostile
from tests.hostile.hidden import hidden
from tests.hostile.inside import _BITS, _PYTHON

_KEEP = """
def keep(v):
    FOUND.append(range(v))
    return 0
"""
# `LIVE` is false where the kernel is compiled.
_READ = """
@triton.jit
def read(x_ptr, n, LIVE: tl.constexpr):
    for i in range(0, n):
        v = tl.load(x_ptr + i)
        if LIVE:
            {each}
def told(bits):
    read[(1,)](bits, bits.numel(), hasattr(_nothing, "rewrite"))
"""
_METACLASS = """
def swap(*parts):
    return tl.tensor
class T(metaclass=swap):
    pass
T.count = keep
"""
_KEYWORDS = _METACLASS.replace("metaclass=swap", '**{"metaclass": swap}')
_AGAIN = """
from dataclasses import dataclass
def dataclass(kind):
    return tl.tensor
@dataclass
class T:
    pass
T.count = keep
"""
_BASE = """
from collections import namedtuple
def namedtuple(*names):
    return torch.Tensor
class Quiet(namedtuple("Quiet", "x")):
    def numel(self):
        return 0
def product(x, w):
    return by_python(Quiet(x.float()).tolist(), Quiet(w.float()).tolist())
"""
_BEGUN = """
@dataclasses.dataclass
class Box:
    count: object
Box.__init__(tl.tensor, keep)
"""
_CAPTURED = """
@dataclasses.dataclass
class Box:
    count: object
match Box:
    case object(__init__=begin):
        begin(tl.tensor, keep)
"""
_BEGUN_INSIDE = """
@dataclasses.dataclass
class Box:
    count: object
    def change(self, kept):
        Box.__init__(self, kept)
Box.change(tl.tensor, keep)
"""
_PARTIAL = """
sink = functools.partial(keep)
functools.wraps(tl.sum)(sink)
"""
_DECORATED = """
functools.wraps(tl.sum)(keep)
sink = torch.no_grad()(keep)
"""
_BY_FLAGS = _BITS.replace(
    "[decode(r.stop) for r in FOUND]",
    "[decode(n % 2**64) for n in list(Number._value2member_map_)[1:]]",
)
_FLAGS = """
import enum
class Number(enum.IntFlag):
    ONE = 1
Other = Number
"""
_MADE = "Other(((i + 1) << 64) + (int(v) & 0xFFFFFFFFFFFFFFFF))"
_SLOW = ("error", "timeout")
_JOINED = _MADE.replace("Other(", "Number.ONE | (")


def _leak(name: str, body: str, each: str, *verdicts: str, start: str = _BITS + _KEEP) -> Hostile:
    source = start + body + _READ.format(each=each)
    return hidden(name, source, _PYTHON, verdicts=verdicts or ("rejected",), slow=bool(verdicts))


ENTRIES = (
    _leak("a class that a metaclass swaps", _METACLASS, "v.count()"),
    _leak("a metaclass among keywords", _KEYWORDS, "v.count()"),
    _leak("a decorator whose name is bound again", _AGAIN, "v.count()"),
    hidden("a base whose name is bound again", _BASE),
    _leak("a dataclass that begins on Triton's class", _BEGUN, "v.count()"),
    _leak("a beginning that a pattern takes", _CAPTURED, "v.count()"),
    _leak("a method that begins on Triton's class", _BEGUN_INSIDE, "v.count()", "error"),
    _leak("a partial that says it is Triton's", _PARTIAL, "sink(v)", "error"),
    _leak("a decorated function that says it is Triton's", _DECORATED, "sink(v)", "error"),
    # 100,000 members take longer than a call may; test_own_kernels.py sees that none is kept.
    _leak("numbers that a Flag keeps", _FLAGS, _MADE, *_SLOW, start=_BY_FLAGS),
    _leak("numbers that a Flag is joined with", _FLAGS, _JOINED, *_SLOW, start=_BY_FLAGS),
)
