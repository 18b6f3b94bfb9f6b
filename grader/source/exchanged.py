"""Arguments that a call passes in each other's places, by their names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NamedTuple

from grader.source.expressions import parameters_of
from grader.source.loops import nodes_of


class Exchanged(NamedTuple):
    """A call of a function in which `one` is passed as `other`, and `other` as `one`."""

    line: int
    function: str
    one: str
    other: str


def exchanged_in(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> Exchanged | None:
    """Return the one pair of arguments that calls and launches of these functions exchange.

    Each is a plain name, that of the parameter which the other is passed for. A function that is
    also called otherwise may be meant for both.
    """
    found, straight = list[Exchanged](), set[str]()
    for call in nodes_of(tree, ast.Call):
        called = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        function = functions.get(getattr(called, "id", ""))
        if function is None or any(isinstance(a, ast.Starred) for a in call.args):
            continue
        passed = [*zip(parameters_of(function), call.args, strict=False)]
        passed += [(k.arg or "", k.value) for k in call.keywords]
        named = {name: a for name, a in passed if isinstance(a, ast.Name)}
        places = {name: place for place, name in enumerate(named)}
        pairs = [
            Exchanged(a.lineno, function.name, one, a.id)
            for one, a in named.items()
            if places[one] < places.get(a.id, 0) and named[a.id].id == one
        ]
        found += pairs
        straight |= set() if pairs else {function.name}
    return found[0] if len(found) == 1 and found[0].function not in straight else None
