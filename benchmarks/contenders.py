"""Who computes a shape: the model answer, naive PyTorch, and the library kernels beside them."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import reference
from benchmarks.inputs import NAIVE_FACTOR, load_solution, without_sinks
from benchmarks.shapes import TRAINED, WINDOWED, Matrix, Shape

Tensors = dict[str, torch.Tensor]
OURS, PEER, NAIVE, OWN = "ours", "peer", "naive", "own"
# Bytes that naive attention holds for one element of the score matrix: forward, and with what the
# backward pass keeps. Measured with bf16 on an H200: 10.3 and 12.3.
_NAIVE_BYTES = {"bf16": (11, 13), "fp16": (11, 13), "fp32": (17, 26)}


class Unavailable(Exception):
    """A contender that cannot run here; the message is the reason."""


@dataclasses.dataclass
class Contender:
    """One implementation of a shape.

    `call` takes what `prepare` makes of the inputs, outside the timing, and returns the tensors
    `returns`; `restore` brings a result back to the layout of the inputs. `shape` is what it
    computes, where that is less than was asked for. `role`: ours; a peer, which counts for the
    ratio; naive; or one of our own kernels without this problem's addition.
    """

    id: str
    label: str
    role: str
    call: Callable[[Tensors], Any]
    shape: Shape | Matrix
    returns: tuple[str, ...] = ("out",)
    prepare: Callable[[Tensors], Tensors] = dict
    restore: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    max_sets: int = 8
    needs_bytes: tuple[float, float] = (0, 0)
    tolerance_factor: float = 1.0


@dataclasses.dataclass
class Missing:
    """A contender that was not available, and why."""

    id: str
    label: str
    role: str
    reason: str


def build(
    problem: str,
    shape: Shape | Matrix,
    device: str,
    *,
    compiled: bool = True,
    wanted: frozenset[str] | None = None,
) -> list[Contender | Missing]:
    """The contenders of a shape, ours first; those that cannot be had are Missing.

    Args: compiled: use torch.compile where a contender needs it (False in a dry run).
        wanted: ids to keep; ours is always kept.
    """
    found: list[Contender | Missing] = []
    for name, label, role, make in _catalogue(problem, shape, device, compiled):
        if wanted is not None and name not in wanted and role != OURS:
            continue
        try:
            fields = make()
            found.append(Contender(name, label, role, **({"shape": shape} | fields)))
        except Exception as error:
            found.append(Missing(name, label, role, reason(error)))
    return found


def reason(error: BaseException) -> str:
    """One line for an exception."""
    text = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError):
        text = "out of memory"
    name = "" if isinstance(error, Unavailable) else f"{type(error).__name__}: "
    return (name + text)[:300]


def is_fatal(error: BaseException) -> bool:
    """Whether the GPU's context is lost, so that this process can measure nothing more."""
    text = str(error)
    marks = ("illegal memory access", "launch failure", "misaligned address", "illegal instruction",
             "device-side assert", "illegal address")  # fmt: skip
    return "CUDA" in text and any(mark in text for mark in marks)


def _catalogue(
    problem: str, shape: Shape | Matrix, device: str, compiled: bool
) -> Iterator[tuple[str, str, str, Callable[[], dict[str, Any]]]]:
    yield "ours", "ours", OURS, lambda: _ours(problem, shape)
    if isinstance(shape, Matrix):
        yield "naive", "naive", NAIVE, lambda: _matrix(reference.weighted_row_sum)
        yield "mv", "torch.mv", PEER, lambda: _matrix(torch.mv)
        yield "compiled_sum", "compiled sum", PEER, lambda: _matrix(_row_sum(compiled))
        return
    rivals = NAIVE if problem == "p01" else PEER
    naive = PEER if problem == "p01" else NAIVE
    name = f"naive {shape.dtype}"
    yield "naive_bf16", name, naive, lambda: _naive(problem, shape, shape.dtype)
    if shape.dtype != "fp32":
        yield "naive_fp32", "naive fp32", NAIVE, lambda: _naive(problem, shape, "fp32")
    if shape.window_size is None:
        yield "sdpa_flash", "SDPA flash", rivals, lambda: _sdpa(shape, "FLASH_ATTENTION")
        yield "sdpa_cudnn", "SDPA cuDNN", rivals, lambda: _sdpa(shape, "CUDNN_ATTENTION")
    if problem != "p01":
        yield "flex", "FlexAttention", PEER, lambda: _flex(shape, device, compiled)
    if problem in WINDOWED and not shape.num_sink_tokens and not shape.sink_logits:
        yield "varlen", "varlen_attn", PEER, lambda: _varlen(shape, device)
    if problem == "p05" and shape.num_kv_heads != shape.num_q_heads:
        label = f"ours, {shape.num_q_heads} KV heads"
        yield "own_all_heads", label, OWN, lambda: _own_all_heads(shape)
    if problem in ("p07", "p09") and (shape.num_sink_tokens or shape.sink_logits):
        label = "ours, p06" if problem == "p07" else "ours, no sinks"
        base = "p06" if problem == "p07" else problem
        yield "own_no_sinks", label, OWN, lambda: _own_no_sinks(base, shape)


def entry_options(problem: str, shape: Shape) -> dict[str, Any]:
    """Keyword options of a problem's entry point, but for sink_logits."""
    if problem == "p01":
        # Large tiles: each one is a dozen launches.
        return {"is_causal": shape.is_causal, "tile_q": 1024, "tile_k": 512}
    options: dict[str, Any] = {}
    if problem in WINDOWED:
        options["window_size"] = shape.window_size
    if problem in ("p07", "p09"):
        options["num_sink_tokens"] = shape.num_sink_tokens
    return options


def _attention(function: Callable[..., Any], problem: str, shape: Shape) -> Callable[..., Any]:
    options = entry_options(problem, shape)

    def call(t: Tensors) -> Any:
        sink = {"sink_logits": t["sink_logits"]} if shape.sink_logits else {}
        return function(t["q"], t["k"], t["v"], **sink, **options)

    return call


def _ours(problem: str, shape: Shape | Matrix) -> dict[str, Any]:
    entry = load_solution(problem)[1]
    if isinstance(shape, Matrix):
        return _matrix(entry)
    returns = ("out",) if problem in TRAINED else ("out", "lse")
    return {"call": _attention(entry, problem, shape), "returns": returns, "shape": shape}


def _own_no_sinks(problem: str, shape: Shape) -> dict[str, Any]:
    def prepare(t: Tensors) -> Tensors:
        return {name: tensor for name, tensor in t.items() if name != "sink_logits"}

    return _ours(problem, without_sinks(shape)) | {"prepare": prepare}


def _own_all_heads(shape: Shape) -> dict[str, Any]:
    group = shape.num_q_heads // shape.num_kv_heads

    def prepare(t: Tensors) -> Tensors:
        return t | {name: t[name].repeat_interleave(group, 1) for name in ("k", "v")}

    return _ours("p05", shape) | {"prepare": prepare}


def _naive(problem: str, shape: Shape, dtype: str) -> dict[str, Any]:
    function = getattr(reference, reference.BASELINE[problem])

    def prepare(t: Tensors) -> Tensors:
        return {name: x.float() for name, x in t.items()} if dtype == "fp32" else dict(t)

    needed = tuple(per * shape.score_elements for per in _NAIVE_BYTES[dtype])
    return {
        "call": _attention(function, problem, shape),
        "prepare": prepare,
        "max_sets": 1,
        "needs_bytes": needed,
        "tolerance_factor": NAIVE_FACTOR,
    }


def _matrix(function: Callable[..., torch.Tensor]) -> dict[str, Any]:
    return {"call": lambda t: function(t["x"], t["w"]), "returns": ("y",)}


def _row_sum(compiled: bool) -> Callable[..., torch.Tensor]:
    def row_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sum(-1)

    if compiled:
        return torch.compile(row_sum, dynamic=False)
    return lambda x, w: row_sum(x.double(), w.double()).to(x.dtype)


def _sdpa(shape: Shape, backend: str) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = getattr(SDPBackend, backend)
    grouped = {"enable_gqa": True} if shape.num_q_heads != shape.num_kv_heads else {}

    def call(t: Tensors) -> torch.Tensor:
        with sdpa_kernel(wanted):
            return F.scaled_dot_product_attention(
                t["q"], t["k"], t["v"], is_causal=shape.is_causal, **grouped
            )

    return {"call": call}


def _mask(window_size: int | None, num_sink_tokens: int) -> Callable[..., torch.Tensor]:
    def causal(b, h, query, key):
        return key <= query

    # Compared with query - window_size, a row of numbers, no seqlen x seqlen integers are made.
    def window(b, h, query, key):
        return (key <= query) & (key > query - window_size)

    def sinks(b, h, query, key):
        return (key <= query) & ((key > query - window_size) | (key < num_sink_tokens))

    if window_size is None:
        return causal
    return sinks if num_sink_tokens else window


def _flex(shape: Shape, device: str, compiled: bool) -> dict[str, Any]:
    from torch.nn.attention import flex_attention as flex

    if compiled:
        _set_up_compiler()
    block_mask = None
    if shape.is_causal:
        make = flex.create_block_mask
        if shape.seqlen > 32768:
            make = torch.compile(make)
        mask = _mask(shape.window_size, shape.num_sink_tokens)
        block_mask = make(mask, None, None, shape.seqlen, shape.seqlen, device=device)
    options = {"enable_gqa": shape.num_q_heads != shape.num_kv_heads}

    def with_lse(q, k, v, block_mask):
        if hasattr(flex, "AuxRequest"):
            aux = flex.AuxRequest(lse=True)
            out, found = flex.flex_attention(
                q, k, v, block_mask=block_mask, return_aux=aux, **options
            )
            return out, found.lse
        return flex.flex_attention(q, k, v, block_mask=block_mask, return_lse=True, **options)

    # One more term in the denominator scales a row by exp(lse) / (exp(lse) + exp(sink)).
    def rescale(out, lse, sink_logits):
        weight = torch.sigmoid(lse - sink_logits.float()[None, :, None])
        return (out.float() * weight[..., None]).to(out.dtype)

    def plain(q, k, v, block_mask):
        return flex.flex_attention(q, k, v, block_mask=block_mask, **options)

    def with_sink_logits(q, k, v, sink_logits, block_mask):
        return rescale(*with_lse(q, k, v, block_mask), sink_logits)

    function = with_sink_logits if shape.sink_logits else plain
    if compiled:
        function = torch.compile(function, dynamic=False, fullgraph=True)
    names = ("q", "k", "v", "sink_logits") if shape.sink_logits else ("q", "k", "v")
    return {"call": lambda t: function(*(t[name] for name in names), block_mask)}


def _set_up_compiler() -> None:
    """Forget earlier shapes, so that none counts as a recompilation; and keep graphs usable."""
    import torch._dynamo
    import torch._functorch.config

    torch._dynamo.reset()
    # retain_graph=True, which times the backward pass alone, excludes donated buffers.
    torch._functorch.config.donated_buffer = False


def _varlen(shape: Shape, device: str) -> dict[str, Any]:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise Unavailable(f"torch {torch.__version__} has no varlen_attn") from error
    parameters = inspect.signature(varlen_attn).parameters
    if "window_size" not in parameters:
        raise Unavailable(f"varlen_attn of torch {torch.__version__} takes no window_size")
    options: dict[str, Any] = {"window_size": (shape.window_size - 1, 0)}
    if "scale" in parameters:
        options["scale"] = 1.0 / math.sqrt(shape.head_dim)
    if "enable_gqa" in parameters:
        options["enable_gqa"] = shape.num_q_heads != shape.num_kv_heads
    batch, seqlen = shape.batch, shape.seqlen
    starts = torch.arange(0, (batch + 1) * seqlen, seqlen, dtype=torch.int32, device=device)

    def prepare(t: Tensors) -> Tensors:
        packed = {name: x.transpose(1, 2).flatten(0, 1).contiguous() for name, x in t.items()}
        return packed

    def call(t: Tensors) -> torch.Tensor:
        return varlen_attn(t["q"], t["k"], t["v"], starts, starts, seqlen, seqlen, **options)

    def restore(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (batch, seqlen)).transpose(1, 2)

    return {"call": call, "prepare": prepare, "restore": restore}
