"""Which attributes a submission may read and set on objects that are not its own.

The source policy (grader/source/policy) applies this to the names in a file's text, and a worker
(grader/isolate/walls.py) to the objects that they stand for, when the code runs.
"""

from __future__ import annotations

# Attributes that may be set: of tensors, and of a descriptor, as hooks in Triton's tutorials do.
SETTABLE = frozenset(["block_shape", "grad", "requires_grad"])
# `_init_handles` is how Triton's tutorials load a kernel whose registers they count.
UNDERSCORED = frozenset(["_asdict", "_fields", "_init_handles", "_make", "_replace"])
# Methods of text that name attributes.
TEMPLATES = frozenset(["format", "format_map"])
# Attributes that lead to modules, which a file may reach by imports alone: modules by their names,
# `obj` of an error, and what holds the names of a kernel's module. And `register` of an abstract
# class, which makes any class pass for a subclass. Guarded by tests/test_walls.py.
_LEADING = frozenset(
    """
    builtins code codeop ctypes evaluate gc get_capture_scope get_module_map importlib inspect io
    marshal multiprocessing obj os pathlib pickle posix register runpy shutil socket subprocess sys
    tempfile threading types used_global_vals
    """.split()
)
# Methods that read or write a file, of storages and of numpy's arrays.
_OF_FILES = frozenset("dump from_file share_memory_ tofile".split())


def is_dunder(name: str) -> bool:
    """Whether a name is one of Python's own, such as __init__."""
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def is_closed(name: str) -> bool:
    """Whether a file may not read `name` of an object that is not its own; never for a dunder."""
    private = name.startswith("_") and not is_dunder(name) and name not in UNDERSCORED
    return private or name in _LEADING | _OF_FILES
