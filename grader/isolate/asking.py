"""Keeps a submission's classes from answering PyTorch while its modes are off. In a worker.

To make a tensor, or an index, of an object with a length and items, PyTorch takes all modes off and
asks the object for them. A class of the submission could compute there, and the audit would not see
it. So classes of the file refuse to answer then, and so do others that pass the question on.
Guarded by tests/test_walls.py.
"""

from __future__ import annotations

import functools
from collections import ChainMap, UserDict
from collections.abc import Callable
from typing import Any

import torch

_ASKED = frozenset(
    """
    __bool__ __call__ __contains__ __eq__ __float__ __getitem__ __hash__ __int__ __iter__ __len__
    __lt__ __next__
    """.split()
)


class AskedUnseen(TypeError):
    """PyTorch asked an object of the file while it had its modes off."""


@functools.cache
def install() -> None:
    """Let the standard library's classes that pass questions on refuse them; once is enough.

    ChainMap and UserDict ask a dictionary, which may have a default_factory of the submission's.
    """
    for kind in (ChainMap, UserDict):
        watched(kind)


def watched(kind: type) -> type:
    """Have a class refuse to answer while PyTorch has its modes off; return it."""
    for name in _ASKED & vars(kind).keys():
        method = vars(kind)[name]
        if method is not None:
            setattr(kind, name, _refusing(method, kind))
    return kind


def _refusing(method: Any, kind: type) -> Callable[..., Any]:
    def answer(this: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
            raise AskedUnseen(
                f"PyTorch asks {type(this).__name__} for its items: hand on list(...) of it"
            )
        bind = getattr(method, "__get__", None)
        return bind(this, type(this))(*args, **kwargs) if bind else method(*args, **kwargs)

    if callable(method):
        functools.update_wrapper(answer, method)
    answer.__module__ = kind.__module__
    return answer
