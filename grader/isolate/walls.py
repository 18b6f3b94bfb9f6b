"""Enforces the source policy on the objects of a submission while it runs. In a worker.

The policy reads names, but a text does not say what object a name stands for. So the code of a file
is changed to ask whether these rules hold:

- Attributes are set, and closed ones read (grader/base/attributes.py), only on objects of the file:
  its functions and classes, their instances, and the `ctx` of an autograd.Function.
- A class of the file extends none of PyTorch's or Triton's, in whose place it would answer, and
  answers nothing while PyTorch's modes are off (asking.py).
- Classes are made by class statements: `type`, enumerations and functools.wraps make none of text.
- A text for str.format reads no attribute.
- A function that the policy took for a kernel, or for unused, is not run by Python.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import functools
import sys
from collections.abc import Callable, Iterable
from string import Formatter
from types import CodeType, FunctionType
from typing import Any, NoReturn

import torch

from grader.base import attributes, functions
from grader.isolate import asking

_OWN, _CLASS, _TEXT, _UNREAD = "<own>", "<class>", "<text>", "<unread>"  # no file can spell them
_KERNEL = "{0} is a kernel, and is called as a function of Python: launch it, {0}[grid](...)"
_UNUSED = "{0} is called, and nothing that the judge calls names it: name it where it is used"
_LIBRARIES = ("torch", "triton", "grader")


class NotOwn(TypeError):
    """A file reached for an object that is not its own."""


def compiled(source: bytes, path: str, entries: Iterable[str], differentiates: bool) -> CodeType:
    """Return the code of a file, changed to ask; the judge calls its functions `entries`."""
    tree = ast.parse(source, path)
    unused = functions.Reach(tree, differentiates=differentiates).unused(entries)
    unread = dict.fromkeys(unused, _UNUSED)
    unread |= dict.fromkeys(functions.kernels(tree, entries), _KERNEL)
    nodes = list(ast.walk(tree))
    patterns = [node.cls for node in nodes if isinstance(node, ast.MatchClass)]
    of_patterns = {part for pattern in patterns for part in ast.walk(pattern)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node not in of_patterns:
            node.value = _asked(node.value, node.attr, reads=isinstance(node.ctx, ast.Load))
        elif isinstance(node, ast.Call):
            _have_it_ask(node)
        elif isinstance(node, ast.ClassDef):
            node.decorator_list.append(_name(_CLASS, node))
        elif node in unread:
            after = 1 if ast.get_docstring(node, clean=False) is not None else 0
            here = node.body[min(after, len(node.body) - 1)]
            text = ast.copy_location(ast.Constant(unread[node].format(node.name)), here)
            node.body.insert(after, ast.copy_location(ast.Expr(_call(_UNREAD, text)), here))
    return compile(tree, path, "exec", dont_inherit=True)


def _have_it_ask(call: ast.Call) -> None:
    """Let a call of getattr, super or `.__init__` ask about its argument."""
    called = call.func
    name = called.id if isinstance(called, ast.Name) else ""
    if name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
        call.args[0] = _asked(call.args[0], str(call.args[1].value), reads=True)
    elif call.args and (name == "super" or getattr(called, "attr", "") == "__init__"):
        of_super = isinstance(called, ast.Attribute) and _is_super(called.value)
        if not of_super and not isinstance(call.args[0], ast.Starred):
            call.args[0] = _call(_OWN, call.args[0], f"{name or '__init__'} is given")


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def _asked(base: ast.expr, name: str, *, reads: bool) -> ast.expr:
    """Return `base` of `base.name`, in a call that asks about it if the attribute is closed."""
    if reads and name in attributes.TEMPLATES:
        return _call(_TEXT, base)
    closed = attributes.is_closed(name) if reads else name not in attributes.SETTABLE
    if not closed or isinstance(base, ast.Starred):
        return base
    return _call(_OWN, base, f"{name} is read of" if reads else f"{name} is set on")


def _call(name: str, argument: ast.expr, *texts: str) -> ast.Call:
    more = [ast.copy_location(ast.Constant(text), argument) for text in texts]
    return ast.copy_location(ast.Call(_name(name, argument), [argument, *more], []), argument)


def _name(name: str, place: ast.AST) -> ast.Name:
    return ast.copy_location(ast.Name(name, ast.Load()), place)


def names(module: dict[str, Any]) -> dict[str, Any]:
    """Return the names that the code of `compiled` needs in its module."""
    known: set[type] = set()

    def is_own(value: Any) -> bool:
        if type(value) is FunctionType:
            return value.__globals__ is module
        kind = value if issubclass(type(value), type) else type(value)
        if kind not in known and any(_home(k) == module["__name__"] for k in type.mro(kind)):
            known.add(kind)
        return kind in known or isinstance(value, torch.autograd.function.FunctionCtx)

    def own(value: Any, use: str) -> Any:
        if not is_own(value):
            kind = value if issubclass(type(value), type) else type(value)
            raise NotOwn(f"{use} a {kind.__name__}, which is not an object of this file")
        return value

    def made(kind: Any) -> Any:
        if not isinstance(own(kind, "a class statement makes"), type):
            raise NotOwn(f"got a {type(kind).__name__} from a metaclass, expected a class")
        allowed = torch.autograd.Function.__mro__
        for base in type.mro(kind):
            if _home(base).partition(".")[0] in _LIBRARIES and base not in allowed:
                raise NotOwn(f"{kind.__name__} extends {base.__name__}, and answers in its place")
        return asking.watched(kind)

    asks = {_OWN: own, _CLASS: made, _TEXT: _without_attributes, _UNREAD: _never_run}
    return {**asks, "__builtins__": vars(builtins) | {"type": _Type}}


def _home(kind: type) -> str:
    home = getattr(kind, "__module__", "")
    return home if isinstance(home, str) else ""


def _without_attributes(base: Any) -> Any:
    kind = base if issubclass(type(base), type) else type(base)
    if issubclass(kind, (str, super)) and (kind is base or kind is super or takes_parts(base)):
        raise NotOwn("a text for .format reads attributes that it names: write an f-string")
    return base


def takes_parts(template: str) -> bool:
    """Whether a text for str.format has a field with an attribute or an index, or is not valid."""
    try:
        fields = [(field or "", spec or "") for _, field, spec, _ in Formatter().parse(template)]
    except ValueError:
        return True
    return any("." in field or "[" in field or takes_parts(spec) for field, spec in fields)


def _never_run(message: str) -> NoReturn:
    raise NotOwn(message)


class _Types(type):
    def __call__(cls, *values: Any) -> type:
        if len(values) != 1 or isinstance(values[0], type):
            raise NotOwn("type(x) takes one object, and no class: write a class as code")
        return type(values[0])

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type)


class _Type(metaclass=_Types):
    """The builtin `type` of a submission: it returns the class of an object, and makes none."""


def install(module: str) -> None:
    """Keep enumerations from making a class of text, and decorators from changing others' objects.

    functools.wraps copies attributes, which a function of the file may have by any name; other
    decorators give methods to a class.
    """
    update, create = functools.update_wrapper, enum.EnumType._create_
    wrappers = (FunctionType, type(functools.cache(len)))

    def update_wrapper(wrapper: Any, wrapped: Any, *args: Any, **options: Any) -> Any:
        if getattr(wrapped, "__module__", "") == module and type(wrapper) not in wrappers:
            raise NotOwn(f"functools.wraps: got a {type(wrapper).__name__}, expected a function")
        return update(wrapper, wrapped, *args, **options)

    def created(cls: Any, *args: Any, **options: Any) -> Any:
        kind = create(cls, *args, **options)
        special = set(filter(attributes.is_dunder, vars(kind)))
        if special - set(vars(create(cls, "Plain", ["PLAIN"]))):
            raise NotOwn("an enumeration is made of text: write it as a class")
        return kind

    def of_the_file(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(kind: type, *args: Any, **options: Any) -> Any:
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__") == dataclasses.__name__:
                frame = frame.f_back
            if frame.f_globals.get("__name__") == module != _home(kind):
                raise NotOwn(f"{kind.__name__} is given methods, and is no class of this file")
            return change(kind, *args, **options)

        return changed

    functools.update_wrapper = update_wrapper  # which functools.wraps calls
    enum.EnumType._create_ = created
    functools.total_ordering = of_the_file(functools.total_ordering)
    dataclasses._process_class = of_the_file(dataclasses._process_class)  # all its forms call it
