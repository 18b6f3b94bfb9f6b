"""Turns the launches of a process's Triton kernels into TTIR, and passes each launch on.

Triton binds and specialises the arguments, caches compiled kernels, and evaluates the grid; this
module replaces only its compiler: by one that stops after the front end, or by the caller's. It
needs no GPU, but an active driver, as those of grader/kernel/compile/absent_gpu.py are.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from grader.kernel.machine.ttir_cache import TtirCache

# The figures of a kernel that only the machine runs: no compiler has counted them.
_USAGE = {"n_regs": 32, "n_spills": 0, "shared": 8192}
_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}


@dataclasses.dataclass(eq=False)
class Kernel:
    """One kernel with one set of types and constants; `text` is its TTIR.

    `signature` has the type of each argument, "constexpr" for a constant. `by_blocks` says that it
    has block pointers or descriptors, which `text` no longer shows. `constants` holds the objects,
    so that no other one gets the id of one of them. `usage` is what a submission may read from a
    compiled kernel: registers, shared memory.
    """

    fn: Any
    name: str
    text: str
    signature: dict[str, Any]
    by_blocks: bool
    constants: tuple[Any, ...] = ()
    usage: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch: for each parameter of the kernel's TTIR its argument's name, and a value.

    `addresses` maps the real address of a tensor to the one that the launching code knows.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, Any], ...]
    addresses: Mapping[int, int] = dataclasses.field(default_factory=dict)


def install(
    run: Callable[[Launch], None],
    make: Callable[..., Kernel] | None = None,
    cache: TtirCache | None = None,
) -> None:
    """Call `run` with each launch of this process from now on.

    Where Triton would compile a kernel, `make` gets its source, target and options; without `make`
    Triton's front end translates the kernel, unless `cache` has its text.
    """
    from triton import compiler

    known: dict[tuple[Any, ...], Kernel] = {}

    def translate(source: Any, target: Any, options: dict[str, Any]) -> Kernel:
        # Not `attrs`: the alignment of a tensor changes nothing in TTIR.
        constants = tuple((place, _same(value)) for place, value in source.constants.items())
        key = (source.fn, repr(source.signature), constants, repr(options))
        if key not in known:
            where = source, target, options
            text, by_blocks = cache.made(front_end, *where) if cache else front_end(*where)
            made = (source.fn.__name__, text, source.signature, by_blocks)
            held = tuple(source.constants.values())
            known[key] = Kernel(source.fn, *made, held, usage_of(options))
        return known[key]

    def compile(source: Any, target: Any = None, options: Any = None, **_: Any) -> _Compiled:
        return _Compiled((make or translate)(source, target, options or {}), run)

    compiler.compile = compile


def usage_of(options: dict[str, Any]) -> dict[str, int]:
    """Return the figures of a kernel with `options` that no compiler has counted."""
    return _USAGE | {name: options.get(name, usual) for name, usual in _OPTIONS.items()}


def _same(value: Any) -> Any:
    """Return a key that two constants share only if they are the same to a kernel.

    Two functions of one name share a repr, and so may two objects of a submission's class.
    """
    if type(value).__name__ == "constexpr":
        value = value.value
    if type(value) is tuple:
        return tuple(map(_same, value))
    plain = value is None or type(value) in (bool, int, float, str)
    return repr(value) if plain else id(value)


def front_end(source: Any, target: Any, options: dict[str, Any]) -> tuple[str, bool]:
    """Return the TTIR of a Triton source, with calls inlined and descriptors resolved.

    The second result says whether the source had descriptors or block pointers.
    """
    from triton._C.libtriton import passes
    from triton.compiler.compiler import ASTSource

    plain = ASTSource(source.fn, source.signature, source.constants, {})
    module, _, _ = parsed(plain, target, options)
    _apply(module, "inline", passes.common.add_inliner)
    text = module.str()
    by_blocks = "!tt.tensordesc" in text or "tt.make_tensor_ptr" in text
    if by_blocks:
        # Triton 3.8 has no such pass for block pointers, which its front end resolves itself.
        of_blocks = getattr(passes.ttir, "add_rewrite_tensor_pointer", None)
        of_descriptors = passes.ttir.add_rewrite_tensor_descriptor_to_pointer
        _apply(module, "pointers", *filter(None, (of_blocks, of_descriptors)))
        text = module.str()
    return text, by_blocks


def parsed(source: Any, target: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the module of a Triton source, its backend, and the backend's options."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    known = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators = backend.get_codegen_implementation(known)
    module = source.make_ir(target, known, generators, backend.get_module_map(), context)
    return module, backend, known


def _apply(module: Any, name: str, *added: Callable[[Any], None]) -> None:
    from triton._C.libtriton import ir

    manager = ir.pass_manager(module.context)
    for add in added:
        add(manager)
    manager.run(module, name)


class _Compiled:
    """Stands for a compiled kernel in Triton's launches, which it passes to `run`."""

    function = packed_metadata = module = None

    def __init__(self, kernel: Kernel, run: Callable[[Launch], None]) -> None:
        self.asm = {"ttir": kernel.text}
        self.metadata = types.SimpleNamespace(name=kernel.name, **kernel.usage)
        vars(self).update(kernel.usage)
        self._kernel = kernel
        self._run = run

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> None:
        return None

    def _init_handles(self) -> None:
        """Do nothing: submissions call it before they read `n_regs`."""

    def __getitem__(self, grid: tuple[Any, Any, Any]) -> Callable[..., None]:
        return lambda *args, stream=None: self.run(*grid, *args)

    def run(self, x: Any, y: Any, z: Any, *rest: Any) -> None:
        """Launch with what Triton passes: grid, stream, function, metadata, hooks, arguments."""
        values = rest[len(rest) - len(self._kernel.signature) :]
        named = zip(self._kernel.signature.items(), values, strict=True)
        flat = [part for (name, kind), value in named for part in _flat(name, kind, value)]
        pairs = tuple((name, _memory(value)) for name, value in flat)
        self._run(Launch(self._kernel, (int(x), int(y), int(z)), pairs))

    def result(self) -> _Compiled:
        """Return itself, as the future of an asynchronous compilation does."""
        return self


def _memory(value: Any) -> Any:
    """Return an argument as a plain tensor or number, which calls no code of the submission.

    Raises:
        TypeError: it is neither.
    """
    if type(value).__module__.partition(".")[0] == "triton":
        value = getattr(value, "base", value)  # of a reinterpreted tensor
    if isinstance(value, torch.Tensor):
        return plain(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float):  # not by methods, which may be the submission's
        if isinstance(value, kind):
            return kind.__mul__(value, kind(1))
    raise TypeError(f"a kernel got a {type(value).__name__}, expected a tensor or a number")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a plain torch.Tensor, without methods that may be the submission's."""
    if type(tensor) is torch.Tensor and not vars(tensor):
        return tensor
    made = torch.Tensor.as_subclass(tensor, torch.Tensor)
    if type(made) is not torch.Tensor:  # its __torch_function__ overrides the conversion
        raise TypeError(f"got a {type(tensor).__name__}, expected a tensor with memory of its own")
    return made


def _flat(name: str, kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of TTIR that an argument becomes: none of a constant."""
    if kind == "constexpr":
        return
    if isinstance(kind, (tuple, list)):
        for index, (part, one) in enumerate(zip(kind, value, strict=True)):
            yield from _flat(f"{name}[{index}]", part, one)
    elif type(value).__name__ == "TensorDescriptor":
        # In the order of Triton's pass that resolves descriptors; 3.6 has no rounding.
        shape, strides = list(value.shape), list(value.strides)
        flags = [getattr(value, "padding", "zero") == "nan"]
        flags += [value.round_f32_to_tf32] if hasattr(value, "round_f32_to_tf32") else []
        for part in (value.base, *shape, *strides, *flags, *shape, *strides):
            yield name, part
    else:
        yield name, value
