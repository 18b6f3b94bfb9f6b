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
from benchmarks.limits import launch, training
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
    return loaded[2], loaded[3]


def compute(kernels, tensors, is_causal, *, programs=None, seed=0):
    """Return what the kernels make of q, k, v, dout, and what the oracle does."""
    keys, queries = kernels
    q, k, v, dout = tensors
    expected = reference.blocked_gradients(q, k, v, dout, is_causal=is_causal)
    lse = gluon_model.Pointer(expected["lse"].float())
    delta = gluon_model.Pointer((expected["out"] * dout.double()).sum(-1).float())
    got = {
        name: torch.full_like(x, math.nan)
        for name, x in zip(("dq", "dk", "dv"), (q, k, v), strict=True)
    }

    def tiles(tensor, rows=launch.ROWS):
        return gluon_model.Descriptor(tensor, [1, 1, rows, tensor.shape[3]])

    scale = 1 / math.sqrt(q.shape[3])
    sizes, options = training.plan_keys(q, k, is_causal=is_causal, scale=scale)
    gluon_model.launch(
        keys.dkdv_kernel, programs or sizes.num_tiles, tiles(q), tiles(k), tiles(v), tiles(dout),
        tiles(got["dk"]), tiles(got["dv"]), lse, delta, sizes, options, seed=seed,
    )  # fmt: skip
    sizes, options = training.plan_queries(q, k, is_causal=is_causal, scale=scale)
    gluon_model.launch(
        queries.dq_kernel, programs or sizes.num_tiles, tiles(q), tiles(k, options.BLOCK_N),
        tiles(v, options.BLOCK_N), tiles(dout), tiles(got["dq"]), lse, delta, sizes, options,
        seed=seed,
    )  # fmt: skip
    return got, {name: expected[name] for name in got}


def draw(batch, num_q_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim=64, dtype=torch.float16):
    generator = torch.Generator().manual_seed(11)

    def normal(heads, seqlen):
        return torch.randn((batch, heads, seqlen, head_dim), generator=generator).to(dtype)

    kv = (num_kv_heads, seqlen_k)
    return normal(num_q_heads, seqlen_q), normal(*kv), normal(*kv), normal(num_q_heads, seqlen_q)


CASES = {
    "full-even": ((1, 1, 1, 128, 256), False),
    "full-ragged": ((2, 2, 2, 130, 201), False),
    "full-few-keys": ((1, 2, 2, 200, 3), False),
    "full-grouped": ((1, 6, 2, 70, 300), False),
    "causal": ((2, 2, 2, 200, 200), True),
    "causal-two-rows": ((1, 1, 1, 2, 2), True),
    "gqa": ((2, 4, 2, 300, 300), True),
    "mqa": ((1, 8, 1, 129, 129, 128), True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("programs", [None, 2])
def test_the_kernels_are_right_on_the_model(name, programs, monkeypatch):
    sizes, is_causal = CASES[name]
    got, expected = compute(modules(monkeypatch), draw(*sizes), is_causal, programs=programs)
    check(got, expected, "fp16")


@pytest.mark.parametrize("seed", range(4))
def test_the_order_in_which_partitions_run_does_not_matter(seed, monkeypatch):
    tensors = draw(1, 4, 2, 200, 200, dtype=torch.bfloat16)
    got, expected = compute(modules(monkeypatch), tensors, True, programs=1, seed=seed)
    check(got, expected, "bf16")


def test_strided_views(monkeypatch):
    packed = torch.randn(2, 150, 3, 4, 64).half()
    tensors = tuple(packed[:, :, :, i].transpose(1, 2) for i in range(4))
    assert all(map(launch.loads_by_tma, tensors))
    got, expected = compute(modules(monkeypatch), tensors, True)
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
        "p = gl.where(rows <= columns + (ahead + step * ROWS), p, 0.0)", "pass", "dk: error",
    ),
    "no mask on the diagonal of dQ": (
        "p = gl.where(columns + (steps - 1 - step) * o.BLOCK_N - ahead <= rows, p, 0.0)", "pass",
        "dq: error",
    ),
    "one masked step too few": ("plain = gl.minimum(steps, o.CONSUMERS)", "plain = 1", "error"),
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
    for sizes, is_causal in (((1, 4, 2, 333, 333), True), ((1, 2, 2, 150, 300), False)):
        for seed in range(3):
            try:
                check(*compute(kernels, draw(*sizes), is_causal, programs=1, seed=seed), "fp16")
            except (gluon_model.Fault, CheckFailed) as error:
                seen.append(str(error))
                break
    assert seen, "nothing noticed"
    assert any(re.search(message, text) for text in seen), seen


def test_the_compiler_keeps_the_schedule_and_spills_nothing():
    command = [sys.executable, "-m", "benchmarks.limits.compiled", "--json", "--only", "backward"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    dkdv, dq = map(json.loads, done.stdout.splitlines())
    for row, products in ((dkdv, 24), (dq, 24)):
        assert row["loops"] == row["under"] == 2 * 2  # per consumer: on the diagonal, and below it
        assert row["products"] == products * row["loops"]
        assert row["waits"] == 3 * row["loops"]
        assert row["spills"] == row["stack_bytes"] == 0
        kib = row["shared_bytes"] / 1024
        assert kib <= 227
        said = f"| {row['name']} | {row['registers']} | {kib:.1f} KiB | 0 | {row['products']} |"
        assert f"{said} {row['under']} of {row['loops']} |" in PAGE.read_text()
