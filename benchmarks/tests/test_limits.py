"""Tests of the forward kernel of benchmarks/limits, on the model of Gluon and as compiled.

They need no GPU: the kernel's own source runs on gluon_model.py, which fails where Hopper would
hang or read missing data; and it is compiled for Hopper. Each mistake that the model promises to
find is planted into the kernel.
"""

import dataclasses
import json
import math
import re
import subprocess
import sys

import pytest
import torch

import reference
from benchmarks import contenders, inputs
from benchmarks import shapes as sh
from benchmarks.inputs import CheckFailed
from benchmarks.limits import compiled, launch
from benchmarks.tests import gluon_model
from grader.spec.problem import ROOT

SOURCES = {
    f"benchmarks.limits.{name}": (ROOT / "benchmarks" / "limits" / f"{name}.py").read_text()
    for name in ("schedule", "rings", "forward")
}
PAGE = ROOT / "benchmarks" / "limits" / "README.md"
CAUSAL = {"is_causal": True, "window_size": None, "num_sink_tokens": 0}
NARROW = CAUSAL | {"window_size": 40, "num_sink_tokens": 5}


@pytest.fixture
def kernels(monkeypatch):
    """Load the modules of schedule and kernel on the model of Gluon."""
    modules = gluon_model.load(SOURCES)
    monkeypatch.setattr(launch, "kernels", lambda: (modules[0], modules[-1]))
    return modules


def draw(batch, num_q_heads, num_kv_heads, seqlen_q, seqlen_k, head_dim=64, dtype=torch.float16):
    generator = torch.Generator().manual_seed(7)

    def normal(heads, seqlen):
        size = (batch, heads, seqlen, head_dim)
        return torch.randn(size, generator=generator).to(dtype)

    return (
        normal(num_q_heads, seqlen_q),
        normal(num_kv_heads, seqlen_k),
        normal(num_kv_heads, seqlen_k),
    )


def compute(modules, q, k, v, rule, config, *, programs=None, scale=None, seed=0):
    """Return out and lse, with NaN where the kernel writes nothing."""
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    rule = dict(rule)
    logits = rule.pop("sink_logits", None)
    sizes, options = launch.plan(
        q, k, config, **rule, has_sink_logits=logits is not None, scale=scale
    )
    out = torch.full(q.shape, math.nan, dtype=q.dtype)
    lse = torch.full(q.shape[:3], math.nan)
    rows = (64, config.block_n, config.block_n, 64)
    tiles = [
        gluon_model.Descriptor(tensor, [1, 1, count, q.shape[3]])
        for tensor, count in zip((q, k, v, out), rows, strict=True)
    ]
    gluon_model.launch(
        modules[-1].attention_kernel, programs or sizes.num_tiles,
        *tiles, gluon_model.Pointer(logits), gluon_model.Pointer(lse), sizes, options, seed=seed,
    )  # fmt: skip
    return {"out": out, "lse": lse}


def is_right(got, q, k, v, rule, scale=None):
    out, lse = reference.blocked_attention(q, k, v, **rule, softmax_scale=scale)
    dtype = {torch.float16: "fp16", torch.bfloat16: "bf16"}[q.dtype]
    inputs.check(got, {"out": out, "lse": lse}, dtype)
    torch.testing.assert_close(got["lse"], lse.float(), rtol=1e-5, atol=1e-4)


FULL = {"is_causal": False, "window_size": None, "num_sink_tokens": 0}
PLAIN = launch.Config(block_n=64)
LOGITS = torch.tensor([3.0, -math.inf, -200.0, 200.0])
CASES = {
    "full-even": (FULL, (1, 1, 1, 128, 256), PLAIN),
    "full-ragged": (FULL, (2, 2, 2, 130, 201), PLAIN),
    "full-few-keys": (FULL, (1, 1, 1, 200, 3), PLAIN),
    "full-three-consumers": (FULL, (1, 2, 2, 200, 129), launch.Config(128, consumers=3)),
    "full-three-stages": (FULL, (1, 1, 1, 64, 500), dataclasses.replace(PLAIN, stages=3)),
    "full-no-turns": (FULL, (1, 1, 1, 128, 200), dataclasses.replace(PLAIN, ping_pong=False)),
    "causal": (CAUSAL, (2, 2, 2, 200, 200), PLAIN),
    "causal-wide-tiles": (CAUSAL, (1, 2, 2, 300, 300), launch.Config(128)),
    "causal-two-rows": (CAUSAL, (1, 1, 1, 2, 2), PLAIN),
    "gqa": (CAUSAL, (1, 6, 2, 150, 150), PLAIN),
    "gqa-by-heads": (CAUSAL, (2, 4, 2, 150, 150), launch.Config(128, by_heads=True)),
    "gqa-four-consumers": (
        CAUSAL, (1, 8, 2, 130, 130), launch.Config(64, consumers=4, by_heads=True)),
    "window": (CAUSAL | {"window_size": 70}, (1, 2, 1, 300, 300), PLAIN),
    "window-1": (CAUSAL | {"window_size": 1}, (1, 1, 1, 130, 130), PLAIN),
    "window-wide": (CAUSAL | {"window_size": 999}, (1, 1, 1, 200, 200), PLAIN),
    "window-by-heads": (
        CAUSAL | {"window_size": 128}, (1, 2, 1, 333, 333), launch.Config(64, by_heads=True)),
    "sinks": (NARROW, (1, 2, 1, 333, 333), PLAIN),
    "sinks-1": (NARROW | {"num_sink_tokens": 1}, (1, 1, 1, 260, 260), PLAIN),
    "sinks-over-tiles": (
        NARROW | {"num_sink_tokens": 70}, (1, 2, 1, 333, 333), launch.Config(64, by_heads=True)),
    "sinks-beyond-window": (NARROW | {"num_sink_tokens": 200}, (1, 1, 1, 260, 260), PLAIN),
    "sink-logits": (CAUSAL | {"sink_logits": LOGITS[:2]}, (1, 2, 1, 150, 150), PLAIN),
    "sink-logits-window": (NARROW | {"sink_logits": LOGITS}, (2, 4, 1, 200, 200),
                           launch.Config(64, by_heads=True)),
    "sinks-three-consumers": (NARROW, (1, 1, 1, 400, 400), launch.Config(128, consumers=3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_right_on_the_model(name, kernels):
    rule, sizes, config = CASES[name]
    q, k, v = draw(*sizes)
    is_right(compute(kernels, q, k, v, rule, config), q, k, v, rule)


@pytest.mark.parametrize("programs", [1, 2, 3])
def test_programs_that_go_on_to_further_tiles_are_right(programs, kernels):
    q, k, v = draw(1, 4, 2, 170, 170)
    narrow = launch.Config(64, q_stages=1, by_heads=True)
    for rule, config in ((CAUSAL, PLAIN), (NARROW, narrow)):
        is_right(compute(kernels, q, k, v, rule, config, programs=programs), q, k, v, rule)


@pytest.mark.parametrize("seed", range(6))
def test_the_order_in_which_partitions_run_does_not_matter(seed, kernels):
    q, k, v = draw(1, 1, 1, 130, 260, dtype=torch.bfloat16)
    config = dataclasses.replace(PLAIN, stages=3, q_stages=1 + seed % 2, consumers=3)
    is_right(compute(kernels, q, k, v, FULL, config, programs=1, seed=seed), q, k, v, FULL)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_strided_views_and_any_scale(head_dim, kernels):
    packed = torch.randn(2, 100, 4, 3, head_dim).half()
    q, k, v = (packed[..., i, :].transpose(1, 2) for i in range(3))
    assert all(map(launch.loads_by_tma, (q, k, v)))
    for scale in (0.3, 1e-30):
        got = compute(kernels, q, k, v, CAUSAL, PLAIN, scale=scale)
        is_right(got, q, k, v, CAUSAL, scale)


def test_large_scores_leave_a_finite_result(kernels):
    q, k, v = draw(1, 1, 1, 100, 100)
    got = compute(kernels, 60 * q, 60 * k, v, NARROW, PLAIN)
    is_right(got, 60 * q, 60 * k, v, NARROW)


# Mistakes: a text in the source, its replacement, and a pattern of the resulting error.
K_EMPTY = "        mbarrier.arrive(s.k_empty.index(k_stage), count=1)\n"
V_EMPTY = "        mbarrier.arrive(s.v_empty.index(v_stage), count=1)\n"
SCORES = "        scores = warpgroup_mma_wait(1, deps=(scores,))\n"
ACC = "        acc, weights = warpgroup_mma_wait({}, deps=(acc, weights))\n"
LOOP_ACC = ACC + V_EMPTY
RELEASES = "allocate_barriers(o.STAGES, 1), allocate_barriers(o.STAGES, {}),\n"
STORE = "        tma.store_wait(0)\n"
MISTAKES = {
    "keys are not waited for": (
        "        mbarrier.wait(s.k_full.index(stage), number // o.STAGES & 1)\n", "",
        "changed under|nan",
    ),
    "keys with the wrong phase": (
        "k_full.index(stage), number // o.STAGES & 1)",
        "k_full.index(stage), number // o.STAGES & 1 ^ 1)", "changed under|deadlock|nan",
    ),
    "values with the wrong phase": (
        "before // o.STAGES & 1)", "before // o.STAGES & 1 ^ 1)", "changed under|deadlock|nan",
    ),
    "stages of the producer with the wrong phase": (
        "number // o.STAGES & 1 ^ 1)", "number // o.STAGES & 1)", "deadlock",
    ),
    "values released before the product has read them": (
        LOOP_ACC.format(0), V_EMPTY + ACC.format(0), "changed|arrivals|error",
    ),
    "keys released before the product has read them": (
        SCORES + K_EMPTY, K_EMPTY + SCORES, "changed under",
    ),
    "keys never released": (K_EMPTY, "", "deadlock: .*partition"),
    "one consumer's release is enough": (
        (RELEASES + 8 * " ").format("o.CONSUMERS") + RELEASES.format("o.CONSUMERS"),
        (RELEASES + 8 * " ").format("1") + RELEASES.format("1"), "changed|arrivals|error",
    ),
    "scores taken before they are there": (SCORES, SCORES.replace("(1", "(2"), "taken while"),
    "the product of the values is not waited for": (
        LOOP_ACC.format(0), LOOP_ACC.format(1), "taken while",
    ),
    "nobody may begin": ("INDEX == 0:\n            phase", "0:\n            phase", "deadlock"),
    "turns never passed on": (
        "mbarrier.arrive(turn.index((INDEX + 1) % o.CONSUMERS), count=1)", "pass", "deadlock",
    ),
    "the output's place taken before it has left": (
        "            mbarrier.wait(s.q_empty.index(slot), work // o.Q_STAGES & 1 ^ 1)\n", "",
        "changed|arrivals|nan|error",
    ),
    "no fence before the store by TMA": ("        fence_async_shared()\n", "", "without a fence"),
    "the store is not waited for": (STORE, "", "stores under way|changed"),
    "no mask past the end": (
        "visible = columns < sizes.seqlen_k - start", "visible = columns >= 0", "error",
    ),
    "no mask on the diagonal": ("visible = columns <= last", "visible = columns >= 0", "error"),
    "no mask left of the window": (
        "visible & ((columns > last - sizes.window_size) | is_sink)", "visible", "error",
    ),
    "sinks forgotten in the mask": ("< sizes.num_sink_tokens - start", "< 0 - start", "error"),
    "tiles of the sinks not visited": ("end - begin + sink_steps,", "end - begin,", "error"),
    "the term of the sink logit forgotten": (
        "* final + gl.exp2(logit - new_max)", "* final", "error",
    ),
    "the output not rescaled for the sink logit": (
        "final / running_sum", "(0 * final + 1) / running_sum", "error",
    ),
    "the accumulator not rescaled": (
        "acc = acc * gl.convert_layout(rescale", "acc = acc * gl.convert_layout(1 + 0 * rescale",
        "error",
    ),
    "more bytes expected than come": (
        "mbarrier.expect(full, desc.block_type.nbytes)",
        "mbarrier.expect(full, desc.block_type.nbytes + 1)", "deadlock",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name, monkeypatch):
    wrong, instead, message = MISTAKES[name]
    assert sum(text.count(wrong) for text in SOURCES.values()) == 1
    module = gluon_model.load({n: text.replace(wrong, instead) for n, text in SOURCES.items()})
    monkeypatch.setattr(launch, "kernels", lambda: (module[0], module[-1]))
    sizes = (1, 2, 1, 333, 333)
    seen = []
    config = dataclasses.replace(PLAIN, q_stages=1)
    for rule in (NARROW, FULL, NARROW | {"sink_logits": LOGITS[[0, 3]]}):
        q, k, v = draw(*sizes)
        for seed in range(3):
            try:
                got = compute(module, q, k, v, rule, config, programs=2, seed=seed)
                is_right(got, q, k, v, rule)
            except (gluon_model.Fault, CheckFailed, AssertionError) as error:
                seen.append(str(error))
                break
    assert seen, "nothing noticed"
    assert any(re.search(message, text) for text in seen), seen


def test_a_deadlock_names_who_waits_for_what(monkeypatch):
    copies = r"    _load\(.*\n"
    module = gluon_model.load({n: re.sub(copies, "", text) for n, text in SOURCES.items()})
    monkeypatch.setattr(launch, "kernels", lambda: (module[0], module[-1]))
    with pytest.raises(
        gluon_model.Fault, match=r"deadlock: partition 0 waits for barrier \d+\[0\]"
    ):
        compute(module, *draw(1, 1, 1, 64, 64), FULL, PLAIN)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (launch.Config(128, stages=4), "stages: got 4"),
        (launch.Config(128, by_heads=True, consumers=3), "by_heads: got groups of 2 heads"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config, message, kernels):
    q, k, _ = draw(1, 4, 2, 64, 64, 128)
    with pytest.raises(ValueError, match=message):
        launch.plan(q, k, config, **CAUSAL, scale=1.0)


@pytest.mark.parametrize("seqlen", [64, 1000, 8192])
@pytest.mark.parametrize("heads", [(1, 1), (16, 16), (12, 4), (64, 8)])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("window", [None, 1, 128, 1024, 9000])
def test_the_configuration_chosen_fits(seqlen, heads, head_dim, window, kernels):
    size = (2, seqlen, head_dim)
    q = torch.empty(2, heads[0], seqlen, head_dim, device="meta", dtype=torch.bfloat16)
    k = torch.empty(2, heads[1], *size[1:], device="meta", dtype=torch.bfloat16)
    for is_causal in (True, False) if window is None else (True,):
        config = launch.config_for(q, k, is_causal=is_causal, window_size=window)
        sizes, options = launch.plan(
            q, k, config, is_causal=is_causal, window_size=window, num_sink_tokens=4, scale=1.0
        )
        groups = q.shape[0] * heads[0] // options.HEADS
        assert sizes.num_tiles == groups * sizes.num_query_tiles
        assert groups % sizes.section == 0
        assert sizes.num_query_tiles * options.SPAN >= seqlen
        # The registers of consumers and producer fit into those of all warps together.
        warps = 4 * (config.consumers + 1)
        per_thread = 65536 // (32 * warps) // 8 * 8
        spare = per_thread * (config.consumers + 1) - config.producer_registers
        assert spare >= config.consumers * config.consumer_registers


def test_places_and_walks_cover_every_visible_pair_once(kernels):
    q, k, _ = draw(2, 4, 2, 200, 200)
    for config in (PLAIN, launch.Config(128, by_heads=True), launch.Config(64, consumers=3)):
        sizes, o = launch.plan(q, k, config, **NARROW, scale=1.0)
        starts = {kernels[0].place(tile, sizes, o) for tile in range(sizes.num_tiles)}
        assert len(starts) == sizes.num_tiles
        visible = reference.visible_keys(200, 200, **NARROW)
        for _, _, start in starts:
            walk = kernels[0].plan_walk(start, sizes, o)
            tiles = [kernels[0].first_key(step, walk, o) for step in range(walk.steps)]
            assert len(set(tiles)) == len(tiles)
            for row in visible[start : start + o.SPAN]:
                needed = {int(key) // o.BLOCK_N * o.BLOCK_N for key in row.nonzero()}
                assert needed <= set(tiles)
                for step in range(walk.plain_begin, walk.plain_end):
                    assert row[tiles[step] : tiles[step] + o.BLOCK_N].all()


def test_what_keeps_a_kernel_from_running_is_named(monkeypatch):
    def on_gpu(tensor, capability=(9, 0)):
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        try:
            return launch.obstacle(tensor, tensor, tensor)
        finally:
            monkeypatch.undo()

    def half(*size):
        return torch.empty(size, dtype=torch.float16)

    assert launch.obstacle(*(half(1, 1, 8, 64),) * 3) == "no GPU"
    assert on_gpu(half(1, 1, 8, 64), (8, 0)) == "compute capability is not 9.0"
    assert on_gpu(half(1, 1, 8, 64), (10, 0)) == "compute capability is not 9.0"
    assert on_gpu(half(1, 1, 8, 64).float()) == "fp32"
    assert on_gpu(half(1, 1, 8, 16)) == "head_dim 16"
    assert on_gpu(half(1, 1, 8, 32)) == "head_dim 32"
    assert on_gpu(half(1, 1, 1, 64)) == "length 1"
    assert on_gpu(half(1, 8, 2, 68)[..., :64]) == "rows not at multiples of 16 bytes"
    assert on_gpu(half(1, 1, 8, 64).expand(2, 3, 8, 64)) == "rows not at multiples of 16 bytes"
    assert on_gpu(half(1, 2, 8, 64)) is None
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "benchmarks.limits.forward", None)
        assert launch.no_gluon().endswith("has another Gluon")


@pytest.mark.parametrize("problem", ["p03", "p04", "p05", "p06", "p07", "p08"])
def test_without_the_kernel_the_plain_answer_runs_and_the_label_says_so(problem):
    shape = sh.shrunk(sh.DEFAULT[problem][0])
    found = contenders.build(problem, shape, "cpu", compiled=False, wanted=frozenset({"limits"}))
    ours, limits = found
    assert (limits.id, limits.role) == ("limits", contenders.OWN)
    assert limits.label == "limits (plain: no GPU)"
    assert limits.returns == ours.returns


def test_the_compiler_spills_nothing():
    command = [sys.executable, "-m", "benchmarks.limits.compiled", "--json", "--only", "full,sinks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    full, sinks = map(json.loads, done.stdout.splitlines())
    # Per consumer: one step before the loops, one product after them, and the loops.
    assert (full["loops"], sinks["loops"]) == (2, 2 * 3)
    for row in (full, sinks):
        assert row["spills"] == row["stack_bytes"] == 0
        assert row["waits"] == 2 * 2 + 2 * row["loops"]
        assert row["products"] == 8 * (2 * 2 + 2 * row["loops"])
        assert row["shared_bytes"] <= 227 * 1024
        assert compiled.as_row(row) in PAGE.read_text()


def test_the_page_names_files_cases_and_a_window_that_are_there(kernels):
    page = PAGE.read_text()
    table = page[page.index("<!-- compiled -->") : page.index("<!-- end of compiled -->")]
    cases = tuple(case.name for case in compiled.CASES)
    rows = re.findall(r"^\| ([a-z0-9-]+) \|", table, re.M)
    assert rows
    assert all(row.startswith(cases) for row in rows)
    for name in re.findall(r"^\| `(\w+\.py)` \|", page, re.M):
        assert (PAGE.parent / name).is_file()
    # "with a window of 128, 192 keys for each query in place of 256"
    q, k, _ = draw(1, 2, 1, 1024, 1024)
    visited = []
    for by_heads in (True, False):
        rule = CAUSAL | {"window_size": 128}
        sizes, o = launch.plan(q, k, launch.Config(64, by_heads=by_heads), **rule, scale=1.0)
        visited.append(kernels[0].plan_walk(512, sizes, o).steps * o.BLOCK_N)
    assert visited == [192, 256]


def test_an_unknown_case_is_refused():
    command = [sys.executable, "-m", "benchmarks.limits.compiled", "--only", "fulll"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--only: got fulll, expected among full, " in done.stderr
