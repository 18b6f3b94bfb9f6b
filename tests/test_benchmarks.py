"""The benchmark: shapes, counts of work, timing in turns, tables, records; all without a GPU."""

import copy
import json
import random
import re
import subprocess
import sys
import types

import pytest
import torch
from rich.console import Console

import reference
from benchmarks import cli, plots, record, sweep, table
from benchmarks import shapes as sh
from benchmarks.contenders import OURS, Missing, build, is_fatal
from benchmarks.inputs import CheckFailed, check, make_inputs, oracle
from benchmarks.run import Runner, Settings, _result, measure
from benchmarks.timing import Clock, Entrant, interleave, spread
from docs.pictures.palette import PALETTE
from grader.spec.problem import ROOT
from tests.shares import drawn

RULES = [
    (seqlen, is_causal, window, sinks)
    for seqlen in (1, 2, 7, 64, 129)
    for is_causal, window, sinks in (
        (False, None, 0),
        (True, None, 0),
        *((True, window, sinks) for window in (1, 5, 64, 200) for sinks in (0, 1, 4, 70)),
    )
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_pairs_are_counted_as_the_mask_says(rule):
    seqlen, is_causal, window, sinks = rule
    visible = reference.visible_keys(
        seqlen, seqlen, is_causal=is_causal, window_size=window, num_sink_tokens=sinks
    )
    assert sh.visible_pairs(*rule) == visible.sum().item()


def test_work_counts_visible_pairs_and_bytes_once():
    shape = sh.parse_shape("2,4,2,64,16,w=8,s=2")
    visible = reference.visible_keys(64, 64, is_causal=True, window_size=8, num_sink_tokens=2)
    flops = 4 * 2 * 4 * 16 * visible.sum().item()
    assert shape.work(sh.FORWARD) == ("TFLOP/s", flops / 1e12)
    assert shape.work(sh.BACKWARD)[1] == pytest.approx(2.5 * flops / 1e12)
    assert shape.work(sh.BOTH)[1] == pytest.approx(3.5 * flops / 1e12)
    matrix = sh.Matrix("m", 10, 20, "fp32")
    assert matrix.work(sh.FORWARD) == ("GB/s", (200 + 20 + 10) * 4 / 1e9)


@pytest.mark.parametrize(
    "text",
    ["1,64,8,8192,128,w=128,s=4,logits", "2,16,16,8192,128,full", "1,2,1,100,16,fp16", "8x16,fp32"],
)
def test_a_label_reads_back_as_the_same_shape(text):
    assert sh.parse_shape(text).label == text


@pytest.mark.parametrize("text", ["1,2,3", "1,2,1,8,16,z=3", "8x16,w=3", "1,2,1,8,16,x"])
def test_a_shape_that_cannot_be_read_says_what_it_expects(text):
    with pytest.raises(ValueError, match="expected"):
        sh.parse_shape(text)


def test_default_shapes_fit_their_problems_and_have_names_of_their_own():
    for problem, found in (*sh.DEFAULT.items(), *sh.GROWTH.items()):
        names = [shape.name for shape in found]
        assert len(set(names)) == len(names)
        assert all(sh.fits(problem, shape) for shape in found)
        assert not any(name[0].isdigit() and "," in name for name in names)
    assert [len(sh.DEFAULT[p]) for p in sh.PROBLEMS] == [2, 3, 2, 3, 2, 4, 12, 2, 25]


def test_targets_name_contenders_that_the_shape_has():
    for problem, found in sh.DEFAULT.items():
        for shape in found:
            small = sh.shrunk(shape)
            contenders = build(problem, small, "cpu", compiled=False)
            if problem == "p05":
                small = sh.parse_shape("1,4,2,70,16,fp16")
                contenders = build(problem, small, "cpu", compiled=False)
            assert set(shape.targets) <= {c.id for c in contenders} | {"copy"}
            assert contenders[0].role == OURS


def test_chosen_takes_names_sets_and_spelled_out_shapes():
    assert [s.name for s in sh.chosen("p04", "d64,short")] == ["d64", "short"]
    assert sh.chosen("p04", "d128;1,2,2,64,16")[1].seqlen == 64
    assert not sh.chosen("p04", "1,2,2,64,16,w=8")
    assert not sh.chosen("p03", "1,2,2,64,16")[0].is_causal
    assert len(sh.chosen("p06", "growth")) == 8
    assert len(sh.chosen("p07", None, quick=True)) == 1


def test_sweep_points_cover_the_values_and_repeat():
    found = sweep.points("p07", 40)
    assert found == sweep.points("p07", 40)
    assert {s.seqlen for s in found} == set(sweep.LENGTHS)
    assert {s.head_dim for s in found} == set(sweep.HEAD_DIMS)
    assert {s.window_size for s in found} == set(sweep.WINDOWS)
    assert {s.num_q_heads // s.num_kv_heads for s in found} == set(sweep.GROUPS)
    assert all(sh.fits(p, s) for p in sh.PROBLEMS[2:] for s in sweep.points(p, 12))


def test_entrants_take_turns_and_a_failing_one_leaves():
    order = []

    def call(name, fail_at=None):
        def run(number):
            order.append((name, number))
            if fail_at is not None and sum(n == name for n, _ in order) > fail_at:
                raise RuntimeError("gone")

        return run

    good, bad, never = (
        Entrant(call(name, fail), 2) for name, fail in (("good", None), ("bad", 8), ("never", 0))
    )
    interleave([good, bad, never], Clock("cpu"), seconds=5, rounds=9, rng=random.Random(1))
    assert len(good.samples_ms) == 9
    assert str(bad.fault) == "gone" and len(bad.samples_ms) < 9
    assert str(never.fault) == "gone" and not never.samples_ms
    assert {number for name, number in order if name == "good"} == {0, 1}


def test_spread_gives_median_and_quartiles():
    assert spread([3.0, 1.0, 2.0, 4.0, 5.0]) == {
        "median_ms": 3.0,
        "quartiles_ms": [2.0, 4.0],
        "best_ms": 1.0,
        "samples": 5,
    }
    assert spread([2.0])["quartiles_ms"] == [2.0, 2.0]


def test_check_names_the_output_and_nan_fails():
    expected = {"out": torch.randn(1, 2, 8, 4)}
    errors = check({"out": expected["out"].half()}, expected, "fp16")
    assert len(errors["out"]["heads"]) == 2
    wrong = expected["out"].clone()
    wrong[0, 1] *= 1.5
    with pytest.raises(CheckFailed, match=r"out: error 0\.5 in head 1"):
        check({"out": wrong}, expected, "bf16")
    wrong[0, 0, 0, 0] = float("nan")
    with pytest.raises(CheckFailed):
        check({"out": wrong}, expected, "bf16")


@pytest.mark.parametrize("text", ["1,4,2,70,16,fp16", "1,4,2,70,16,fp32"])
def test_library_contenders_agree_with_the_oracle(text):
    shape = sh.parse_shape(text)
    inputs = make_inputs("p08", shape, 3, "cpu")
    expected = oracle("p08", shape, inputs)
    wanted = frozenset({"naive_bf16", "naive_fp32", "sdpa_flash"})
    for contender in build("p08", shape, "cpu", wanted=wanted)[1:]:
        for which in sh.passes("p08"):
            runner = Runner("p08", contender, [inputs, inputs], which)
            names = set(runner.check(expected))
            assert names >= ({"out"} if which == sh.FORWARD else {"dq", "dk", "dv"})


def test_flex_with_sinks_and_logits_agrees_with_the_oracle():
    pytest.importorskip("torch.nn.attention.flex_attention")
    shape = sh.parse_shape("1,2,1,70,16,w=20,s=4,fp32")
    inputs = make_inputs("p07", shape, 3, "cpu")
    contender = build("p07", shape, "cpu", compiled=False, wanted=frozenset({"flex"}))[1]
    check({"out": contender.call(inputs)}, oracle("p07", shape, inputs), "fp32")


@pytest.mark.parametrize("text", ["1,4,2,70,16,fp16", "1,4,2,70,16,w=20,logits,fp16"])
def test_flash_attention_4_is_given_its_layout_and_its_window(monkeypatch, text):
    """The stand-in keeps to the conventions of flash-attn-4: (b, s, h, d), keys to the left."""
    shape = sh.parse_shape(text)

    def flash_attn_func(q, k, v, *, causal, window_size, learnable_sink):
        assert q.is_contiguous() and q.shape == (1, 70, 4, 16)
        assert causal == (window_size == (None, None))
        width = None if causal else window_size[0] + 1
        rule = {"window_size": width, "sink_logits": learnable_sink}
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        out, lse = reference.naive._attention(*heads_first, is_causal=True, **rule)
        return out.transpose(1, 2), lse

    module = types.ModuleType("flash_attn.cute")
    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    problem = "p09" if shape.window_size else "p08"
    inputs = make_inputs(problem, shape, 3, "cpu")
    peer = build(problem, shape, "cpu", compiled=False, wanted=frozenset({"flash_attention_4"}))[1]
    for which in sh.passes(problem):
        found = Runner(problem, peer, [inputs, inputs], which).check(oracle(problem, shape, inputs))
        assert set(found) >= ({"out"} if which == sh.FORWARD else {"dq", "dk", "dv"})
    module.flash_attn_func = lambda q, k, v: q
    old = build(problem, shape, "cpu", compiled=False, wanted=frozenset({"flash_attention_4"}))[1]
    assert isinstance(old, Missing) and "newer" in old.reason


def test_a_peer_that_is_not_installed_says_how_to_get_it():
    shape = sh.parse_shape("1,4,2,70,16,fp16")
    peer = build("p08", shape, "cpu", compiled=False, wanted=frozenset({"flash_attention_4"}))[1]
    assert isinstance(peer, Missing) and peer.reason.startswith("pip install flash-attn-4")


def _fake_result(problem="p09", name="gpt-oss", which=sh.BACKWARD):
    shape = next(s for s in (*sh.DEFAULT[problem], *sh.GROWTH[problem]) if s.name == name)
    rows = [
        {"id": "ours", "label": "ours", "role": "ours", "status": "timed",
         "median_ms": 0.5, "quartiles_ms": [0.49, 0.52], "samples": 9, "extra_bytes": 3 * 2**20,
         "errors": {"dq": {"worst": 0.004, "median": 0.003, "head": 1, "heads": [0.003, 0.004]}}},
        {"id": "flex", "label": "FlexAttention", "role": "peer", "status": "timed",
         "median_ms": 2.5, "quartiles_ms": [2.4, 2.6], "samples": 9, "extra_bytes": 2**31,
         "errors": {}},
        {"id": "naive_fp32", "label": "naive fp32", "role": "naive", "status": "not available",
         "reason": "needs about 300 GiB of memory"},
    ]  # fmt: skip
    return _result(problem, shape, which, rows, {"matmul_tflops": 700.0, "copy_gbps": 4000.0})


def test_result_has_ratio_fraction_and_targets():
    result = _fake_result()
    assert result["best_peer"] == "flex" and result["ratio"] == 5.0
    assert result["targets"]["flex"] == {"least": 4.0, "ratio": 5.0, "reached": True}
    assert result["targets"]["own_no_sinks"]["reached"] is None
    ours = result["contenders"][0]
    tflop = 2.5 * 4 * 64 * 64 * sh.visible_pairs(8192, True, 128, 4) / 1e12
    assert ours["rate"] == pytest.approx(tflop / 0.5e-3)
    assert ours["fraction"] == pytest.approx(ours["rate"] / 700)
    assert not _fake_result(which=sh.FORWARD)["targets"]


def _rendered(*renderables):
    console = Console(width=table.WIDTH, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for item in renderables:
        console.print(item)
    return console.export_text()


def test_tables_fit_in_100_columns_and_cut_nothing():
    longest = max((s for f in sh.DEFAULT.values() for s in f), key=lambda s: len(s.label))
    result = _fake_result()
    wide = copy.deepcopy(result)
    wide["shape"]["label"] = longest.label
    text = _rendered(
        table.contenders_table(result),
        table.summary_table([result, wide]),
        table.targets_table([result, wide]),
    )
    assert max(map(len, text.splitlines())) <= table.WIDTH
    for word in ("FlexAttention *", longest.label, "2.0 GiB", "not available", "reached",
                 "unknown", "4.0e-03 dq", "5.000"):  # fmt: skip
        assert word in text
    assert "…" not in text
    assert table.notes(result) == ["  naive fp32: not available: needs about 300 GiB of memory"]


def test_record_is_saved_whole_and_read_back(tmp_path):
    found = record.new_record("benchmark", {"seed": 1})
    found["results"].append(_fake_result())
    path = tmp_path / "new" / "r.json"
    record.save(found, path)
    assert record.load(path) == json.loads(json.dumps(found))
    assert not list(path.parent.glob("*.part"))
    assert {"torch", "triton", "cudnn", "cuda"} <= set(found["versions"])
    path.write_text('{"schema_version": 99}')
    with pytest.raises(ValueError, match="got schema_version 99, expected 1"):
        record.load(path)


def test_growth_curves_join_the_lengths_of_a_contender():
    results = [_fake_result("p06", f"growth-{n}", sh.FORWARD) for n in (2048, 1024)]
    curves = plots.growth_curves({"results": results})
    assert [n for n, _ in curves["p06 ours"]] == [1024, 2048]


def test_curves_on_one_line_take_turns():
    line = {1024: 100.0, 2048: 400.0}
    near, far = {1024: 95.0, 2048: 410.0}, {1024: 10.0, 2048: 40.0}
    curves = {"a": line, "b": far, "c": near, "d": {2048: 400.0}, "e": dict(line)}
    assert plots.coinciding(curves) == {
        "a": (0, 3), "c": (1, 3), "e": (2, 3), "b": (0, 1), "d": (0, 1),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["limits", "memory", "ratio", "time"])
def test_plots_follow_the_readers_mode(name):
    svg = (ROOT / "docs" / "plots" / f"{name}.svg").read_text("utf-8")
    assert "var(" not in svg  # which is black outside a browser
    # No wider than a phone, which would shrink the text.
    assert float(re.search(r'viewBox="0 0 ([0-9.]+)', svg)[1]) <= 390
    drawn = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    pairs = {(kind, *pair) for kind in ("fill", "stroke") for pair in PALETTE.values()}
    ruled = set(re.findall(r'\[style\*="(fill|stroke): (#\w+)"\]\{\1:(#\w+) !important\}', svg))
    used = set(re.findall(r"(fill|stroke): (?!none)(\S+?)[;\"]", drawn))
    assert ruled <= pairs and used == {(kind, light) for kind, light, _ in ruled}


@pytest.mark.parametrize(
    ("record_of", "names"),
    drawn([
        ("1", ["ratio.svg"]), ("1-growth", ["time.svg", "memory.svg"]),
        ("3-limits", ["limits.svg"]),
    ], 3),
)  # fmt: skip
def test_plots_are_those_of_the_records(tmp_path, record_of, names):
    matplotlib = pytest.importorskip("matplotlib")
    found = record.load(ROOT / "benchmarks" / "records" / f"nvidia-h200-2026-11-2{record_of}.json")
    assert [path.name for path in plots.draw(found, tmp_path)] == names
    for name in names:
        drawn = (ROOT / "docs" / "plots" / name).read_text("utf-8")
        if f"Matplotlib v{matplotlib.__version__}," in drawn:
            assert (tmp_path / name).read_text("utf-8") == drawn


def test_a_record_is_shown_again_without_measuring(tmp_path, capsys):
    found = record.new_record("benchmark", {})
    found |= {"results": [_fake_result()], "ceilings": {"matmul_tflops": 1.0, "copy_gbps": 2.0}}
    record.save(found, tmp_path / "r.json")
    assert cli.main(["--from", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p")]) == 0
    assert "gpt-oss" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--problems", "p10"], ["--device", "cpu"], ["--shapes", "1,2"], ["--shapes", "nothing"]],
)
def test_wrong_usage_ends_with_2(arguments, capsys):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith("benchmarks: ")


def test_measure_reports_what_is_not_available_and_goes_on():
    shape = sh.parse_shape("1,2,2,40,16,fp32")
    settings = Settings(
        "cpu", 0.05, 5, 2, compiled=False, wanted=frozenset({"naive_bf16", "sdpa_cudnn"})
    )
    ceiling = {"matmul_tflops": 1.0, "copy_gbps": 1.0}
    (result,) = measure("p01", shape, settings, Clock("cpu"), ceiling)
    rows = {row["id"]: row for row in result["contenders"]}
    assert rows["ours"]["status"] == "timed" and rows["naive_bf16"]["status"] == "timed"
    assert rows["sdpa_cudnn"]["status"] == "not available" and rows["sdpa_cudnn"]["reason"]
    assert result["best_peer"] == "naive_bf16"


def test_a_wrong_answer_is_reported_and_not_timed(monkeypatch):
    import benchmarks.contenders as contenders

    shape = sh.parse_shape("1,2,2,40,16,fp32")
    module = types.SimpleNamespace()
    entry = lambda q, k, v, **_: (v, q[..., 0])  # noqa: E731
    monkeypatch.setattr(contenders, "load_solution", lambda _: (module, entry))
    settings = Settings("cpu", 0.05, 5, 1, compiled=False, wanted=frozenset())
    ceiling = {"matmul_tflops": 1.0, "copy_gbps": 1.0}
    (result,) = measure("p01", shape, settings, Clock("cpu"), ceiling)
    row = result["contenders"][0]
    assert row["status"] == "wrong" and "out: error" in row["reason"]
    assert result["ratio"] is None


def test_a_missing_solution_is_a_missing_contender(monkeypatch):
    import benchmarks.contenders as contenders

    def fail(_):
        raise ImportError("no such module")

    monkeypatch.setattr(contenders, "load_solution", fail)
    first = build("p04", sh.DEFAULT["p04"][0], "cpu", wanted=frozenset())[0]
    assert isinstance(first, Missing) and "no such module" in first.reason


def test_lost_context_is_told_from_other_errors():
    assert is_fatal(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_fatal(RuntimeError("CUDA error: invalid configuration argument"))


def test_dry_run_goes_through_everything(tmp_path):
    """The whole command on the CPU, the kernel on the tile machine: one problem, in a process."""
    path = tmp_path / "r.json"
    command = [sys.executable, "-m", "benchmarks", "--device", "cpu", "--dry-run", "--quick",
               "--problems", "p02,p04", "--contenders", "naive_bf16,naive,mv",
               "--seconds-per-problem", "0.3", "--json", str(path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    results = record.load(path)["results"]
    assert [r["problem"] for r in results] == ["p02", "p04"]
    assert all(row["status"] == "timed" for r in results for row in r["contenders"])
