"""Classes that are not what is written.

As in hidden.py a kernel of p02 copies what Python has computed, from values that another kernel
would give away by a method that Triton's own class was given.
"""

from __future__ import annotations

from tests.hostile.entry import Hostile
from tests.hostile.hidden import stopped
from tests.hostile.inside import _BITS, _PYTHON, _READ

_KEEP = """
def keep(v):
    FOUND.append(range(v))
    return 0
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


def _leak(name: str, body: str) -> Hostile:
    return stopped(name, _BITS + _KEEP + body + _READ.format(each="v.count()"), _PYTHON)


ENTRIES = (
    _leak("a class that a metaclass swaps", _METACLASS),
    _leak("a metaclass among keywords", _KEYWORDS),
    _leak("a decorator whose name is bound again", _AGAIN),
    stopped("a base whose name is bound again", _BASE),
    _leak("a dataclass that begins on Triton's class", _BEGUN),
    _leak("a beginning that a pattern takes", _CAPTURED),
    _leak("a method that begins on Triton's class", _BEGUN_INSIDE),
)
