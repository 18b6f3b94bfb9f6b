"""Lets a kernel call what triton.language offers by any name that its file has for it. In a worker.

For the time of a launch Triton's interpreter replaces the functions of triton.language where they
lie, so that `tl.exp` computes. A name that a file took from there before, by `from triton.language
import exp` or by `exp = tl.exp`, still stands for what only a compiler can call. So what a file
finds there is made to call what a launch puts in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


def install(interpreter: Any) -> None:
    """Let names be taken out of triton.language from now on in this process.

    Before the submission is imported. From here on a launch takes what it puts there from those
    that the first one made (interpreting.py), which knew the functions themselves.
    """
    import triton.language as tl

    owners = tl, tl.math
    before = [dict(vars(owner)) for owner in owners]
    scope = interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl}))
    replaced = [
        (owner, name, member)
        for owner, members in zip(owners, before, strict=True)
        for name, member in members.items()
        if getattr(owner, name) is not member
    ]
    scope.restore()
    for owner, name, member in replaced:
        setattr(owner, name, _stand_in(owner, name, member))


def _stand_in(owner: ModuleType, name: str, member: Any) -> Callable[..., Any]:
    """Return what calls `name` of `owner`: outside of a launch `member`, which says what it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        there = getattr(owner, name)
        return (member if there is call else there)(*args, **kwargs)

    call.__name__, call.__doc__ = name, member.__doc__
    return call
