"""dQ, dK, dV at the limit of the chip: right on the model of Gluon; planted mistakes are seen."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch

import reference
from benchmarks.inputs import CheckFailed, check
from benchmarks.limits import compiled, launch, training
from grader.manifest import ROOT
from tests import gluon_model

PAGE = ROOT / "benchmarks" / "limits" / "README.md"
NAMES = ("schedule", "rings", "backward_keys", "backward_queries")
SOURCES = {
    f"benchmarks.limits.{name}": (ROOT / "benchmarks" / "limits" / f"{name}.py").read_text()
    for name in NAMES
}


def modules(monkeypatch, wrong="", instead=""):
    """Return the modules of the kernels, on the model of Gluon."""
    sources = {n: text.replace(wrong, instead) if wrong else text for n, text in SOURCES.items()}
    loaded = gluon_model.load(sources)
    monkeypatch.setattr(training, "kernels", lambda: (loaded[2], loaded[3]))
    monkeypatch.setattr(launch, "kernels", lambda: (loaded[0], None))
    return loaded[2], loaded[3]


def compute(kernels, tensors, rule, *, programs=None, seed=0):
    """Return what the kernels make of q, k, v, dout, and what the oracle does."""
    keys, queries = kernels
    q, k, v, dout = tensors
    is_causal, window_size, num_sink_tokens = rule
    expected = reference.blocked_gradients(
        q, k, v, dout, is_causal=is_causal, window_size=window_size, num_sink_tokens=num_sink_tokens
    )
    delta = (expected["out"] * dout.double()).sum(-1).float()
    rule = training.Rule(*rule, scale=1 / math.sqrt(q.shape[3]))
    lse, delta, *sinks = (
        gluon_model.Pointer(x)
        for x in (expected["lse"].float(), delta, *sink_sums(tensors, expected["lse"], delta, rule))
    )
    got = {
        name: torch.full_like(x, math.nan)
        for name, x in zip(("dq", "dk", "dv"), (q, k, v), strict=True)
    }

    def tiles(tensor, rows=launch.ROWS):
        return gluon_model.Descriptor(tensor, [1, 1, rows, tensor.shape[3]])

    sizes, options = training.plan_keys(q, k, rule)
    gluon_model.launch(
        keys.dkdv_kernel, programs or sizes.num_tiles, tiles(q), tiles(k), tiles(v), tiles(dout),
        tiles(got["dk"]), tiles(got["dv"]), lse, delta, *sinks, sizes, options, seed=seed,
    )  # fmt: skip
    sizes, options = training.plan_queries(q, k, rule)
    gluon_model.launch(
        queries.dq_kernel, programs or sizes.num_tiles, tiles(q), tiles(k, options.BLOCK_N),
        tiles(v, options.BLOCK_N), tiles(dout), tiles(got["dq"]), lse, delta, sizes, options,
        seed=seed,
    )  # fmt: skip
    return got, {name: expected[name] for name in got}


def sink_sums(tensors, lse, delta, rule):
    """What pairs of a sink and a query beyond its window give to dK, unscaled, and dV, fp32."""
    q, k, v, dout = (x.double() for x in tensors)
    batch, num_kv_heads, seqlen, head_dim = k.shape
    shape = (batch, num_kv_heads, rule.num_sink_tokens, head_dim)
    if not rule.num_sink_tokens:
        return torch.zeros(shape), torch.zeros(shape)
    k, v = (x[:, :, : rule.num_sink_tokens].repeat_interleave(q.shape[1] // num_kv_heads, 1)
            for x in (k, v))  # fmt: skip
    keys, queries = torch.arange(rule.num_sink_tokens)[:, None], torch.arange(seqlen)
    p = torch.exp(k @ q.mT * rule.scale - lse[:, :, None]) * (queries >= keys + rule.window_size)
    ds = p * (v @ dout.mT - delta[:, :, None])
    return tuple(x.unflatten(1, (num_kv_heads, -1)).sum(2).float() for x in (ds @ q, p @ dout))


def draw(batch, num_q_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim=64, dtype=torch.float16):
    generator = torch.Generator().manual_seed(11)

    def normal(heads, seqlen):
        return torch.randn((batch, heads, seqlen, head_dim), generator=generator).to(dtype)

    kv = (num_kv_heads, seqlen_k)
    return normal(num_q_heads, seqlen_q), normal(*kv), normal(*kv), normal(num_q_heads, seqlen_q)


FULL, CAUSAL = (False, None, 0), (True, None, 0)
CASES = {
    "full-even": ((1, 1, 1, 128, 256), FULL),
    "full-ragged": ((2, 2, 2, 130, 201), FULL),
    "full-few-keys": ((1, 2, 2, 200, 3), FULL),
    "full-grouped": ((1, 6, 2, 70, 300), FULL),
    "causal": ((2, 2, 2, 200, 200), CAUSAL),
    "causal-two-rows": ((1, 1, 1, 2, 2), CAUSAL),
    "gqa": ((2, 4, 2, 300, 300), CAUSAL),
    "mqa": ((1, 8, 1, 129, 129, 128), CAUSAL),
    "window": ((1, 4, 2, 700, 700), (True, 200, 0)),
    "window-of-tiles": ((2, 2, 1, 500, 500), (True, 256, 0)),
    "window-narrow": ((1, 2, 2, 300, 300), (True, 40, 0)),
    "window-of-two": ((1, 2, 1, 150, 150), (True, 2, 0)),
    "window-of-all": ((1, 2, 1, 150, 150), (True, 150, 0)),
    "sinks": ((2, 4, 2, 333, 333), (True, 40, 5)),
    "sinks-many": ((1, 4, 2, 600, 600, 128), (True, 100, 200)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("programs", [None, 2])
def test_the_kernels_are_right_on_the_model(name, programs, monkeypatch):
    sizes, rule = CASES[name]
    got, expected = compute(modules(monkeypatch), draw(*sizes), rule, programs=programs)
    check(got, expected, "fp16")


@pytest.mark.parametrize("seed", range(4))
def test_the_order_in_which_partitions_run_does_not_matter(seed, monkeypatch):
    tensors = draw(1, 4, 2, 200, 200, dtype=torch.bfloat16)
    got, expected = compute(modules(monkeypatch), tensors, (True, 70, 3), programs=1, seed=seed)
    check(got, expected, "bf16")


def test_strided_views(monkeypatch):
    packed = torch.randn(2, 150, 3, 4, 64).half()
    tensors = tuple(packed[:, :, :, i].transpose(1, 2) for i in range(4))
    assert all(map(launch.loads_by_tma, tensors))
    got, expected = compute(modules(monkeypatch), tensors, CAUSAL)
    check(got, expected, "fp16")


# Mistakes: text in the source, what stands in its place, and what comes of it.
MISTAKES = {
    "dP taken before it is there": (
        "dp = warpgroup_mma_wait(1, deps=(dp,))", "dp = warpgroup_mma_wait(2, deps=(dp,))",
        "taken while",
    ),
    "queries not waited for": (
        "        mbarrier.wait(s.q_full.index(stage), (number + step) // o.STAGES & 1)\n", "",
        "changed under|nan",
    ),
    "queries released under the product of dK": (
        "        dk, dv, weights, ds = warpgroup_mma_wait(0, deps=(dk, dv, weights, ds))\n"
        "        mbarrier.arrive(s.q_empty.index(stage), count=1)\n",
        "        mbarrier.arrive(s.q_empty.index(stage), count=1)\n"
        "        dk, dv, weights, ds = warpgroup_mma_wait(0, deps=(dk, dv, weights, ds))\n",
        "changed under|error",
    ),
    "keys released under the product of dQ": (
        "        dq, ds = warpgroup_mma_wait(0, deps=(dq, ds))\n"
        "        mbarrier.arrive(s.kv_empty.index(stage), count=1)\n",
        "        mbarrier.arrive(s.kv_empty.index(stage), count=1)\n"
        "        dq, ds = warpgroup_mma_wait(0, deps=(dq, ds))\n",
        "changed under|error",
    ),
    "lse and delta not announced": (
        "            mbarrier.arrive(full, count=1)\n", "", "deadlock",
    ),
    "a group's heads but the first forgotten": ("+ step // steps\n", "+ 0 * step\n", "dk: error"),
    "no mask on the diagonal of dK": (
        "visible = distance >= 0", "visible = distance < 1e9", "dk: error",
    ),
    "no mask at the end of the window of dK": (
        "visible & (distance < sizes.window_size)", "visible", "dk: error",
    ),
    "no mask on the diagonal of dQ": (
        "visible = columns <= last", "visible = columns >= 0", "dq: error",
    ),
    "one masked step too few": (
        "plain_begin = gl.minimum(steps, o.CONSUMERS)", "plain_begin = 1", "error",
    ),
    "masks at the end of the window one step late": (
        "sizes.window_size // ROWS", "sizes.window_size // ROWS + 1", "dk: error",
    ),
    "one step too few at the end of the window": (
        "last_key + sizes.window_size", "key_start + sizes.window_size", "dk: error",
    ),
    "sums that begin at 0": (
        "is_sink = (rows < sizes.num_sink_tokens)", "is_sink = (rows < 0)", "dk: error",
    ),
    "sums of another head": (
        "+ kv_head, gl.int64) * sizes.num_sink", ", gl.int64) * sizes.num_sink", "dk: error",
    ),
    "tiles of the sinks not visited": ("end - begin + sink_steps,", "end - begin,", "dq: error"),
    "a wrong delta": (
        's.delta.index(stage).store(delta)', "s.delta.index(stage).store(delta + 1)", "dk: error",
    ),
    "the scale forgotten": ("(dk * sizes.scale)", "(dk)", "dk: error"),
    "no fence before the stores": ("        fence_async_shared()\n", "", "without a fence"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name, monkeypatch):
    wrong, instead, message = MISTAKES[name]
    assert any(wrong in text for text in SOURCES.values())
    kernels = modules(monkeypatch, wrong, instead)
    seen = []
    cases = (
        ((1, 4, 2, 333, 333), CAUSAL), ((1, 2, 2, 150, 300), FULL),
        ((1, 4, 2, 333, 333), (True, 200, 5)), ((1, 4, 2, 500, 500), (True, 70, 5)),
    )  # fmt: skip
    for sizes, rule in cases:
        for seed in range(3):
            try:
                check(*compute(kernels, draw(*sizes), rule, programs=1, seed=seed), "fp16")
            except (gluon_model.Fault, CheckFailed) as error:
                seen.append(str(error))
                break
    assert seen, "nothing noticed"
    assert any(re.search(message, text) for text in seen), seen


def test_the_compiler_keeps_the_schedule():
    cases = "backward,backward-window"
    command = [sys.executable, "-m", "benchmarks.limits.compiled", "--json", "--only", cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    dkdv, dq, *of_window = map(json.loads, done.stdout.splitlines())
    for row in of_window:  # with sinks and sink logits, through autograd
        assert row["under"] == row["loops"] == 2 * 3
        assert row["shared_bytes"] <= 227 * 1024
    for row, products in ((dkdv, 24), (dq, 24)):
        assert row["loops"] == row["under"] == 2 * 2  # per consumer: on the diagonal, and below it
        assert row["products"] == products * row["loops"]
        assert row["waits"] == 3 * row["loops"]
        assert row["shared_bytes"] <= 227 * 1024
    assert dkdv["spills"] == 0
    assert dq["spills"] <= 8  # as on the page; with Triton 3.7.1 they are 6
    for row in (dkdv, dq | {"spills": 8}):
        assert compiled.as_row(row) in PAGE.read_text()
