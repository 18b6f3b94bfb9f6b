"""Tests of the backward kernel of benchmarks/limits, on the model of Gluon and as compiled."""

import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch

import reference
from benchmarks.inputs import CheckFailed, check
from benchmarks.limits import compiled, launch, training
from benchmarks.tests import gluon_model
from grader.spec.problem import ROOT

PAGE = ROOT / "benchmarks" / "limits" / "README.md"
NAMES = ("schedule", "rings", "backward_schedule", "backward")
SOURCES = {
    f"benchmarks.limits.{name}": (ROOT / "benchmarks" / "limits" / f"{name}.py").read_text()
    for name in NAMES
}


def kernel_of(monkeypatch, wrong="", instead=""):
    """Return the kernel on the model of Gluon, with `wrong` text replaced by `instead`."""
    sources = {n: text.replace(wrong, instead) if wrong else text for n, text in SOURCES.items()}
    loaded = gluon_model.load(sources)
    monkeypatch.setattr(training, "kernels", lambda: (loaded[2], loaded[3]))
    return loaded[3].backward_kernel


def compute(kernel, tensors, rule, *, with_dq=True, programs=None, seed=0):
    """Return the gradients of the kernel and of the oracle for q, k, v, dout."""
    q, k, v, dout = tensors
    is_causal, window_size, num_sink_tokens = rule
    expected = reference.blocked_gradients(
        q, k, v, dout, is_causal=is_causal, window_size=window_size, num_sink_tokens=num_sink_tokens
    )
    delta = (expected["out"] * dout.double()).sum(-1).float()
    rule = training.Rule(*rule, scale=1 / math.sqrt(q.shape[3]))
    start = sink_sums(tensors, expected["lse"], delta, rule)
    sums, sink_dk, sink_dv = (x.float() for x in start)
    lse = expected["lse"].float()
    sizes, options = training.plan(q, k, rule, with_dq)
    dk, dv = (training.room_for(x, options) for x in (k, v))
    if not options.HEADS_APART:
        dk, dv = dk.fill_(math.nan), dv.fill_(math.nan)
    gluon_model.launch(
        kernel, programs or sizes.num_tiles, *map(tiles, (q, k, v, dout, dk, dv, sums)),
        *map(gluon_model.Pointer, (lse, delta, sink_dk, sink_dv)), sizes, options, seed=seed,
    )  # fmt: skip
    got = {"dk": dk.to(k.dtype), "dv": dv.to(v.dtype)} | (
        {"dq": sums.to(q.dtype)} if with_dq else {}
    )
    return got, {name: expected[name] for name in got}


def tiles(tensor):
    return gluon_model.Descriptor(tensor, [1, 1, launch.ROWS, tensor.shape[3]])


def sink_sums(tensors, lse, delta, rule):
    """Return dQ, dK (unscaled) and dV of pairs of a sink and a query beyond its window, fp64."""
    q, k, v, dout = (x.double() for x in tensors)
    batch, num_kv_heads, seqlen, head_dim = k.shape
    shape = (batch, num_kv_heads, rule.num_sink_tokens, head_dim)
    if not rule.num_sink_tokens:
        return torch.zeros_like(q), torch.zeros(shape), torch.zeros(shape)
    k, v = (x[:, :, : rule.num_sink_tokens].repeat_interleave(q.shape[1] // num_kv_heads, 1)
            for x in (k, v))  # fmt: skip
    keys, queries = torch.arange(rule.num_sink_tokens)[:, None], torch.arange(seqlen)
    p = torch.exp(k @ q.mT * rule.scale - lse[:, :, None]) * (queries >= keys + rule.window_size)
    ds = p * (v @ dout.mT - delta[:, :, None])
    sums = (x.unflatten(1, (num_kv_heads, -1)).sum(2) for x in (ds @ q, p @ dout))
    return ds.mT @ k * rule.scale, *sums


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
    "gqa-apart": ((2, 4, 2, 300, 300, 128), CAUSAL),
    "full-apart": ((1, 6, 2, 70, 300, 128), FULL),
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
@pytest.mark.parametrize("with_dq", [True, False])
def test_the_kernel_is_right_on_the_model(name, with_dq, programs, monkeypatch):
    sizes, rule = CASES[name]
    options = {"with_dq": with_dq, "programs": programs}
    check(*compute(kernel_of(monkeypatch), draw(*sizes), rule, **options), "fp16")


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_in_which_partitions_run_does_not_matter(seed, head_dim, monkeypatch):
    tensors = draw(1, 4, 2, 200, 200, head_dim, dtype=torch.bfloat16)
    for rule in ((True, 70, 3), CAUSAL):
        check(*compute(kernel_of(monkeypatch), tensors, rule, programs=1, seed=seed), "bf16")


def test_strided_views(monkeypatch):
    packed = torch.randn(2, 150, 3, 4, 64).half()
    tensors = tuple(packed[:, :, :, i].transpose(1, 2) for i in range(4))
    assert all(map(launch.loads_by_tma, tensors))
    check(*compute(kernel_of(monkeypatch), tensors, CAUSAL), "fp16")


# Mistakes: a text in the source, its replacement, and a pattern of the resulting error.
MISTAKES = {
    "dP taken before it is there": (
        "dp = warpgroup_mma_wait(1, deps=(dp,))", "dp = warpgroup_mma_wait(2, deps=(dp,))",
        "taken while",
    ),
    "queries not waited for": (
        "        mbarrier.wait(s.q_full.index(stage), (number + step) // o.STAGES & 1)\n"
        "        q = ", "        q = ",
        "changed under|nan",
    ),
    "queries released under the product of dK": (
        "        dk, dv, weights, left = warpgroup_mma_wait(0, deps=(dk, dv, weights, left))\n"
        "        mbarrier.arrive(s.q_empty.index(stage), count=1)\n",
        "        mbarrier.arrive(s.q_empty.index(stage), count=1)\n"
        "        dk, dv, weights, left = warpgroup_mma_wait(0, deps=(dk, dv, weights, left))\n",
        "changed under|error",
    ),
    "dS of the other consumer not waited for": (
        "            mbarrier.wait(s.ds_full.index(stage * o.CONSUMERS + i), "
        "number // o.DS_STAGES & 1)\n", "", "changed under|nan|deadlock|dq: error",
    ),
    "dS released under the product of dQ": (
        "        dq = warpgroup_mma_wait(0, deps=(dq,))\n"
        "        mbarrier.arrive(s.ds_empty.index(stage), count=1)\n",
        "        mbarrier.arrive(s.ds_empty.index(stage), count=1)\n"
        "        dq = warpgroup_mma_wait(0, deps=(dq,))\n",
        "changed under|error",
    ),
    "dS overwritten before it was multiplied": (
        "    mbarrier.wait(s.ds_empty.index(stage), number // o.DS_STAGES & 1 ^ 1)\n", "",
        "changed under|error|more than",
    ),
    "keys overwritten before the last product of dQ": (
        "            mbarrier.wait(s.k_read, work & 1)\n", "", "changed under|dq: error",
    ),
    "dQ overwritten before it was added": (
        "    mbarrier.wait(s.dq_empty.index(buffer), number // o.DQ_STAGES & 1 ^ 1)\n", "",
        "changed under|error|more than",
    ),
    "dQ released before it was added": (
        "    tma.store_wait(0)\n    mbarrier.arrive(s.dq_empty", "    mbarrier.arrive(s.dq_empty",
        "changed under|stores under way|error",
    ),
    "a consumer overtakes the other one's turn": (
        "        mbarrier.wait(s.dq_full.index(buffer), (number - 1) & 1)\n",
        "        pass\n", "changed under|dq: error|deadlock|more than",
    ),
    "the last step's dQ forgotten": (
        "            take_turn(number - 1, first, s, sizes, INDEX, o)\n", "            pass\n",
        "dq: error|deadlock",
    ),
    "zeros of hidden tiles not given": (
        "            give_ds(gl.zeros([ROWS, ROWS], s.k.dtype, S), number + step, s, INDEX, o)\n",
        "            pass\n", "dq: error|deadlock",
    ),
    "dQ added to another tile": (
        "[batch, head, start, 0], s.dq.index(buffer)", "[batch, head, 0, 0], s.dq.index(buffer)",
        "dq: error",
    ),
    "dK and dV exchanged": ("_add_tile(tensors.dv, ", "_add_tile(tensors.dk, ", "dk: error"),
    "dV of one consumer added to the keys of the other": (
        "                start = key_start + (number + i) % o.CONSUMERS * ROWS\n"
        "                _add_tile(tensors.dv",
        "                start = key_start + i * ROWS\n"
        "                _add_tile(tensors.dv", "dv: error",
    ),
    "both consumers' dV in one turn": (
        "                if (number + i) % o.CONSUMERS == INDEX:\n"
        "                    hand_over(dv",
        "                if i == INDEX:\n"
        "                    hand_over(dv", "error|deadlock|changed under|more than",
    ),
    "a head's keys and values for another group": (
        "        head // sizes.group_size,\n", "        head % sizes.num_kv_heads,\n", "error",
    ),
    "lse and delta not announced": (
        "            mbarrier.arrive(full, count=1)\n", "", "deadlock",
    ),
    "a group's heads but the first forgotten": ("+ step // tiles\n", "+ 0 * step\n", "dk: error"),
    "no mask on the diagonal": ("visible = distance >= 0", "visible = distance < 1e9", "dk: error"),
    "no mask at the end of the window": (
        "visible & (distance < sizes.window_size)", "visible", "dk: error",
    ),
    "one masked step too few": ("plain = gl.minimum(INDEX + 1, tiles)", "plain = INDEX", "error"),
    "masks at the end of the window one step late": (
        "sizes.window_size // ROWS + INDEX", "sizes.window_size // ROWS + INDEX + 1", "dk: error",
    ),
    "a step too few at the end of the window": (
        "ROWS * (INDEX + 1) - 1, ROWS)", "ROWS * INDEX - 1, ROWS)", "dk: error",
    ),
    "one step too few at the end of the walk": (
        "last_key + sizes.window_size", "key_start + sizes.window_size", "dk: error",
    ),
    "sums that begin at 0": (
        "is_sink = (rows < sizes.num_sink_tokens)", "is_sink = (rows < 0)", "dk: error",
    ),
    "sums of another head": (
        "+ kv_head, gl.int64) * sizes.num_sink", ", gl.int64) * sizes.num_sink", "dk: error",
    ),
    "a wrong delta": (
        "s.delta.index(stage).store(delta)", "s.delta.index(stage).store(delta + 1)", "dk: error",
    ),
    "the scale of dK forgotten": ("(dk * sizes.scale)", "(dk)", "dk: error"),
    "the scale of dQ forgotten": ("hand_over(dq * sizes.scale,", "hand_over(dq,", "dq: error"),
    "no fence before the stores": (
        "            fence_async_shared()\n            store_tile", "            store_tile",
        "without a fence",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name, monkeypatch):
    wrong, instead, message = MISTAKES[name]
    assert any(wrong in text for text in SOURCES.values())
    kernel = kernel_of(monkeypatch, wrong, instead)
    seen = []
    cases = (
        ((1, 4, 2, 333, 333), CAUSAL), ((1, 2, 2, 150, 300), FULL),
        ((1, 4, 2, 333, 333), (True, 200, 5)), ((1, 4, 2, 500, 500), (True, 70, 5)),
        ((1, 2, 1, 260, 260, 128), CAUSAL),
    )  # fmt: skip
    for sizes, rule in cases:
        for seed in range(5):
            try:
                check(*compute(kernel, draw(*sizes), rule, programs=1, seed=seed), "fp16")
            except (gluon_model.Fault, CheckFailed) as error:
                seen.append(str(error))
                break
    assert seen, "nothing noticed"
    assert any(re.search(message, text) for text in seen), seen


def test_prepare_is_right():
    environment = dict(os.environ) | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "benchmarks.tests.test_limits_backward"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def prepare_on_the_interpreter():
    """Compare `training.begin` with the oracle; needs TRITON_INTERPRET=1."""
    cases = (
        ((2, 4, 2, 333, 333), (True, 40, 5), True), ((1, 8, 1, 200, 200), (True, 1, 16), True),
        ((1, 2, 2, 130, 130), (True, 126, 3), True),
        ((1, 4, 2, 300, 300, 128), (True, 70, 4), False),
    )  # fmt: skip
    for sizes, rule, with_dq in cases:
        q, k, v, dout = tensors = draw(*sizes, dtype=torch.float32)
        expected = reference.blocked_gradients(
            q, k, v, dout, is_causal=True, window_size=rule[1], num_sink_tokens=rule[2]
        )
        rule = training.Rule(*rule, scale=1 / math.sqrt(q.shape[3]))
        out, lse = expected["out"].float(), expected["lse"].float()
        start = training.begin(q, k, v, out, dout, lse, rule, with_dq)
        delta = (out * dout).sum(-1)
        dq, dk, dv = sink_sums(tensors, lse, delta, rule)
        torch.testing.assert_close(start.delta, delta)
        close = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close((start.dk, start.dv), (dk.float(), dv.float()), **close)
        if with_dq:
            torch.testing.assert_close(start.dq, dq.float())
        else:
            assert start.dq is None


def test_the_compiler_keeps_the_schedule():
    cases = "backward,backward-window,backward-d64,backward-narrow-d64"
    command = [sys.executable, "-m", "benchmarks.limits.compiled", "--json", "--only", cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(rows) == cases.split(",")
    for row in rows.values():
        parts = 2 if row["name"] in ("backward", "backward-d64") else 3  # a window adds its end
        assert row["loops"] == row["under"] == 2 * parts  # per consumer
        assert row["shared_bytes"] <= 227 * 1024
    for row in (rows["backward-d64"], rows["backward-narrow-d64"]):
        assert row["spills"] == 0
    rows["backward-window"]["spills"] = 132  # the page's, of Triton 3.6.0; 138 with 3.7.1
    for row in rows.values():
        assert compiled.as_row(row) in PAGE.read_text()


if __name__ == "__main__":
    prepare_on_the_interpreter()
