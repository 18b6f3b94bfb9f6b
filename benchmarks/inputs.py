"""Makes inputs, loads model answers, and checks results against the blocked fp32 oracle."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from types import ModuleType
from typing import Any

import torch

import reference
from benchmarks.shapes import TRAINED, Matrix, Shape
from grader.kernel.given import offer_given
from grader.spec.problem import ROOT, load_problem

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# The largest relative error allowed per head, forward and gradients. A right kernel in bf16 has
# 0.003 and 0.006; the smallest known mistake exceeds these bounds several times.
TOLERANCE = {"bf16": (0.02, 0.03), "fp16": (0.005, 0.008), "fp32": (1e-4, 1e-4)}
# Naive attention rounds every score to 16 bits before the softmax.
NAIVE_FACTOR = 2.0
LSE_TOLERANCE = 0.02


class CheckFailed(Exception):
    """A contender's result is wrong; the message says by how much."""


def load_solution(problem: str) -> tuple[ModuleType, Any]:
    """Return the model answer's module, loaded by path once, and its entry point."""
    manifest = load_problem(problem)
    name = f"_benchmarked_{problem}"
    if name not in sys.modules:
        offer_given()
        path = ROOT / "solutions" / problem / manifest.file
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    module = sys.modules[name]
    return module, getattr(module, manifest.entry)


def make_inputs(
    problem: str, shape: Shape | Matrix, seed: int, device: str
) -> dict[str, torch.Tensor]:
    """Return normal q, k, v, for p08 and p09 dout, sink_logits if the shape has them; or x, w."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = DTYPES[shape.dtype]

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=dtype)

    if isinstance(shape, Matrix):
        return {"x": normal(shape.rows, shape.cols), "w": normal(shape.cols)}
    q_shape = (shape.batch, shape.num_q_heads, shape.seqlen, shape.head_dim)
    kv_shape = (shape.batch, shape.num_kv_heads, shape.seqlen, shape.head_dim)
    inputs = {"q": normal(*q_shape), "k": normal(*kv_shape), "v": normal(*kv_shape)}
    if problem in TRAINED:
        inputs["dout"] = normal(*q_shape)
    if shape.sink_logits:
        # Near the log-sum-exp of a window of normal scores, so that the term matters.
        inputs["sink_logits"] = normal(shape.num_q_heads) + 3.0
    return inputs


def oracle(
    problem: str, shape: Shape | Matrix, inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the outputs (and for p08 and p09 gradients) in fp32, or fp64 sums for p02."""
    if isinstance(shape, Matrix):
        rows = [(x.double() * inputs["w"].double()).sum(1) for x in inputs["x"].split(4096)]
        return {"y": torch.cat(rows)}
    rule = {
        "is_causal": shape.is_causal,
        "window_size": shape.window_size,
        "num_sink_tokens": shape.num_sink_tokens,
        "sink_logits": inputs.get("sink_logits") if shape.sink_logits else None,
        "dtype": torch.float32,
    }
    tensors = [inputs[name] for name in ("q", "k", "v")]
    if "dout" in inputs:
        return reference.blocked_gradients(*tensors, inputs["dout"], **rule)
    out, lse = reference.blocked_attention(*tensors, **rule)
    return {"out": out, "lse": lse}


def without_sinks(shape: Shape) -> Shape:
    """Return the shape with the same window and neither sink tokens nor sink logits."""
    return dataclasses.replace(shape, num_sink_tokens=0, sink_logits=False)


def head_errors(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the relative error of every (batch, head), flat; of a vector one number."""
    if got.shape != expected.shape:
        raise CheckFailed(f"got shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    dims = (-2, -1) if expected.ndim == 4 else (-1,)
    difference = (got.to(expected.dtype) - expected).square().sum(dims).sqrt()
    return (difference / expected.square().sum(dims).sqrt().clamp_min(1e-20)).flatten()


def check(
    got: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    dtype: str,
    factor: float = 1.0,
) -> dict[str, dict[str, Any]]:
    """Return the errors of every output in `got`: {"worst", "median", "head", "heads"}.

    Raises:
        CheckFailed: an error exceeds the tolerance or is not finite; the message names the output.
    """
    errors: dict[str, dict[str, Any]] = {}
    for name, tensor in got.items():
        if name == "lse":
            worst = (tensor.float() - expected["lse"].float()).abs().max().item()
            errors["lse"] = {"worst_absolute": worst}
            allowed = LSE_TOLERANCE
        else:
            per_head = head_errors(tensor, expected[name])
            worst = per_head.max().item()
            errors[name] = {
                "worst": worst,
                "median": per_head.median().item(),
                "head": int(per_head.argmax()),
                "heads": [float(f"{x:.3g}") for x in per_head.tolist()],
            }
            allowed = factor * TOLERANCE[dtype][name.startswith("d")]
        if not worst <= allowed:
            where = f" in head {errors[name].get('head', '?')}" if name != "lse" else ""
            raise CheckFailed(f"{name}: error {worst:.2g}{where}, allowed {allowed:.2g}")
    return errors
