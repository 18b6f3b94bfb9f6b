"""What is open to a submission: modules, their members, and the words that compute.

docs/source-policy.md says it to students, and a test holds the two together.
"""

from __future__ import annotations

from grader.source.given_imports import given_modules, public_names
from grader.spec.problem import Problem

# Members that every problem may use. They allocate, reshape, copy, convert and check. Arithmetic by
# elements is open too, because operators do the same and the text does not show which operands are
# tensors; attention also needs exponentials, sums and products of matrices, and those are closed.
_ALLOCATE = """
    arange as_strided as_tensor empty empty_like empty_strided full full_like linspace manual_seed
    ones ones_like rand randint randn randn_like scalar_tensor tensor zeros zeros_like
"""
_RESHAPE = """
    adjoint atleast_1d atleast_2d atleast_3d broadcast_shapes broadcast_tensors broadcast_to cat
    chunk clone column_stack concat concatenate detach dstack flatten flip gather hstack
    index_select moveaxis movedim narrow permute ravel repeat_interleave reshape roll select split
    squeeze stack swapaxes swapdims t take_along_dim tensor_split tile transpose unbind unflatten
    unsqueeze view_as_complex view_as_real vstack
"""
_TYPES = """
    BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor
    LongTensor ShortTensor
    Generator OutOfMemoryError Size Tensor bfloat16 bool channels_last contiguous_format device
    double dtype e finfo float float16 float32 float64 float8_e4m3fn float8_e5m2 half iinfo inf int
    int16 int32 int64 int8 layout long memory_format nan newaxis pi preserve_format short strided
    uint16 uint32 uint64 uint8
"""
_CHECK = """
    all allclose any can_cast equal get_autocast_dtype get_default_device get_default_dtype
    is_autocast_enabled is_complex is_floating_point is_grad_enabled is_tensor isfinite isinf isnan
    numel promote_types result_type set_printoptions
"""
_MODES = """
    autocast enable_grad get_float32_matmul_precision inference_mode no_grad set_default_device
    set_default_dtype set_float32_matmul_precision set_grad_enabled
"""
_OPERATORS = """
    abs add amax amin ceil clamp div eq floor ge gt le log log2 logical_and logical_not logical_or
    lt masked_fill max maximum min minimum mul ne neg reciprocal round rsqrt sign sqrt square sub
    where
"""
# p08 and p09 do little sums in PyTorch too: delta, partial results, the gradient of the logits.
ROWS = frozenset("exp exp2 expm1 log1p logaddexp logaddexp2 mean sigmoid sum".split())

# "*" stands for every public name that is no module, "A*" for every one with a capital.
_STANDARD = {
    "__future__": "*",
    "abc": "ABC abstractmethod",
    "collections": "abc ChainMap Counter OrderedDict UserDict defaultdict deque namedtuple",
    "collections.abc": "A*",
    "contextlib": "AbstractContextManager ExitStack closing contextmanager nullcontext suppress",
    "dataclasses": "FrozenInstanceError InitVar KW_ONLY MISSING asdict astuple dataclass field"
    " fields is_dataclass replace",
    "enum": "A* auto member nonmember unique verify",
    "functools": "cache cached_property cmp_to_key lru_cache partial reduce total_ordering wraps",
    "itertools": "*",
    "math": "*",
    "numbers": "A*",
    "typing": "A* assert_never cast final overload override runtime_checkable",
    "warnings": "filterwarnings simplefilter warn",
}
_TORCH = {
    "torch": f"{_ALLOCATE} {_RESHAPE} {_TYPES} {_CHECK} {_MODES} {_OPERATORS}"
    " AcceleratorError amp autograd cuda nn version",
    "torch.amp": "autocast custom_bwd custom_fwd",
    "torch.autograd": "Function function",
    "torch.autograd.function": "Function FunctionCtx once_differentiable",
    "torch.cuda": "OutOfMemoryError amp current_device current_stream device device_count"
    " device_of get_device_capability get_device_name get_device_properties is_available"
    " is_bf16_supported max_memory_allocated memory_allocated synchronize",
    "torch.cuda.amp": "custom_bwd custom_fwd",
    "torch.version": "cuda hip",
}
_TRITON = {
    "triton": "Config autotune cdiv constexpr_function heuristics jit language next_power_of_2"
    " reinterpret runtime set_allocator tools",
    "triton.language": "* extra math",
    "triton.language.extra": "cuda libdevice",
    "triton.language.extra.cuda": "* libdevice",
    "triton.language.extra.cuda.libdevice": "*",
    "triton.language.extra.libdevice": "*",
    "triton.language.math": "*",
    # How many multiprocessors there are, as Triton's tutorials ask for it.
    "triton.runtime": "driver",
    "triton.runtime.driver": "active",
    "triton.runtime.driver.active": "get_active_torch_device get_current_target utils",
    "triton.runtime.driver.active.utils": "get_device_properties",
    "triton.tools": "tensor_descriptor",
    "triton.tools.tensor_descriptor": "TensorDescriptor",
}
# Of torch.nn.functional what pads a tensor, and in p01 all that is no shortcut.
_PADS = {"torch.nn": "functional", "torch.nn.functional": "pad"}
_FOR_PYTORCH = _PADS | {"torch.nn.functional": "*"}

# Members of modules that are no functions, other modules for the most part.
INNER = frozenset(
    """
    accelerator ao backends builtins classes compiler contrib core cpp cpu ctypes dataclasses
    distributed distributions export fft func functional functools futures fx gdc glob grad hub
    importlib inspect jit library linalg masked math monitor mps mtia multiprocessing nativert
    nested nn np numa onnx ops optim os overrides package pkgutil platform profiler quantization
    quasirandom random return_types semantic serialization signal sparse special standard storage
    sys target_info testing textwrap threading torch torch_version types typing utils warnings
    windows xpu
    """.split()
)
# Functions of torch that read and run files.
FILES = frozenset("from_file import_ir_module import_ir_module_from_buffer load save".split())
# Functions of torch that run text, start threads, compile, or take memory that is no tensor's.
_MACHINERY = frozenset(
    """
    classproperty cond fork from_dlpack frombuffer get_device_module get_file_path init_num_threads
    merge_type_from_type_comment parse_ir parse_schema parse_type_comment
    prepare_multiprocessing_environment set_num_interop_threads thread_safe_generator to_dlpack
    unify_type_list wait while_loop
    """.split()
)
# They evaluate text, or make classes of it.
_NEVER = frozenset("enum.EnumMeta enum.EnumType typing.ForwardRef typing.NamedTupleMeta".split())
# Names that a module which is open with "*" imports from Python, and that are not its own.
_BORROWED = frozenset(
    """
    Any Callable DType Enum Generic Iterable Iterator List Optional Protocol Sequence Tuple TypeVar
    Union cached_property dataclass dataclasses field lru_cache namedtuple overload partial wraps
    """.split()
)
SOFTMAX = frozenset(["softmax", "log_softmax", "softmin", "gumbel_softmax"])
# Whole attention, its gradients, and what writes kernels by itself.
SHORTCUTS = frozenset(
    """
    MultiheadAttention compile flex_attention multi_head_attention_forward
    scaled_dot_product_attention
    """.split()
)
GRADIENTS = frozenset(["torch.autograd.backward", "torch.autograd.grad"])

# Names of methods that compute. The first have no other meaning; the others do when called.
PRODUCTS = frozenset(
    """
    addbmm addmm addmm_ addmv addmv_ addr baddbmm baddbmm_ bmm einsum logcumsumexp logsumexp matmul
    mm mv tensordot
    """.split()
)
SUMS = frozenset(
    """
    cdist cumprod cumsum dot exp exp2 exp2_ exp_ expm1 ger inner kron matrix_power mean nanmean
    nansum norm numpy outer prod sigmoid sum vdot
    """.split()
)

# Builtins that run text, reach names by text, open files or wait for somebody.
DYNAMIC = {
    "__import__": "imports what the text of the file does not show",
    "breakpoint": "stops the run",
    "compile": "makes code of text",
    "delattr": "changes an object by a name that is made of text",
    "eval": "runs text",
    "exec": "runs text",
    "getattr": "is used without a constant name",
    "globals": "reaches names by text",
    "help": "imports what the text of the file does not show",
    "input": "waits for somebody to type",
    "locals": "reaches names by text",
    "open": "opens a file",
    "setattr": "changes an object by a name that is made of text",
    "vars": "reaches names by text",
}
FRAMES = frozenset(
    """
    ag_frame co_code cr_frame f_back f_builtins f_globals f_locals gi_code gi_frame mro tb_frame
    tb_lasti tb_lineno tb_next
    """.split()
)
# Names between double underscores that may be read, and those that may be bound or defined.
READABLE = frozenset(
    """
    __all__ __doc__ __file__ __future__ __init__ __len__ __name__ __post_init__
    __version__
    """.split()
)
DEFINABLE = frozenset(
    """
    __all__ __author__ __bool__ __call__ __contains__ __doc__ __enter__ __eq__ __exit__ __float__
    __getitem__ __hash__ __init__ __int__ __iter__ __len__ __lt__ __match_args__ __next__
    __post_init__ __repr__ __setitem__ __slots__ __str__ __version__
    """.split()
)
# Methods of a generator of random numbers that take a tensor as its state, or return numbers of it.
STATES = frozenset("initial_seed set_state".split())
# Classes whose one positional pattern is the value.
SELF_MATCHING = frozenset(
    "bool bytearray bytes dict float frozenset int list set str tuple".split()
)
# Reads and sets attributes by text, but for one way to call it.
WRAPS = "functools.wraps"


def open_modules(problem: Problem) -> dict[str, frozenset[str]]:
    """Return the modules that a submission to `problem` may import, with what is open in each."""
    found = _STANDARD | _TORCH | _TRITON | (_PADS if problem.uses_triton else _FOR_PYTORCH)
    given = [name for name in problem.given if name in given_modules()]
    return {
        **{module: frozenset(members.split()) for module, members in found.items()},
        "given": frozenset(given),
        **{f"given.{name}": frozenset(public_names(name)) for name in given},
    }


def is_machinery(name: str) -> bool:
    """Whether a name of torch stays closed where all functions of tensors are open.

    Classes run text, read files, start threads and switch off what the judge observes.
    """
    return name[:1].isupper() or name in INNER | FILES | _MACHINERY


def is_open(members: frozenset[str], module: str, name: str) -> bool:
    """Whether `name` of `module` is among `members`, a value of `open_modules`."""
    if name in members or name == "__version__":
        return True
    if name.startswith("_") or name in INNER or f"{module}.{name}" in _NEVER:
        return False
    if name in _BORROWED and module.split(".")[0] in ("torch", "triton"):
        return False
    return "*" in members or ("A*" in members and name[0].isupper())
