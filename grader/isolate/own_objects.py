"""Has a submission's methods look at what they are called on, and when. In a worker.

The source policy lets a method set attributes of its first argument, and read those that begin with
an underscore. The text does not say what that is: `A.method(x)` is a call, too. So the method asks
when it runs. A `ctx` that PyTorch makes for an autograd.Function of the file is one of its own.
Of when, see asking.py.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from grader.isolate import asking

_ASK, _WATCHED = "<own>", "<watched>"  # no text spells these names
# As grader/source/policy/tables.py opens them on all objects.
_OPEN = {
    "block_shape",
    "grad",
    "requires_grad",
    "_asdict",
    "_fields",
    "_init_handles",
    "_make",
    "_replace",
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class NotOwn(TypeError):
    """A method of the file was called on an object that is not the file's."""


def compiled(source: bytes, path: str) -> CodeType:
    """Return the code of a file whose methods ask, where they change or look into an object."""
    tree = ast.parse(source, path)
    for node in [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]:
        for function in node.body:
            for part in _methods(function):
                _have_it_ask(part)
        watched = ast.copy_location(ast.Name(_WATCHED, ast.Load()), node)
        node.decorator_list.append(watched)
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def install(module: str) -> None:
    """Let functools.wraps, which sets `__module__`, leave the classes of `module` what they are."""
    update = functools.update_wrapper

    def update_wrapper(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(wrapper, type) and wrapper.__module__ == module:
            raise TypeError(f"functools.wraps: got the class {wrapper.__name__}, not a function")
        return update(wrapper, *args, **kwargs)

    functools.update_wrapper = update_wrapper  # which functools.wraps calls


def names(module: str) -> dict[str, Any]:
    """Return what the code of `compiled` needs among the names of its module."""

    def ask(value: Any, where: str) -> None:
        kind = value if isinstance(value, type) else type(value)
        own = any(getattr(k, "__module__", "") == module for k in type.mro(kind))
        if not own and not isinstance(value, torch.autograd.function.FunctionCtx):
            raise NotOwn(
                f"{where} is called on a {kind.__name__}, which is not an object of this file"
            )

    return {_ASK: ask, _WATCHED: asking.watched}


def _methods(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions of a statement of a class that the text may treat as methods."""
    waiting = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _FUNCTIONS):
            yield node
        elif not isinstance(node, ast.ClassDef):  # has its own turn
            waiting += ast.iter_child_nodes(node)


def _have_it_ask(function: Any) -> None:
    first = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][:1]
    if not first or not any(_looks_into(node, first[0]) for node in ast.walk(function)):
        return
    where = getattr(function, "name", "a lambda")
    arguments: list[ast.expr] = [ast.Name(first[0], ast.Load()), ast.Constant(where)]
    call = ast.Call(ast.Name(_ASK, ast.Load()), arguments, [])
    if isinstance(function, ast.Lambda):
        both = ast.Tuple([ast.copy_location(call, function.body), function.body], ast.Load())
        last = ast.Subscript(both, ast.Constant(1), ast.Load())
        function.body = ast.copy_location(last, function.body)
        return
    after = 1 if ast.get_docstring(function, clean=False) is not None else 0
    place = function.body[min(after, len(function.body) - 1)]
    function.body.insert(after, ast.copy_location(ast.Expr(call), place))


def _looks_into(node: ast.AST, name: str) -> bool:
    """Whether a node sets an attribute of `name`, or reads one that is private.

    `Base.__init__(self, ...)` may set any.
    """
    if _begins(node, name):
        return True
    if isinstance(node, ast.Attribute):
        base, attribute, reads = node.value, node.attr, isinstance(node.ctx, ast.Load)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and _is_getattr(node.func):
        base, attribute, reads = node.args[0], getattr(node.args[1], "value", ""), True
    else:
        return False
    private = isinstance(attribute, str) and attribute.startswith("_")
    is_open = attribute in _OPEN or (private and attribute.startswith("__"))
    return isinstance(base, ast.Name) and base.id == name and (private or not reads) and not is_open


def _begins(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    first = node.args[0] if node.args else None
    return node.func.attr == "__init__" and isinstance(first, ast.Name) and first.id == name


def _is_getattr(function: ast.AST) -> bool:
    return isinstance(function, ast.Name) and function.id == "getattr"
