"""The contenders of a shape: the model answer, naive PyTorch, and library kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import reference
from benchmarks import peers
from benchmarks.inputs import DTYPES, NAIVE_FACTOR, load_solution, without_sinks
from benchmarks.peers import Tensors, Unavailable
from benchmarks.shapes import TRAINED, WINDOWED, Matrix, Shape
from grader.spec.problem import load_problem

OURS, PEER, NAIVE, OWN = "ours", "peer", "naive", "own"
# Bytes that naive attention allocates per element of the score matrix: forward alone, and with the
# tensors saved for the backward pass. Measured with bf16 on an H200: 10.3 and 12.3.
_NAIVE_BYTES = {"bf16": (11, 13), "fp16": (11, 13), "fp32": (17, 26)}


@dataclasses.dataclass
class Contender:
    """One implementation of a shape.

    `call` gets the result of `prepare` on the inputs, which is not timed, and returns the tensors
    `returns`; `restore` converts a result to the layout of the inputs. `shape` is the shape that it
    computes, which may be simpler than the one asked for. `role`: ours; a peer, which counts for
    the ratio; naive; or another of our own kernels.
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
    """A contender that is not available, and the reason."""

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
    """Return the contenders of a shape, ours first; unavailable ones are Missing.

    Args: compiled: use torch.compile where a contender needs it (False in a dry run).
        wanted: ids of contenders to return; ours is always returned.
    """
    found: list[Contender | Missing] = []
    for name, label, role, make in _catalogue(problem, shape, device, compiled):
        if wanted is not None and name not in wanted and role != OURS:
            continue
        try:
            fields = {"label": label, "shape": shape} | make()
            found.append(Contender(id=name, role=role, **fields))
        except Exception as error:
            found.append(Missing(name, label, role, reason(error)))
    return found


def reason(error: BaseException) -> str:
    """Return one line that describes an exception."""
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
    if problem not in ("p01", "p02"):
        yield "limits", "limits", OWN, lambda: _limits(problem, shape, device)
    if isinstance(shape, Matrix):
        yield "naive", "naive", NAIVE, lambda: _matrix(reference.weighted_row_sum)
        yield "mv", "torch.mv", PEER, lambda: _matrix(torch.mv)
        yield "compiled_sum", "compiled sum", PEER, lambda: _matrix(peers.row_sum(compiled))
        return
    rivals = NAIVE if problem == "p01" else PEER
    naive = PEER if problem == "p01" else NAIVE
    name = f"naive {shape.dtype}"
    yield "naive_bf16", name, naive, lambda: _naive(problem, shape, shape.dtype)
    yield "textbook", f"textbook {shape.dtype}", NAIVE, lambda: _textbook(problem, shape)
    if shape.dtype != "fp32":
        yield "naive_fp32", "naive fp32", NAIVE, lambda: _naive(problem, shape, "fp32")
    if shape.window_size is None:
        yield "sdpa_flash", "SDPA flash", rivals, lambda: peers.sdpa(shape, "FLASH_ATTENTION")
        yield "sdpa_cudnn", "SDPA cuDNN", rivals, lambda: peers.sdpa(shape, "CUDNN_ATTENTION")
    if problem != "p01":
        yield "flex", "FlexAttention", PEER, lambda: peers.flex(shape, device, compiled)
        if compiled:  # a dry run cannot tune
            tuned = functools.partial(peers.flex, tuned=True)
            yield "flex_tuned", "Flex tuned", PEER, lambda: tuned(shape, device, compiled)
        if not shape.num_sink_tokens:
            label = "FlashAttention-4"
            yield "flash_attention_4", label, PEER, lambda: peers.flash_attention_4(shape)
    if problem in WINDOWED and not shape.num_sink_tokens and not shape.sink_logits:
        yield "varlen", "varlen_attn", PEER, lambda: peers.varlen(shape, device)
    if problem == "p05" and shape.num_kv_heads != shape.num_q_heads:
        label = f"ours, {shape.num_q_heads} KV heads"
        yield "own_all_heads", label, OWN, lambda: _own_all_heads(shape)
    if problem in ("p07", "p09") and (shape.num_sink_tokens or shape.sink_logits):
        label = "ours, p06" if problem == "p07" else "ours, no sinks"
        base = "p06" if problem == "p07" else problem
        yield "own_no_sinks", label, OWN, lambda: _own_no_sinks(base, shape)


def entry_options(problem: str, shape: Shape) -> dict[str, Any]:
    """Return the keyword options of a problem's entry point, except sink_logits."""
    if problem == "p01":
        # Large tiles: each costs a dozen launches.
        return {"is_causal": shape.is_causal, "tile_q": 1024, "tile_k": 2048}
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


def _limits(problem: str, shape: Shape, device: str) -> dict[str, Any]:
    """Return the kernel of benchmarks/limits, or the answer labelled with the obstacle."""
    plain = _ours(problem, shape)
    from benchmarks.limits import launch  # needs `given`, which loading the answer offers

    size, dtype = (1, 1, shape.seqlen, shape.head_dim), DTYPES[shape.dtype]
    q, k, v = (torch.empty(size, dtype=dtype, device=device) for _ in "qkv")
    obstacle = launch.obstacle(q, k, v)
    if obstacle is not None:
        return plain | {"label": f"limits (plain: {obstacle})"}
    rule = {
        "is_causal": shape.is_causal,
        "window_size": shape.window_size,
        "num_sink_tokens": shape.num_sink_tokens,
    }
    if problem in TRAINED:
        from benchmarks.limits import training

        return plain | {
            "call": lambda t: training.attention(
                t["q"], t["k"], t["v"], sink_logits=t.get("sink_logits"), **rule
            )
        }
    if launch.is_plain_faster(q, shape.is_causal):
        return plain | {"label": "limits (plain: faster)"}
    return plain | {"call": lambda t: launch.attention(t["q"], t["k"], t["v"], **rule)}


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
    function = getattr(reference, load_problem(problem).oracle)

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


def _textbook(problem: str, shape: Shape) -> dict[str, Any]:
    return _naive(problem, shape, shape.dtype) | peers.textbook(shape)


def _matrix(function: Callable[..., torch.Tensor]) -> dict[str, Any]:
    return {"call": lambda t: function(t["x"], t["w"]), "returns": ("y",)}
