"""Which lines make what a line works with: through assignments, and arguments of calls.

A mistake often shows in a line that was given: a loop over tiles whose bounds a step computes, a
load by a pointer that one moves.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from grader.source.expressions import (
    calls_in,
    guard,
    leftmost,
    names_in,
    names_of,
    offsets_of,
    parameters_of,
)
from grader.source.functions import argument_of, assigned_in, calls_of, functions_of, values_of
from grader.source.loops import FUNCTIONS, LOOPS, function_at, lines_of

_MOST = 400  # names that are followed
_MOST_CALLS = 2_000  # that are looked into, in each other, for accesses
_DEEPEST = 8  # calls in each other
_BRANCHES = (ast.If, ast.IfExp)
_COMPUTE = (ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp)
_INPUTS = {"q", "k", "v"}
_NO_SUM = (ast.Name, ast.Constant, ast.Subscript, ast.Attribute)
_ENDS = {"before", "after"}
_OF_LAUNCH = {"grid", "launch"}
_OF_ACCESS = {"pointer", "address", "offset", "mask"}


@dataclasses.dataclass(frozen=True)
class Spot:
    """Where something shows: a line, 0 for none, and whether the mistake is `located` there.

    `part` is what of the line may be wrong, "" where that is not known. Of an access it is its
    "mask", its "address", or only the "pointer" or the "offset" in that, with "stride" no index,
    with "launch" also where a launch passes it, with "grid" also the grid of that, as in
    "address+mask+grid", or one of these alone. Of a loop it is its "bounds", or what decides in it,
    "branch". "before" or "after" says that the first positions are wrong, or the last: those that a
    branch decides, or those of an access. `of` is the name of a pointer, where the line accesses
    several, or works with what was loaded from one. "weights" are looked for in a step: see
    `Source.statement_of_step`. `through` are lines
    of the function that called the one with the line, where several do and that is known.
    """

    line: int = 0
    located: bool = False
    part: str = ""
    of: str = ""
    through: tuple[int, ...] = ()


def lines_feeding(
    tree: ast.Module, spot: Spot, ends: Callable[[int], bool], *, deep: bool = False
) -> set[int]:
    """Return the lines that make a part of a line and for which `ends` is true.

    What one that assigns depends on in its turn is not followed; what one that calls hands on is.
    Of a launch that counts only where nothing in the kernel does. Where an end makes the part
    itself that line is the one. Without a part it is all that the line reads, of a store its
    address and mask, of a loop its bounds. With `deep` what those lines depend on is followed, too.
    """
    function = function_at(tree, spot.line)
    return set() if function is None else _Slice(tree, spot, ends, deep).from_line(function)


def is_decided(tree: ast.Module, spot: Spot) -> bool:
    """Whether a line shows which of the two is wrong, that or what feeds it.

    Of a branch that is a bound in its test, or the test itself; an access at the position of a loop
    is as wrong as that.
    """
    function, found = function_at(tree, spot.line), _Slice(tree, spot, lambda number: True, False)
    if function is not None:
        found.from_line(function)
    return found.decided


def lines_setting(tree: ast.Module | None, line: int, name: str) -> list[int]:
    """Return the lines of the function at a line that give a name a value."""
    function = function_at(tree, line) if tree is not None else None
    return [n for n, _ in assigned_in(None, function, name)] if function is not None else []


def works_with(tree: ast.Module, spot: Spot) -> bool:
    """Whether a line uses what a pointer loads: a product of k, not v, is wrong itself."""
    if spot.part != "pointer" or spot.of not in _INPUTS:
        return True
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and spot.line in lines_of(n)]
    inside = list(ast.walk(max(nodes, key=lambda n: n.lineno, default=tree)))
    types = {id(n.value) for n in inside if isinstance(n, ast.Attribute)}
    loads = [n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    read = {n.id for n in loads if id(n) not in types and "stride" not in n.id}
    named = {name.partition("_")[0] for name in read}
    return spot.of in named or not named & _INPUTS


def functions_called(tree: ast.Module, line: int) -> list[int]:
    """Return the first lines of the functions of the file that a line calls."""
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call) and n.lineno == line]
    names = {n.id for n in calls if isinstance(n, ast.Name)}
    return [n.lineno for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]


def bare_loads(tree: ast.Module) -> dict[int, str]:
    """Return the lines of loads that leave lanes undefined, each with the argument that it lacks.

    They turn lanes off, by a mask or a block pointer's boundary_check, and give them no value.
    """
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    loads = [n for n in calls if getattr(n.func, "attr", "") == "load" and n.args]
    named = [(n.lineno, len(n.args), {k.arg for k in n.keywords}) for n in loads]
    masked = [(n, m > 2 or "other" in k) for n, m, k in named if m > 1 or "mask" in k]
    checked = [(n, "padding_option" in k) for n, _, k in named if "boundary_check" in k]
    found = {n: "padding_option" for n, is_given in checked if not is_given}
    return found | {n: "other" for n, is_given in masked if not is_given}


class _Slice:
    """What a part of a line is made of."""

    def __init__(
        self, tree: ast.Module, spot: Spot, ends: Callable[[int], bool], deep: bool
    ) -> None:
        self._tree, self._spot, self._ends, self._deep = tree, spot, ends, deep
        self._functions = functions_of(tree)
        self._parts = set(spot.part.split("+")) - {""}
        self._of_pointer = "pointer" in self._parts
        self._found: set[int] = set()
        self._waiting: list[_Place] = []
        self._seen: set[_Place] = set()
        self._launched: list[tuple[ast.FunctionDef, str]] = []  # kernels, each with a parameter
        self.decided = False
        self._calls = 0

    def from_line(self, function: ast.FunctionDef) -> set[int]:
        """Return the lines that make what the line of the spot, in `function`, works with."""
        line, part = self._spot.line, self._spot.part
        for _ in range(_DEEPEST if part == "bounds" else 0):
            within = [n for n in ast.walk(function) if isinstance(n, LOOPS)]
            callers = self._callers(function)
            if len(callers) != 1 or any(line in lines_of(loop) for loop in within):
                break
            function, line = callers[0][0], callers[0][1].lineno
        branch = "branch" in self._parts
        makes_it = part and not branch and self._ends(line)
        around = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and line in lines_of(n)]
        loops = [n for n in around if isinstance(n, ast.For)]
        counted = {name for loop in loops for name in names_of(loop.target)}
        asked, loaded = self._asked(function, around)
        if branch and (found := guard(asked, counted, self._parts, values_of(function))):
            self.decided, asked = True, [found]
            if isinstance(found, ast.stmt):
                return {found.lineno} if self._ends(found.lineno) else set()
        elif not branch and self._parts & _ENDS:
            is_position = all(isinstance(one, _NO_SUM) for one in asked)
            self.decided = is_position and bool(counted & names_in(*asked))
        if makes_it and not self._deep and any(isinstance(one, _COMPUTE) for one in asked):
            return {line}
        names = names_in(*asked) - (counted if branch else set())
        if "stride" in self._parts:  # that, and no index
            names = {name for name in names if "stride" in name} or names
        self._follow(_Place(function, name, loaded) for name in names)
        while self._waiting:
            self._step(self._waiting.pop())
        if part in _OF_LAUNCH:  # no line of the kernel
            self._found.clear()
        if self._launched and (self._parts & {"launch", "grid"} or not self._found):
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
            return _bounds(loop), False
        if "branch" in self._parts:
            tests = [n.test for n in ast.walk(loop or function) if isinstance(n, _BRANCHES)]
            return tests, False
        calls = [n for n in ast.walk(inner) if isinstance(n, ast.Call)]
        stores = not part and isinstance(inner, ast.Expr)
        if self._parts & _OF_ACCESS or stores:
            found = [pair for call in calls for pair in self._of_call(call, ())]
            own = [one for name, one in found if _is_of(name, self._spot.of)]
            if found or part == "mask":
                return own or [one for _, one in found], True
        return _read_by(inner), False

    def _follow(self, places: Iterable[_Place]) -> None:
        new = [place for place in places if place not in self._seen]
        if len(self._seen) < _MOST:
            self._waiting += new
            self._seen.update(new)

    def _step(self, place: _Place) -> None:
        """Follow one name to the lines that assign it, and to calls that pass it."""
        (function, name, loaded), part = place, self._spot.part
        assigned = list(assigned_in(self._tree, function, name))
        # What has been loaded is not followed to a pointer before its load is found.
        makes = [n for n, value in assigned if not _is_plain_range(value)]
        own = {n for n in makes if self._ends(n) and (loaded or not self._of_pointer)}
        self._found |= own
        if own and not self._deep and part not in _OF_LAUNCH:
            for n, value in assigned:  # what is called may be of another step
                if n in own and value is not None:
                    self._follow_returned(value, loaded)
            return
        for _, value in assigned:
            bound = self._at_end(value)
            self._follow(_Place(function, used, at) for used, at in self._used(bound, loaded))
        if name in (parameters := parameters_of(function)):
            for caller, call in self._callers(function):
                value = argument_of(call, parameters.index(name), name)
                if isinstance(call.func, ast.Subscript):
                    self._launched.append((function, name))
                elif value is not None:
                    makes = not part or isinstance(value, _COMPUTE)
                    self._found |= {call.lineno} if makes and self._ends(call.lineno) else set()
                    self._follow(_Place(caller, used, loaded) for used in names_in(value))

    def _at_end(self, value: ast.AST | None) -> ast.AST | None:
        """Return the bound of a range at which the wrong positions are, of all else the whole."""
        given = value.args if isinstance(value, ast.Call) and calls_in(value) == {"range"} else []
        forward = len(given) < 3 or not isinstance(given[2], ast.UnaryOp)
        if not given or not forward or len(self._parts & _ENDS) != 1:
            return value
        first, end = given[:2] if len(given) > 1 else (None, given[0])
        return first if "before" in self._parts else end

    def _used(self, value: ast.AST | None, loaded: bool) -> Iterator[tuple[str, bool]]:
        """Yield the names that a value is made of, each with whether it is what an access takes."""
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
        self._follow_returned(value, loaded)

    def _follow_returned(self, value: ast.AST, loaded: bool) -> None:
        """Follow what functions of the file return that are called in an expression."""
        for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
            called = self._functions.get(getattr(call.func, "id", ""))
            if called is not None and called in self._tree.body:
                returned = [n.value for n in ast.walk(called) if isinstance(n, ast.Return)]
                self._follow(_Place(called, used, loaded) for used in names_in(*returned))

    def _follow_launches(self) -> None:
        """Find what kernels are passed, and with "grid" the grids that they are launched on."""
        for kernel, name in self._launched:
            for caller, call in calls_of(self._tree, kernel.name):
                if not isinstance(call.func, ast.Subscript):
                    continue
                value: ast.AST | None = argument_of(call, parameters_of(kernel).index(name), name)
                if "grid" in self._parts:
                    value = call.func.slice
                if isinstance(value, ast.expr):
                    self._found |= {value.lineno} if self._ends(value.lineno) else set()
                    self._follow(_Place(caller, used, True) for used in names_in(value))
        while self._waiting:
            self._step(self._waiting.pop())

    def _of_call(
        self, call: ast.Call, within: tuple[ast.FunctionDef, ...]
    ) -> Iterator[tuple[str, ast.AST]]:
        """Yield what accesses of a call work with, each with the name of its pointer.

        Of one that is made in a function that is called, that is what it gets as an argument.
        """
        called = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
        function = self._functions.get(called) if self._calls < _MOST_CALLS else None
        self._calls += 1
        if called in ("load", "store") or called.startswith("atomic_"):
            yield from _of_access(call, called, self._parts or {"address", "mask"}, within)
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
    """A name in a function, and whether it is that of a pointer, mask or offset of an access."""

    function: ast.FunctionDef
    name: str
    loaded: bool


def _of_access(
    call: ast.Call, called: str, parts: Container[str], within: tuple[ast.FunctionDef, ...]
) -> Iterator[tuple[str, ast.AST]]:
    """Yield the expressions of a part of one access; the name of a descriptor is its pointer."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    pointer = call.args[0] if call.args else owner
    pointer = owner if isinstance(pointer, ast.List) else pointer
    name = next(iter(names_in(leftmost(pointer))), "")
    if "pointer" in parts:
        yield name, leftmost(pointer)
    if "address" in parts:
        yield from ((name, one) for one in (owner, *call.args[:1]))
    if "offset" in parts:
        yield from ((name, one) for one in offsets_of(pointer) or [pointer])
    if "mask" in parts:
        at = 1 if called == "load" else 2
        masks = [*call.args[at : at + 1], *(k.value for k in call.keywords if k.arg == "mask")]
        tests = [n.test for f in within[-1:] for n in ast.walk(f) if isinstance(n, ast.If)]
        yield from ((name, one) for one in (*masks, *tests))


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


def _is_plain_range(value: ast.AST | None) -> bool:
    """Whether that is a range of names: what is wrong about it is made where they are."""
    if not isinstance(value, ast.Call) or calls_in(value) != {"range"}:  # or tl.range
        return False
    return all(isinstance(a, (ast.Name, ast.Constant)) for a in value.args)


def _read_by(inner: ast.stmt) -> list[ast.AST]:
    """Return what a statement reads itself, without those in it."""
    if isinstance(inner, LOOPS):
        return _bounds(inner)
    if isinstance(inner, (ast.If, ast.With, *FUNCTIONS)):
        return [inner.test] if isinstance(inner, ast.If) else []
    if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
        return [inner, ast.Name(inner.target.id, ast.Load())]  # what it adds to is read, too
    return [inner]


def _bounds(loop: ast.AST) -> list[ast.AST]:
    if isinstance(loop, ast.While):
        return [loop.test]
    over = loop.iter if isinstance(loop, (ast.For, ast.AsyncFor)) else loop
    return list(over.args) if isinstance(over, ast.Call) else [over]


def _is_of(name: str, of: str) -> bool:
    """Whether a pointer has the name that is asked for: k_ptr, k_ptrs and k_rows are of "k"."""
    return not of or name.partition("_")[0] == of.partition("_")[0]
