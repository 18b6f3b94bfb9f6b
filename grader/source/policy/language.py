"""What the body of a kernel may contain: what Triton compiles, also where it would never look.

Without a GPU a kernel runs as Python in Triton's interpreter. Python that a compiler has no word
for, in a branch that it leaves out, would compute there in place of the kernel.
"""

from __future__ import annotations

import ast
import builtins

# The builtins that Triton's compiler knows, of 3.6 to 3.9; `print` and `assert` become its own.
BUILTINS = frozenset("float getattr hasattr int isinstance len list max min print range".split())
# Builtins that keep nothing. What of them does not compile costs the check that compiles.
_HARMLESS = frozenset(
    "abs all any bool divmod enumerate pow reversed round slice sorted sum tuple zip".split()
)
# Methods of a kernel's values, of 3.6 to 3.9.
METHODS = frozenset(
    """
    abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_load
    atomic_max atomic_min atomic_or atomic_poll atomic_store atomic_xchg atomic_xor
    broadcast_to cast cdiv ceil cos cumprod cumsum erf
    exp exp2 expand_dims flip floor gather get_block_shapes get_int_max_value get_int_min_value
    histogram is_bf16 is_block is_bool is_const is_dtype is_floating is_fp16 is_fp32 is_fp64 is_fp8
    is_fp8e4b15 is_fp8e4b8 is_fp8e4nv is_fp8e5 is_fp8e5b16 is_int is_int1 is_int16 is_int32
    is_int64 is_int8 is_int_signed is_int_unsigned is_ptr is_standard_floating is_uint16 is_uint32
    is_uint64 is_uint8 is_void item load log log2 logical_and logical_or max min permute ravel
    reduce reduce_or reshape rsqrt scatter sigmoid sin softmax sort split sqrt sqrt_rn store sum to
    trans view with_element_ty xor_sum
    """.split()
)
# Methods of numbers, text and tuples, which are known when a kernel is compiled.
_OF_CONSTANTS = frozenset("bit_length count endswith index lower startswith upper".split())
_KEEPING = frozenset("append appendleft extend insert send setdefault update write".split())
_UNKNOWN = {
    ast.Try: "try",
    ast.TryStar: "try",
    ast.Raise: "raise",
    ast.Lambda: "lambda",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Delete: "del",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.ClassDef: "class",
    ast.Dict: "a dictionary",
    ast.DictComp: "a dictionary",
    ast.Set: "a set",
    ast.SetComp: "a set",
    ast.GeneratorExp: "a generator",
    ast.Match: "match",
}


def unknown(node: ast.AST, *, is_module: bool) -> str:
    """Name what Triton has no word for in a node of a kernel, "" where it has.

    `is_module` tells of an attribute, or of a call of one, that it is a module's.
    """
    if _is_plain_raise(node):
        return ""
    if type(node) in _UNKNOWN:
        return _UNKNOWN[type(node)]
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        return "an assignment to a part of a value"
    if isinstance(node, ast.Attribute) and node.attr in _KEEPING and not is_module:
        return f".{node.attr}"
    if not isinstance(node, ast.Call):
        return ""
    called = node.func
    if isinstance(called, ast.Attribute) and not is_module:
        return "" if called.attr in METHODS | _OF_CONSTANTS else f".{called.attr}()"
    if isinstance(called, ast.Name) and not is_module and hasattr(builtins, called.id):
        return "" if called.id in BUILTINS | _HARMLESS else f"{called.id}()"
    return ""


def _is_plain_raise(node: ast.AST) -> bool:
    """Whether a node is of `raise NotImplementedError("...")` or the like, which tells nothing."""
    made = node.exc if isinstance(node, ast.Raise) else node
    if isinstance(made, ast.Call):
        if made.keywords or not all(isinstance(a, ast.Constant) for a in made.args):
            return False
        made = made.func
    elif not isinstance(node, ast.Raise):
        return False
    kind = getattr(builtins, made.id, None) if isinstance(made, ast.Name) else None
    return isinstance(kind, type) and issubclass(kind, BaseException)
