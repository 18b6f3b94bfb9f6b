"""Finds the lines that make what a line works with, through assignments and arguments of calls.

A mistake often shows in a given line: a loop over tiles whose bounds a step computes, or a load by
a pointer that a step moves.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from grader.source.expressions import (
    ACCESSES,
    calls_in,
    guard,
    has_effect,
    is_plain_range,
    leftmost,
    names_in,
    names_of,
    of_access,
    offsets_of,
    parameters_of,
)
from grader.source.functions import argument_of, assigned_in, calls_of, functions_of, values_of
from grader.source.loops import LOOPS, bounds_of, function_at, lines_of, read_by

MOST_FEEDING = 6  # lines that are shown because they feed another one
_MOST = 400  # names that are followed
_MOST_CALLS = 2_000  # that are searched for accesses, nested ones included
_DEEPEST = 8  # nested calls
_BRANCHES = (ast.If, ast.IfExp)
_COMPUTE = (ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp)
_INPUTS = {"q", "k", "v"}
_OF_KEYS = {"k", "v", "dk", "dv"}
_NO_SUM = (ast.Name, ast.Constant, ast.Subscript, ast.Attribute)
_ENDS = {"before", "after"}
_OF_LAUNCH = {"grid", "launch", "launch+index"}
_OF_ACCESS = {"pointer", "address", "offset", "mask"}


@dataclasses.dataclass(frozen=True)
class Spot:
    """Where something shows: a line, 0 for none, and whether the mistake is `located` there.

    `part` is what may be wrong in the line, "" where that is not known. Parts may be joined, as in
    "address+mask+grid"; "a|b" is b where a leads to no line. Parts of an access are its "mask", its
    "address", or only the "pointer" or the "offset" in that; "stride" leaves out indices, "launch"
    adds what a launch passes, and "grid" the grid of that. Parts of a loop are its "bounds", or the
    "branch" that decides in it. "before" or "after" says that the first or the last positions are
    wrong, of a branch or of an access. "divisor" is what the line divides by, "index" what it takes
    elements of, "value" all that it reads; origins.py finds "weights" and "scale" in a step. `of`
    is the name of an "option", or of a pointer, if the line accesses several or works with what one
    loads. `through` are lines of the function that calls the one with the line, if several do and
    that is known.
    """

    line: int = 0
    located: bool = False
    part: str = ""
    of: str = ""
    through: tuple[int, ...] = ()


class Follow(enum.Enum):
    """How far a slice goes on behind the first line of a step that it reaches."""

    NEAREST = enum.auto()  # no further
    STEP = enum.auto()  # to other lines of that step
    ALL = enum.auto()


def lines_feeding(
    tree: ast.Module,
    spot: Spot,
    step_of: Callable[[int], int | None],
    follow: Follow = Follow.NEAREST,
) -> dict[int, int]:
    """Return the lines of steps that make a part of a line, each with the number of lines between.

    `step_of` returns the step of a line. Lines of a launch count only if none in the kernel does.
    If the line is of a step and computes the part itself, it is the nearest. Without a part, the
    lines make all that the line reads: of a store its address and mask, of a loop its bounds.
    """
    function, found = function_at(tree, spot.line), dict[int, int]()
    for part in spot.part.split("|") if function is not None else ():
        found = found or _Slice(
            tree, dataclasses.replace(spot, part=part), step_of, follow
        ).from_line(function)
    return found


def is_decided(tree: ast.Module, spot: Spot) -> bool:
    """Whether it is clear which is wrong, a line or what feeds it.

    In a branch it is the bound of its test, or the test itself; an access at the position of a loop
    is wrong only if the loop is.
    """
    function, found = function_at(tree, spot.line), _Slice(tree, spot, lambda n: 1)
    if function is not None:
        found.from_line(function)
    return found.decided


def works_with(tree: ast.Module, spot: Spot) -> bool:
    """Whether a line uses what its pointer loads: a product of k in place of v is wrong itself."""
    if spot.part != "pointer" or spot.of not in _INPUTS:
        return True
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and spot.line in lines_of(n)]
    inside = list(ast.walk(max(nodes, key=lambda n: n.lineno, default=tree)))
    types = {id(n.value) for n in inside if isinstance(n, ast.Attribute)}
    loads = [n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    read = {n.id for n in loads if id(n) not in types and "stride" not in n.id}
    named = {name.partition("_")[0] for name in read}
    return spot.of in named or not named & _INPUTS


class _Slice:
    """Follows what a part of a line is made of, back to the lines of steps."""

    def __init__(
        self,
        tree: ast.Module,
        spot: Spot,
        step_of: Callable[[int], int | None],
        goes: Follow = Follow.NEAREST,
    ) -> None:
        self._tree, self._spot, self._step_of, self._goes = tree, spot, step_of, goes
        self._functions = functions_of(tree)
        self._parts = set(spot.part.split("+")) - {""}
        self._of_pointer = "pointer" in self._parts
        self._found: dict[int, int] = {}
        self._waiting = collections.deque[_Place]()
        self._seen: set[tuple[ast.FunctionDef, str, bool]] = set()
        self._launched: list[tuple[ast.FunctionDef, str]] = []  # kernels, each with a parameter
        self.decided = False
        self._calls = 0
        self._idle = False

    def from_line(self, function: ast.FunctionDef) -> dict[int, int]:
        """Return the lines that make what the line of the spot, in `function`, works with."""
        spot, line, part = self._spot, self._spot.line, self._spot.part
        for _ in range(_DEEPEST if part == "bounds" else 0):
            within = [n for n in ast.walk(function) if isinstance(n, LOOPS)]
            callers = self._callers(function)
            if len(callers) != 1 or any(line in lines_of(loop) for loop in within):
                break
            function, line = callers[0][0], callers[0][1].lineno
        branch = "branch" in self._parts
        own = self._step_of(line)
        makes_it = part and not branch and own is not None
        around = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and line in lines_of(n)]
        loops = [n for n in around if isinstance(n, ast.For)]
        counted = {name for loop in loops for name in names_of(loop.target)}
        asked, loaded = self._asked(function, around)
        if branch and (found := guard(asked, counted, self._parts, values_of(function))):
            self.decided, asked = True, [found]
            ends = [ast.dump(end) for loop in loops for end in bounds_of(loop)]
            # A test without effect, or one for an end of the loop, is wrong with any bound.
            if self._idle or isinstance(found, ast.stmt) or ast.dump(found) in ends:
                return dict.fromkeys({found.lineno} & self._of_steps({found.lineno}), 0)
        elif not branch and self._parts & _ENDS:
            is_position = all(isinstance(one, _NO_SUM) for one in asked)
            self.decided = is_position and bool(counted & names_in(*asked))
        makes_it = makes_it and any(isinstance(one, _COMPUTE) for one in asked)
        if makes_it and self._goes is not Follow.ALL:
            self._found[line] = 0
        if makes_it and self._goes is Follow.NEAREST:
            return self._found
        names = names_in(*asked) - (counted if branch else set())
        if "stride" in self._parts:  # strides alone, if there are any
            names = {name for name in names if "stride" in name} or names
        within = own if spot.located or makes_it else None
        self._follow(_Place(function, name, loaded, within) for name in names)
        while self._waiting:
            self._step(self._waiting.popleft())
        if part == "pointer" and not self._found:
            self._follow_others(function, names)
        if part in _OF_LAUNCH:  # only lines of launches count
            self._found.clear()
        if self._launched and not within and (self._parts & {"launch", "grid"} or not self._found):
            self._follow_launches()
        return self._found

    def _callers(self, function: ast.FunctionDef) -> list[tuple[ast.FunctionDef, ast.Call]]:
        """Return the calls of a function, each with the function that makes it."""
        callers = list(calls_of(self._tree, function.name))
        own = [c for c in callers if any(n in lines_of(c[0]) for n in self._spot.through)]
        return own or callers

    def _asked(
        self, function: ast.FunctionDef, around: list[ast.stmt]
    ) -> tuple[list[ast.AST], bool]:
        """Return the expressions of the part, and whether these are of an access."""
        loops = [n for n in around if isinstance(n, LOOPS)]
        loop = max(loops, key=lambda n: n.lineno, default=None)
        inner = max(around, key=lambda n: (n.lineno, -(n.end_lineno or n.lineno)))
        part = self._spot.part
        if loop is not None and part == "bounds":
            return bounds_of(loop), False
        if "branch" in self._parts:
            branches = [n for n in ast.walk(loop or function) if isinstance(n, _BRANCHES)]
            decide = [n for n in branches if has_effect(n, function)]
            self._idle = not decide
            return [n.test for n in decide or branches], False
        calls = [n for n in ast.walk(inner) if isinstance(n, ast.Call)]
        stores = not part and isinstance(inner, ast.Expr)
        if self._parts & _OF_ACCESS or stores:
            found = [pair for call in calls for pair in self._of_call(call, ())]
            own = [one for name, one in found if _is_of(name, self._spot.of)]
            if found or (part == "mask" and calls_in(inner) & ACCESSES):
                return own or [one for _, one in found], True
        if "divisor" in self._parts:
            nodes = [n for n in ast.walk(inner) if isinstance(n, ast.BinOp)]
            return [n.right for n in nodes if isinstance(n.op, ast.Div)], False
        if "index" in self._parts:
            return [n.value for n in ast.walk(inner) if isinstance(n, ast.Subscript)], False
        return read_by(inner), False

    def _follow_others(self, function: ast.FunctionDef, names: set[str]) -> None:
        """Follow the other pointers of a function, in case a step moves these and not `names`.

        The line that moves `names` is then missing there.
        """
        every = {n: n.partition("_")[0] in _OF_KEYS for n in parameters_of(function)}
        pointers = {name for name in every if name.endswith("_ptr")}
        sides = {every[name] for name in pointers & names}
        if sides:
            self._launched.clear()
        self._follow(_Place(function, n, True) for n in pointers - names if every[n] in sides)
        while self._waiting:
            self._step(self._waiting.popleft())

    def _of_steps(self, lines: Iterable[int], within: int | None = None) -> set[int]:
        """Return those of some lines that are of a step, or of the step `within`."""
        return {n for n in lines if (step := self._step_of(n)) and within in (None, step)}

    def _follow(self, places: Iterable[_Place]) -> None:
        """Queue names to follow: near ones before those behind more lines of steps."""
        for place in places:
            if place[:3] not in self._seen and len(self._seen) < _MOST:
                self._seen.add(place[:3])
                is_near = self._waiting and place.far < self._waiting[-1].far
                (self._waiting.appendleft if is_near else self._waiting.append)(place)

    def _step(self, place: _Place) -> None:
        """Follow one name to the lines that assign it, and to calls that pass it."""
        (function, name, loaded, within, far), part = place, self._spot.part
        assigned = list(assigned_in(self._tree, function, name))
        # No line counts as one that makes a pointer before its load is found.
        makes = [n for n, value in assigned if not is_plain_range(value)]
        own = self._of_steps(makes, within) if loaded or not self._of_pointer else set()
        self._found |= dict.fromkeys(own - self._found.keys(), far)
        if own and self._goes is not Follow.ALL and part not in _OF_LAUNCH:
            for n, value in assigned:  # what is called may be of another step
                if n in own and value is not None:
                    self._follow_returned(value, place)
                    self._follow_in_step(value, place._replace(within=self._step_of(n)))
            return
        for _, value in assigned:
            bound = self._at_end(value)
            self._follow(
                place._replace(name=used, loaded=at) for used, at in self._used(bound, place)
            )
        if name in (parameters := parameters_of(function)):
            for caller, call in self._callers(function):
                value = argument_of(call, parameters.index(name), name)
                if isinstance(call.func, ast.Subscript):
                    self._launched.append((function, name))
                elif value is not None:
                    makes = not part or isinstance(value, _COMPUTE)
                    found = self._of_steps({call.lineno}, within) if makes else ()
                    self._found |= dict.fromkeys(found, far)
                    self._follow(
                        place._replace(function=caller, name=used) for used in names_in(value)
                    )

    def _at_end(self, value: ast.AST | None) -> ast.AST | None:
        """Return the bound of a range at the end that is wrong; of other values the whole."""
        given = value.args if isinstance(value, ast.Call) and calls_in(value) == {"range"} else []
        forward = len(given) < 3 or not isinstance(given[2], ast.UnaryOp)
        if not given or not forward or len(self._parts & _ENDS) != 1:
            return value
        first, end = given[:2] if len(given) > 1 else (None, given[0])
        return first if "before" in self._parts else end

    def _follow_in_step(self, value: ast.AST, place: _Place) -> None:
        """Follow what a found line of a step works with, to other lines of that step."""
        if self._goes is Follow.STEP:
            offsets = offsets_of(value) if "offset" in self._parts else []
            names = names_in(*(offsets or [value]))
            self._follow(place._replace(name=n, loaded=True, far=place.far + 1) for n in names)

    def _used(self, value: ast.AST | None, place: _Place) -> Iterator[tuple[str, bool]]:
        """Yield the names that a value is made of, each with whether it is part of an access."""
        loaded = place.loaded
        if value is None:
            return
        if self._of_pointer and loaded:
            value = leftmost(value)
        elif self._of_pointer:
            calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
            found = [pair for call in calls for pair in self._of_call(call, ())]
            if found:
                ours = [one for name, one in found if _is_of(name, self._spot.of)]
                yield from ((used, True) for used in names_in(*ours))
                return
        yield from ((used, loaded) for used in names_in(value))
        self._follow_returned(value, place)

    def _follow_returned(self, value: ast.AST, place: _Place) -> None:
        """Follow what the functions of the file that an expression calls return."""
        for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
            called = self._functions.get(getattr(call.func, "id", ""))
            if called is not None and called in self._tree.body:
                returned = [n.value for n in ast.walk(called) if isinstance(n, ast.Return)]
                used = names_in(*returned)
                self._follow(place._replace(function=called, name=name) for name in used)

    def _follow_launches(self) -> None:
        """Follow what launches pass to kernels and, with "grid", the grids of launches."""
        for kernel, name in self._launched:
            for caller, call in calls_of(self._tree, kernel.name):
                if not isinstance(call.func, ast.Subscript):
                    continue
                value: ast.AST | None = argument_of(call, parameters_of(kernel).index(name), name)
                if "grid" in self._parts:
                    value = call.func.slice
                if isinstance(value, ast.expr):
                    self._found |= dict.fromkeys(self._of_steps({value.lineno}), 0)
                    self._follow(_Place(caller, used, True) for used in names_in(value))
        while self._waiting:
            self._step(self._waiting.popleft())

    def _of_call(
        self, call: ast.Call, within: tuple[ast.FunctionDef, ...]
    ) -> Iterator[tuple[str, ast.AST]]:
        """Yield the expressions in the accesses of a call, each with the name of its pointer.

        For an access inside the called function, these are the arguments that it is made of.
        """
        called = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
        function = self._functions.get(called) if self._calls < _MOST_CALLS else None
        self._calls += 1
        if called in ACCESSES or called.startswith("atomic_"):
            yield from of_access(call, called, self._parts or {"address", "mask"}, within)
        elif function is not None and function not in within and len(within) < _DEEPEST:
            parameters = parameters_of(function)
            handed = {name: argument_of(call, n, name) for n, name in enumerate(parameters)}
            for inside in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
                for name, expression in self._of_call(inside, (*within, function)):
                    pointers = _behind(function, {name}, handed, only_pointers=True)
                    name = next(iter(names_in(*map(leftmost, pointers[:1]))), "")
                    made = _behind(function, names_in(expression), handed, self._of_pointer)
                    for argument in made:
                        parts = offsets_of(argument) if "offset" in self._parts else []
                        yield from ((name, part) for part in parts or [argument])


class _Place(NamedTuple):
    """A name in a function, and whether it is that of a pointer, mask or offset of an access.

    `far` lines of steps lie between it and the spot; only the step `within` counts, if given.
    """

    function: ast.FunctionDef
    name: str
    loaded: bool
    within: int | None = None
    far: int = 0


def _behind(
    function: ast.FunctionDef,
    names: Iterable[str],
    handed: Mapping[str, ast.AST | None],
    only_pointers: bool,
) -> list[ast.AST]:
    """Return the arguments of a call that names in the called function are made of."""
    waiting = list(names)
    for name in waiting:
        for _, value in assigned_in(None, function, name):
            value = leftmost(value) if only_pointers and value is not None else value
            waiting += names_in(value) - set(waiting)
    found = (handed.get(name) for name in waiting)
    return [argument for argument in found if argument is not None]


def _is_of(name: str, of: str) -> bool:
    """Whether a pointer has the name that is asked for: k_ptr, k_ptrs and k_rows are of "k"."""
    return not of or name.partition("_")[0] == of.partition("_")[0]
