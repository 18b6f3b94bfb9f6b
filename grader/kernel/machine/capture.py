"""Turns the launches of a process's Triton kernels into TTIR, and hands each launch on.

Triton binds and specialises the arguments, keeps what it has compiled, and evaluates the grid; only
its compiler is replaced: by one that stops behind the front end, or by another that is given. No
GPU is needed. A driver must be active, as those of grader/kernel/compile/absent_gpu.py are.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from grader.kernel.machine.ttir_cache import TtirCache
from grader.kernel.passed import plain

# What is said of a kernel that only the machine runs: no compiler has counted it.
_USAGE = {"n_regs": 32, "n_spills": 0, "shared": 8192}
_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}


@dataclasses.dataclass(eq=False)
class Kernel:
    """One kernel with one set of types and constants, and what it became in Triton's front end.

    `signature` has the type of each argument, "constexpr" that of a constant. `by_blocks` says that
    it has block pointers or descriptors, of which nothing is left in `text`. `constants` are held,
    so that no other object takes their place in memory. `usage` is what the file may ask of a
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
    """One launch: a value for each parameter of the kernel's TTIR, with the argument it is of.

    `addresses` are those by which whoever launched knows tensors that now lie at other ones.
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

    `make` is called with source, target and options of a kernel when Triton would compile it;
    without it the machine's front end is, unless `cache` has what it made.
    """
    from triton import compiler

    known: dict[tuple[Any, ...], Kernel] = {}

    def translate(source: Any, target: Any, options: dict[str, Any]) -> Kernel:
        # Where a tensor lies, which `attrs` tell, changes nothing in TTIR.
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
    """Return what a file may ask of a kernel that nothing has counted, launched with `options`."""
    return _USAGE | {name: options.get(name, usual) for name, usual in _OPTIONS.items()}


def _same(value: Any) -> Any:
    """Return what two constants have alike only if they are the same to a kernel.

    Two functions of one name have one repr, and so may two objects of a class of the file's.
    """
    if type(value).__name__ == "constexpr":
        value = value.value
    if type(value) is tuple:
        return tuple(map(_same, value))
    plain = value is None or type(value) in (bool, int, float, str)
    return repr(value) if plain else id(value)


def front_end(source: Any, target: Any, options: dict[str, Any]) -> tuple[str, bool]:
    """Return the TTIR of a source of Triton's, with calls inlined and descriptors resolved.

    And whether there were any of these, or block pointers.
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
    """Return the module that Triton reads a source into, its backend, and the options for that."""
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
    """A compiled kernel as far as Triton's launches ask for one; its launches go to `run`."""

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
        """Do nothing: files call it before they ask for `n_regs`."""

    def __getitem__(self, grid: tuple[Any, Any, Any]) -> Callable[..., None]:
        return lambda *args, stream=None: self.run(*grid, *args)

    def run(self, x: Any, y: Any, z: Any, *rest: Any) -> None:
        """Take a launch as Triton makes it: grid, stream, function, metadata, hooks, arguments."""
        values = rest[len(rest) - len(self._kernel.signature) :]
        named = zip(self._kernel.signature.items(), values, strict=True)
        flat = [part for (name, kind), value in named for part in _flat(name, kind, value)]
        pairs = tuple((name, _memory(value)) for name, value in flat)
        self._run(Launch(self._kernel, (int(x), int(y), int(z)), pairs))

    def result(self) -> _Compiled:
        """Return itself, as a compilation that was asked for ahead of its turn does."""
        return self


def _memory(value: Any) -> Any:
    """Return an argument as a plain tensor or number: no code of the submission's is called later.

    Raises:
        TypeError: it has an address and is no tensor.
    """
    if type(value).__module__.partition(".")[0] == "triton":
        value = getattr(value, "base", value)  # of one that was reinterpreted
    if isinstance(value, torch.Tensor):
        return plain(value)
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float):  # of a class of the file's own, its methods are not asked
        if isinstance(value, kind):
            return kind.__mul__(value, kind(1))
    raise TypeError(f"a kernel got a {type(value).__name__}, expected a tensor or a number")


def _flat(name: str, kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of TTIR that an argument becomes: none of a constant."""
    if kind == "constexpr":
        return
    if isinstance(kind, (tuple, list)):
        for index, (part, one) in enumerate(zip(kind, value, strict=True)):
            yield from _flat(f"{name}[{index}]", part, one)
    elif type(value).__name__ == "TensorDescriptor":
        # As Triton's pass that resolves descriptors hands them on, 3.6 without the rounding.
        shape, strides = list(value.shape), list(value.strides)
        flags = [getattr(value, "padding", "zero") == "nan"]
        flags += [value.round_f32_to_tf32] if hasattr(value, "round_f32_to_tf32") else []
        for part in (value.base, *shape, *strides, *flags, *shape, *strides):
            yield name, part
    else:
        yield name, value
