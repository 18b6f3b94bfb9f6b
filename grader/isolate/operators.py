"""Notes what PyTorch computes for a submission while a call of it is judged. In the worker.

A dispatch mode sees every aten operator of a thread, forward and in autograd's backward pass, whose
threads have the modes of its caller. A file starts no thread: the policy leaves it no name for one.
readings.py sees what becomes Python's numbers without an operator (.tolist(), .numpy()). Each
operator in such a call counts as the submission's: Triton and the judge need no closed one, but may
call functions of the submission's that have no frame of their own. One of the timed calls is
audited, whose time does not count.

Not seen: other processes, compiled libraries that are handed a pointer, and code that takes the
modes off their stack by PyTorch's private functions, since it runs in the same process. The source
policy keeps most of that from a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from grader.isolate import asking
from grader.isolate.arena import Layout
from grader.kernel import readings
from grader.kernel.dispatch import DispatchMode
from grader.kernel.lines import running_line
from grader.spec.protocol import Reply, Status

# Kinds of operators: COMPUTES and SHORTCUT are refused, READS and COUNTED limited in their amount.
COMPUTES, SHORTCUT, READS, COUNTED = "computes", "shortcut", "reads", "counted"
ARITHMETIC = "arithmetic"  # limited twice: in elements, and in sums and products
CONVERTS = "converts"  # counted if it changes a type
PUTS = "puts"  # computes a sum if it accumulates
CLOSED = (COMPUTES, SHORTCUT)
_PUTS = {"_index_put_impl", "index_put", "put"}

_PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"}  # of matrices
_BATCHED = {"aten::bmm", "aten::baddbmm", "aten::_cdist_forward"}
# These, and others that multiply each row of one operand by each row of another.
_CROSSED = _PRODUCTS | _BATCHED | {"aten::addbmm", "aten::mv", "aten::addmv", "aten::dot"}
_CROSSED |= {"aten::vdot", "aten::convolution", "aten::_trilinear"}
_OUTER = ("aten::mul", "aten::addcmul")  # where the result is larger than both factors
_READ_OPERATOR = "aten::_local_scalar_dense"
# Their results, or the sizes of them, tell Python what a tensor holds.
_TELLING = {"_unique2", "masked_select", "nonzero", "repeat_interleave", "unique_dim"}
_TELLING |= {"allclose", "equal"}
_INDEXING = {"_unsafe_index", "index"}  # so do theirs where the index is a mask
_PUTS_BY_INDEX = {"aten::_index_put_impl_", "aten::index_put_"}
_MASKS = (torch.bool, torch.uint8)
_numel = torch.Tensor.numel  # the original, whatever becomes of the class
_NAMESPACES = ("aten", "prim", "prims", "profiler")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of PyTorch that is not open: of which kind, on which line (0: unknown), in words."""

    kind: str
    line: int
    text: str


@dataclasses.dataclass
class _Noted:
    """A call, or several that are noted together: what PyTorch has made and read, and may.

    `size` is that of the inputs in elements; by what is limited, `allowed` and `made` are amounts.
    """

    differentiates: bool
    size: int
    allowed: dict[str, float]
    made: dict[str, int]
    most_read: float
    read: int = 0


class OperatorAudit:
    """What the submission at `path` has PyTorch do; `found` is the first use that is not open.

    `rules` come from grader/source/policy/operators.py.
    """

    def __init__(self, rules: dict[str, Any], path: str) -> None:
        self.found: Use | None = None
        self._open = None if rules["open"] is None else frozenset(rules["open"])
        self._counted = frozenset(rules["counted"])
        self._converting = frozenset(rules["converting"])
        self._closed = tuple(rules["closed"])
        self._arithmetic = frozenset(rules.get("arithmetic", ()))
        self._most = {"elements": rules.get("most_elements", math.inf)}
        self._most["sums and products"] = rules.get("most_arithmetic", math.inf)
        self._most_padded, self._rows = rules.get("most_padded", 0), rules.get("padded_rows", 1)
        self._most_read = rules.get("most_read", math.inf)
        self._path = path
        # The kind of an operator; "" for one that is open.
        self.kind: Callable[[Any], str] = functools.cache(self._find_kind)
        self._call: _Noted | None = None
        self.multiply_adds = 0  # of products of matrices

    def install(self) -> None:
        """Watch what is read from now on; called before the submission is imported."""
        readings.install()
        asking.install()

    @contextlib.contextmanager
    def noting(self, layout: Layout, request: dict[str, Any]) -> Iterator[None]:
        """Note a requested call, unless its kernels do nothing: then its results are not used."""
        self.found, self.multiply_adds = None, 0
        if not request.get("idle", False):
            self._call = self._noted(layout, request["gradients"], request.get("sets", 1))
            readings.note(self.reads)
        try:
            with _Dispatched(self):
                yield
        finally:
            self._call = None
            readings.note(None)

    def _noted(self, layout: Layout, differentiates: bool, calls: int) -> _Noted:
        sizes = [math.prod(view.size) for view in layout.inputs]
        size = calls * max(1, sum(sizes))
        # p02 may multiply its weights and its sums by a factor once: that is not the exercise.
        small = sum(sizes) - max(sizes, default=0)
        small += sum(math.prod(view.size) for view in layout.outputs)
        # PyTorch may pad inputs to tiles of rows, but not p02's x, which has two dimensions.
        padded = [v.size for v in layout.inputs if len(v.size) == 4]
        tiles = (b * h * -(-n // self._rows) * d for b, h, n, d in padded)
        least = calls * max(small, self._most_padded * self._rows * sum(tiles))
        allowed = {what: max(most * size, least) for what, most in self._most.items()}
        made = dict.fromkeys(allowed, 0)
        return _Noted(differentiates, size, allowed, made, calls * self._most_read)

    def refusal(self, nonce: int) -> Reply:
        """Return the reply that tells what was `found`."""
        assert self.found is not None
        line, kind, text = self.found.line, self.found.kind, self.found.text
        return Reply(nonce, Status.FORBIDDEN_OPERATOR, line, error_type=kind, text=text)

    # -- what is noted ----------------------------------------------------------------------------

    def runs(self, func: Any, kind: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Note that an operator runs."""
        if self._call is None or self.found is not None:
            return
        if not self._call.differentiates and torch._C._current_graph_task_id() >= 0:
            self._refuse(SHORTCUT, f"autograd computes gradients here: {_name(func)}")
        elif kind == READS:
            self.reads(1, ".item(), a comparison or a conversion")
        elif tells(func, args):
            self.reads(1, _name(func))
        elif kind == SHORTCUT:
            self._refuse(SHORTCUT, f"PyTorch does here what you are asked to write: {_name(func)}")
        elif kind == COMPUTES or (kind == PUTS and (kwargs.get("accumulate") or True in args[3:4])):
            self._refuse(COMPUTES, f"PyTorch computes here: {_name(func)}")

    def made(self, func: Any, kind: str, args: Any, result: Any) -> None:
        """Note how much an operator that is counted has made, or summed up."""
        call = self._call
        if call is None or self.found is not None:
            return
        with torch._C.DisableTorchFunction():  # numel may be a class's own
            found, results = list(tensors((args, result))), list(tensors((result,)))
            # A complex number is two.
            elements = max((_numel(x) * (1 + x.is_complex()) for x in found), default=0)
            numbers = any(x.dtype is not torch.bool for x in results)
            mixes = kind == ARITHMETIC or any(x.is_complex() for x in found)
        for what in ("elements", "sums and products") if numbers and mixes else ("elements",):
            call.made[what] += elements
            made, most = call.made[what], call.allowed[what]
            if made > most and self.found is None:
                self._refuse(
                    COMPUTES,
                    f"PyTorch computes here, element by element: {_name(func)}; {made:,} {what} so"
                    f" far, {made / call.size:.3g} for each element of the inputs;"
                    f" {most / call.size:.3g} are allowed",
                )

    def reads(self, elements: int, how: str) -> None:
        """Note that elements of a tensor have become numbers of Python."""
        call = self._call
        if call is None or self.found is not None:
            return
        call.read += elements
        if call.read > call.most_read:
            self._refuse(
                READS,
                f"values of tensors are read into Python here, with {how}"
                f"; {call.read:,} elements so far, {self._most_read} of a call are allowed",
            )

    def _refuse(self, kind: str, text: str) -> None:
        self.found = Use(kind, running_line(self._path), text)

    def _find_kind(self, func: Any) -> str:
        name, overload = _name(func), getattr(func, "_overloadname", "")
        namespace, _, base = name.partition("::")
        if name == _READ_OPERATOR:
            return READS
        if base.startswith(self._closed):
            return SHORTCUT
        if namespace not in _NAMESPACES:
            return COMPUTES  # an operator of somebody's own, which may do anything
        if self._open is None or namespace in ("prim", "profiler"):
            return ""
        plain = base.removesuffix("_") if not base.startswith("__") else base
        if plain in _PUTS and "sum" not in self._open:
            return PUTS
        names = {base, plain, f"{base}.{overload}", f"{plain}.{overload}"}
        if names & self._arithmetic:
            return ARITHMETIC
        if names & self._counted:
            return COUNTED
        if names & self._converting:
            return CONVERTS
        return "" if names & self._open else COMPUTES


class _Dispatched(DispatchMode):
    """Reports one thread's operators to an audit."""

    def __init__(self, record: OperatorAudit) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # the class's own code comes first; its operators come here
        kind = self._record.kind(func)
        # In inference mode reshape, matmul and the like arrive before they are decomposed.
        if kind != SHORTCUT and _can_decompose(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        self._record.runs(func, kind, args, kwargs or {})
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            self._record.reads(1, f"the error of {_name(func)}")  # "index 3 is out of bounds"
            raise
        if kind == CONVERTS and len({x.dtype for x in tensors((args, result))}) > 1:
            kind = COUNTED
        if kind in (COUNTED, ARITHMETIC):
            self._record.made(func, kind, args, result)
        self._record.multiply_adds += multiply_adds(_name(func), args, result)
        return result


def multiply_adds(name: str, args: Any, result: Any) -> int:
    """Return how many multiply-adds an operator does; 0 if it is no product.

    A product of (M, K) and (K, N), in any layout, does M * N * K: the square root of the sizes of
    both factors and the result, multiplied: M, N and K are in two of the three, batches in all.
    """
    name = name.removesuffix("_")  # in place
    if name not in _CROSSED and name not in _OUTER:
        return 0
    of = [x for x in tensors(args) if x.dim()]
    factors = of[:2] if name == "aten::convolution" else of[-2:]
    sizes = [x.numel() for x in factors]
    if name in _OUTER:
        return result.numel() if max(sizes, default=0) < result.numel() else 0
    batches = math.prod(result.shape[:-2]) if name in _BATCHED else 1
    return math.isqrt(math.prod(sizes) * result.numel() // max(1, batches))


@functools.cache
def is_product(func: Any) -> bool:
    """Whether an operator multiplies matrices; its last two arguments are the factors."""
    return _name(func).removesuffix("_") in _PRODUCTS


@functools.cache
def _can_decompose(func: Any) -> bool:
    """Whether an operator decomposes into others, which are audited in its place."""
    return bool(getattr(func, "_can_decompose", bool)())


def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return schema.name if schema is not None else str(func)


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments of an operator, or its results."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors(value)


def reads_one(func: Any) -> bool:
    """Whether an operator makes a number of Python of the one element of a tensor."""
    return _name(func) == _READ_OPERATOR


def tells(func: Any, args: Any) -> bool:
    """Whether an operator tells Python something of a tensor's values."""
    name = _name(func).partition("::")[2].removesuffix("_")
    return name in _TELLING or (name in _INDEXING and _has_mask(args[1:]))


def puts_by_mask(func: Any, args: Any) -> bool:
    """Whether an operator puts values where a mask is true: how many depends on its values."""
    return _name(func) in _PUTS_BY_INDEX and _has_mask(args[1:2])


def _has_mask(values: Any) -> bool:
    return any(mask.dtype in _MASKS for mask in tensors(values))
