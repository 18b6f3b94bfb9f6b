"""What raw messages of Triton mean, in a sentence for somebody who sees them for the first time.

Of Triton 3.6 to 3.9; tests/raw_messages.py makes most of them with the Triton that is installed.
"""

from __future__ import annotations

import re

RECURSION_HELP = "a function calls itself without end"
EMPTY = r"to have non-zero size|numel\(\) == 0"  # of a tensor without elements
_TRANSLATIONS: tuple[tuple[str, str], ...] = (
    (
        r"make_shape_compatible|[Cc]annot broadcast|incompatible dimensions",
        "two tiles of different shapes meet here: rows are [:, None], columns are [None, :]",
    ),
    (r"object of type 'int' has no len", "a grid is a tuple: kernel[(number_of_programs,)](...)"),
    (r"^RecursionError", RECURSION_HELP),
    (
        r"Error(: |\()\(triton\.language\.\w+",
        "libdevice has this function for other types: convert each argument with .to(tl.float32)",
    ),
    (
        r"there is no __nv_\w+ of libdevice",
        "without a GPU the judge knows the common functions of libdevice: use one of tl or tl.math",
    ),
    (
        r"not compiled with CUDA|Found no NVIDIA driver|Expected a cuda device|No CUDA GPUs",
        "without a GPU the judge's tensors are on the CPU: make yours with device=q.device, or that"
        " of another input",
    ),
    (
        r"inline_asm not supported",
        "inline assembly runs only on a GPU: without one use functions of tl and tl.math",
    ),
    (r"0 active drivers", "pass CPU tensors to the kernel only where TRITON_INTERPRET=1 is set"),
    (
        r"must have same dtype|Both operands must be same dtype|same dtype",
        "tl.dot needs both operands in one dtype: convert one of them with .to(...)",
    ),
    (
        r"must have equal ranks|must be either 2D or 3D",
        "both sides of a tl.dot need the same number of axes, usually two: x[None, :] has one more"
        " than x",
    ),
    (
        r"AST node type: (Break|Continue)",
        "a kernel cannot leave a loop early: put the condition into the loop's range",
    ),
    (
        r"should have at least|all non-batch dimensions|Input shapes should have M >=",
        "each side of a tile in tl.dot needs 16 elements or more",
    ),
    (
        r"registers per thread",
        "use smaller tiles or more warps (num_warps); maxnreg may be too low for this kernel",
    ),
    (
        r"assembler (?:knows no instruction|refuses '.*', which this chip)",
        "inline assembly, or an option of this operation, asks for what this chip does not have",
    ),
    (
        r"assembler (?:does not know this GPU|is too old)",
        "this Triton does not fit its assembler or the GPU: see the versions in requirements.txt",
    ),
    (
        r"bytes of shared memory|out of resource: shared memory",
        "use smaller tiles or fewer stages: each stage of a loop holds its tiles in shared memory",
    ),
    (EMPTY, "a tile is empty here: does a loop begin or end in the wrong place?"),
    (r"arange's range must be a power of 2", "the size of a tile must be a power of two"),
    (
        r"make_block_ptr",
        "Triton 3.9 has no block pointers: use pointers and masks, or tensor descriptors",
    ),
    (
        r"equal reduction dimensions",
        "tl.dot(a, b) sums over the columns of a and the rows of b: does one need tl.trans?",
    ),
    (
        r"invalid operands of type (pointer<\w+> and triton\.language\.(b?float|fp)"
        r"|triton\.language\.(b?float|fp)\w+ and pointer)",
        "a pointer meets a number with a fraction: offsets are whole numbers (//, not /), and a"
        " value has to be loaded first",
    ),
    (
        r"invalid operands of type (pointer|\S+ and pointer)",
        "a pointer stands where a number is due: load its value first, or check the order of the"
        " arguments in this line",
    ),
    (
        r"Unsupported (lhs|rhs) dtype u?int",
        "tl.dot multiplies tiles of floats: these are whole numbers, as offsets are, not values",
    ),
    (
        r"tl\.trans invoked with a 0- or 1-dimensional tensor",
        "tl.trans exchanges the two axes of a tile: this has one axis, or is one number or pointer",
    ),
    (
        r"Cannot bitcast",
        "bitcast keeps the bits, so both types need one size; to convert the values, leave it out",
    ),
    (
        r"arange's arguments must be|Shape element \d+ must have type",
        "the compiler must know the size of a tile: mark it as tl.constexpr, whether it is a"
        " parameter or computed (HALF: tl.constexpr = BLOCK // 2)",
    ),
    (
        r"Loop-carried variable",
        "a variable must keep its type and shape in a loop: give it those from the start, by 0.0 or"
        " tl.zeros(..., tl.float32)",
    ),
    (
        r"module 'triton\.language' has no attribute",
        "Triton has no function of this name: a kernel computes with what tl has",
    ),
    (
        r"Cannot access global variable",
        "a kernel does not see globals: pass the value as a parameter, or make the global a"
        " tl.constexpr(...)",
    ),
    (
        r"NameError: \w+ is not defined",
        "a name in a kernel must be a parameter, or assigned on every path to this line: what only"
        " an `if` assigns is unknown after it",
    ),
    (
        r"'(int|float)' object has no attribute '_flatten_ir'",
        "a field of a constexpr is a plain Python number: give it a name of its own first, such as"
        " R: tl.constexpr = T.rows",
    ),
    (
        r"CompilationError: AttributeError: '(int|float)' object has no attribute",
        "a constexpr, or an argument equal to 1, is a plain Python number and has no methods: write"
        " tl.cast(n, tl.int64) instead of n.to(tl.int64)",
    ),
    (r"KeyError: [\w.<>]+__", "a function of a kernel cannot call itself: write a loop instead"),
    (
        r"Unsupported function referenced|[Dd]id you forget to add @triton\.jit",
        "a function that a kernel calls, or that calls functions of tl, needs @triton.jit",
    ),
    (
        r"outside of the scope of a kernel"
        r"|'builtin_function_or_method' object has no attribute '(scalar|is_ptr)'",
        "functions of tl work only in a kernel that is launched with its grid: kernel[grid](...)",
    ),
    (
        r"unhashable type: 'list'",
        "Triton unpacks one level of a tuple per assignment: write (a, b), c = t as two",
    ),
    (r"multiple comparison", "join two comparisons with &: (a < b) & (b < c)"),
    (
        r"UnsupportedLanguageConstruct: Boolean value of Tensor",
        "an `if` in a kernel needs one number: for a tile use tl.where, or the mask of a load",
    ),
    (
        r"unsupported tensor index",
        "a tile cannot be indexed, except by [:, None] and [None, :]: load what you need, or reduce"
        " the tile",
    ),
    (
        r"Cannot have `return` statements inside",
        "a kernel cannot return from a loop: put the condition into the loop's range",
    ),
    (r"only tuple comprehensions", "a kernel has no lists: use a loop, or one more axis of a tile"),
    (
        r"Unsupported ptr type",
        "this is a number, not a pointer: are the arguments in the kernel's order?",
    ),
    (
        r"(Value|Mask) argument cannot be block type",
        "storing a tile takes one pointer per element: add tl.arange(...) to the pointer",
    ),
    (
        r"Expected dtype \['fp32', 'fp64'\]",
        "this function needs fp32: convert with .to(tl.float32)",
    ),
    (
        r"For loop bounds and step must all be ints",
        "the bounds of a loop must be integers: use // or tl.cdiv, not /",
    ),
    (r"unexpected keyword argument 'dim'", "Triton calls it axis: tl.max(tile, axis=1)"),
    (
        r"cannot be accessed from Triton \(cpu tensor\?\)",
        "this tensor lies in the CPU's memory: make it with device=q.device",
    ),
    (
        r"'NoneType' object has no attribute",
        "something here is None: a function without a return, or an argument left out",
    ),
)


def translation(text: str) -> str | None:
    """Say in a sentence what a message of Triton's means, None where it says so itself."""
    for pattern, help in _TRANSLATIONS:
        if re.search(pattern, text):
            return help
    return None
