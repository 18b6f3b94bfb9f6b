"""Targets implied by a GPU's rates: the rule's bounds, and what it gives on GPUs with known rates.

Of these GPUs the H200 and the H100 were measured. Of the others only the rates are known: clocks
and memory as their drivers report them, and the rates in NVIDIA's data sheets they should come to.
The model answers never ran there, so that no test can say whether they earn all points.

`python -m tests.test_implied` writes the table in docs/grading.md anew after the rule has changed.
"""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import reference
from grader.checks.counted_pairs import due_pairs
from grader.spec.grade_record import Chip, Environment, SpeedFigures
from grader.spec.problem import ROOT, ManifestError, load_problem, problem_ids
from grader.spec.roofline import visible_pairs
from grader.timing import implied as rule
from grader.timing.choice import IMPLIED, STATED, aimed
from grader.timing.implied import implied
from grader.timing.spacing import rounded_down, spaced
from grader.timing.speed import naive_bytes as peak_bytes

TRITON = [id for id in problem_ids() if id in rule._record() and load_problem(id).uses_triton]
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU model: what its driver reports, and its data sheet's bandwidth and dense 16-bit dots.

    `teraflops` is None where Triton does not use the tensor cores.
    """

    name: str
    capability: tuple[int, int]
    chip: Chip
    memory_gib: float
    gigabytes_per_s: float
    teraflops: float | None

    def shape(self, problem):
        """The largest shape that is timed here."""
        for case in problem.benchmarks_on("cuda"):
            fits = peak_bytes(problem, case) <= 0.95 * self.memory_gib * GIB
            if fits and (case.dtype == "fp16" or case.rows or self.capability >= (8, 0)):
                return case
        raise AssertionError(f"{problem.id} has no shape for {self.name}")

    def targets(self, problem_id):
        problem = load_problem(problem_id)
        return implied(problem, self.shape(problem), self.name, self.capability, self.chip)


def chip(multiprocessors, clock_mhz, memory_clock_mhz, memory_bus_bits):
    return Chip(
        multiprocessors=multiprocessors,
        clock_mhz=clock_mhz,
        memory_clock_mhz=memory_clock_mhz,
        memory_bus_bits=memory_bus_bits,
    )


GPUS = {
    # NVIDIA, H200 Tensor Core GPU data sheet; read from the device 2026-11-22.
    "H200": Gpu("NVIDIA H200", (9, 0), chip(132, 1980, 3201, 6016), 139.8, 4800, 989),
    # NVIDIA, H100 Tensor Core GPU data sheet, SXM5.
    "H100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), chip(132, 1980, 2619, 5120), 79.2, 3350, 989),
    # NVIDIA, A100 Tensor Core GPU data sheet, SXM4 80 GB.
    "A100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), chip(108, 1410, 1593, 5120), 79.2, 2039, 312),
    # NVIDIA, Tesla T4 data sheet; Triton has no path to the tensor cores of 7.5.
    "T4": Gpu("Tesla T4", (7, 5), chip(40, 1590, 5001, 256), 14.6, 320, None),
    # NVIDIA, L4 Tensor Core GPU data sheet (242 TFLOP/s with sparsity).
    "L4": Gpu("NVIDIA L4", (8, 9), chip(58, 2040, 6251, 192), 22.0, 300, 121),
    # NVIDIA, Ada GPU architecture paper: 165.2 TFLOP/s with sums in fp32.
    "RTX 4090": Gpu(
        "NVIDIA GeForce RTX 4090", (8, 9), chip(128, 2520, 10501, 384), 23.6, 1008, 165.2
    ),
}
each_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
each_problem = pytest.mark.parametrize("problem_id", TRITON)

# Speed-ups of the model answers that were measured: in the records of this repository, and in one
# grading on one NVIDIA H100 80GB HBM3 in November 2026 (torch 2.11, Triton 3.6), kept as figures.
H100 = {
    "p02": 2.6, "p03": 23.6, "p04": 65.7, "p05": 32.6, "p06": 127.0, "p07": 137.0, "p08": 16.9,
    "p09": 46.4,
}  # fmt: skip
RECORDS = sorted((ROOT / "docs" / "records").glob("nvidia-h200-*.json"))


def speed_of(record, problem_id):
    problems = {p["id"]: p for p in json.loads(record.read_text())["problems"]}
    return problems[problem_id]["components"]["speed"]["figures"]


@each_problem
def test_the_answer_earns_all_points_where_it_was_measured(problem_id):
    assert GPUS["H100"].targets(problem_id).full <= H100[problem_id]
    for record in RECORDS:
        speed = speed_of(record, problem_id)
        assert GPUS["H200"].targets(problem_id).full <= speed["speedup"]


@each_problem
@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_naive_never_moved_its_bytes_faster_than_memory_can(problem_id, record):
    problem, speed = load_problem(problem_id), speed_of(record, problem_id)
    (case,) = [c for c in problem.benchmarks_on("cuda") if str(c) == speed["shape"]]
    bound_ms = 1000 * rule.naive_bytes(problem, case) / rule.bandwidth(GPUS["H200"].chip)
    assert 0.3 * speed["naive_ms"] < bound_ms < 0.7 * speed["naive_ms"]


@each_problem
def test_the_answer_took_no_less_than_its_parts(problem_id):
    problem, gpu = load_problem(problem_id), GPUS["H200"]
    case, seconds = rule._recorded(problem)
    parts = rule.answer_parts_s(problem, case, gpu.name, gpu.capability, gpu.chip)
    assert 0.4 * seconds < sum(parts) < seconds


def test_the_recorded_gpu_is_that_of_the_record():
    environment = json.loads(rule.RECORD.read_text())["environment"]
    assert environment["device_name"] == rule.RECORDED_NAME
    assert tuple(environment["capability"]) == rule.RECORDED_CAPABILITY
    assert GPUS["H200"].chip == rule.RECORDED_CHIP
    assert RECORDS[-1] == rule.RECORD


@each_gpu
def test_rates_are_those_of_the_data_sheet(gpu):
    """The driver's highest clock may lie above the boost clock of a data sheet."""
    assert rule.bandwidth(gpu.chip) / 1e9 == pytest.approx(gpu.gigabytes_per_s, rel=0.03)
    if gpu.teraflops:
        rate = rule.dot_rate(gpu.name, gpu.capability, gpu.chip) / 1e12
        assert rate == pytest.approx(gpu.teraflops, rel=0.10)


@each_gpu
@each_problem
def test_no_target_is_harder_than_one_that_is_stated(gpu, problem_id):
    problem, found = load_problem(problem_id), gpu.targets(problem_id)
    stated = (problem.speed, problem.speed.devices["NVIDIA H200"])
    assert 0 < found.floor < found.full <= min(targets.full for targets in stated)
    assert found.floor <= problem.speed.floor
    assert found.full / found.floor >= 1.5 - 1e-9


def test_what_the_rule_gives():
    """The targets as they are, for whoever changes the rule."""
    found = {name: [gpu.targets(id).full for id in TRITON] for name, gpu in GPUS.items()}
    assert found == {
        "H200": [1.7, 4.4, 11.0, 5.2, 41.0, 40.0, 2.6, 7.1],
        "H100": [1.7, 6.3, 15.0, 7.3, 29.0, 28.0, 3.7, 9.7],
        "A100": [1.7, 4.1, 10.0, 4.3, 18.0, 17.0, 2.1, 5.7],
        "T4": [1.7, 0.26, 0.66, 0.47, 3.9, 3.7, 0.21, 0.6],
        "L4": [1.7, 8.0, 20.0, 11.0, 60.0, 60.0, 5.6, 11.0],
        "RTX 4090": [1.7, 5.8, 14.0, 5.4, 60.0, 60.0, 2.5, 6.0],
    }


@each_problem
def test_slower_dots_and_faster_memory_make_it_easier(problem_id):
    """With memory that is twice as fast naive gains more than any answer."""
    problem, gpu = load_problem(problem_id), GPUS["A100"]
    case = gpu.shape(problem)

    def full(**changes):
        changed = gpu.chip.model_copy(update=changes)
        return implied(problem, case, gpu.name, gpu.capability, changed).full

    assert full(clock_mhz=gpu.chip.clock_mhz / 2) <= full()
    assert full(memory_clock_mhz=2 * gpu.chip.memory_clock_mhz) <= full()


@each_gpu
def test_an_unknown_chip_is_taken_for_a_slow_one(gpu):
    if not gpu.teraflops:
        return
    for problem in map(load_problem, TRITON):
        case = gpu.shape(problem)
        unknown = implied(problem, case, "NVIDIA Tomorrow", (13, 7), gpu.chip)
        assert unknown.full <= gpu.targets(problem.id).full


def test_p01_keeps_the_targets_of_problem_toml():
    gpu, problem = GPUS["A100"], load_problem("p01")
    assert implied(problem, gpu.shape(problem), gpu.name, gpu.capability, gpu.chip) is None


def test_a_problem_that_is_newer_than_the_record_keeps_the_targets_of_problem_toml():
    gpu = GPUS["A100"]
    problem = load_problem("p02").model_copy(update={"id": "p10"})
    assert implied(problem, gpu.shape(problem), gpu.name, gpu.capability, gpu.chip) is None
    figures = SpeedFigures(speedup=2.0, shape=str(gpu.shape(problem)))
    found = aimed(problem, figures, environment(gpu), None)
    assert (found.full, found.targets, found.note) == (3.0, STATED, None)


@pytest.mark.parametrize("problem_id", [id for id in TRITON if id != "p02"])
def test_visible_pairs_are_those_of_the_reference(problem_id):
    problem = load_problem(problem_id)
    case = problem.benchmarks_on("cuda")[-1]
    small = dataclasses.replace(case, seqlen_q=300, seqlen_k=300)
    options = case.kwargs | ({"window_size": 40} if "window_size" in case.kwargs else {})
    small = dataclasses.replace(small, options=tuple(options.items()))
    rules = reference.rules(problem_id, options)
    rules.pop("softmax_scale")
    visible = np.asarray(reference.visible_keys(300, 300, **rules))
    assert visible_pairs(problem, small) == visible.sum() == due_pairs(problem_id, small).sum()


def test_benchmark_shapes_have_16_bit_scores():
    for problem, device in itertools.product(map(load_problem, TRITON), ("cuda",)):
        for case in problem.benchmarks_on(device):
            assert case.dtype in ("fp16", "bf16") or case.rows


@pytest.mark.parametrize("text", ["", "{}", '{"problems": [{"id": "p02"}]}'])
def test_a_record_that_is_damaged_is_named(monkeypatch, tmp_path, text):
    path = tmp_path / "record.json"
    path.write_text(text)
    monkeypatch.setattr(rule, "ROOT", tmp_path)
    monkeypatch.setattr(rule, "RECORD", path)
    rule._record.cache_clear()
    try:
        with pytest.raises(ManifestError, match=r"record\.json: got \w+: .*git checkout"):
            GPUS["A100"].targets("p02")
        # A grading goes on with what is stated, and says why.
        gpu, p02 = GPUS["A100"], load_problem("p02")
        figures = SpeedFigures(speedup=2.0, shape=str(gpu.shape(p02)))
        found = aimed(p02, figures, environment(gpu), None)
        assert (found.full, found.targets) == (3.0, STATED) and "record.json" in found.note
    finally:
        rule._record.cache_clear()


PAGE = ROOT / "docs" / "grading.md"
BEGIN, END = "<!-- table of implied targets -->\n", "<!-- end of table -->"


def page_with_table():
    lines = ["| `full` | " + " | ".join(TRITON) + " |", "|---" * (len(TRITON) + 1) + "|"]
    for name, gpu in GPUS.items():
        if gpu.name not in load_problem("p02").speed.devices:
            cells = [f"{gpu.targets(id).full:g}x" for id in TRITON]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + "\n".join(lines) + "\n" + rest[rest.index(END) :]


def test_the_table_in_the_page_is_what_the_rule_gives():
    assert PAGE.read_text(encoding="utf-8") == page_with_table()


def test_the_page_says_how_easy_the_targets_of_an_h100_are():
    ratios = [H100[id] / GPUS["H100"].targets(id).full for id in TRITON]
    told = f"the answers reached {min(ratios):.1f} to {max(ratios):.1f} times the target"
    assert told in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("value", "down"), [(7.64, 7.6), (1.79, 1.7), (0.319, 0.31), (60.0, 60.0), (128, 120), (2, 2)]
)
def test_targets_have_two_digits_and_are_rounded_down(value, down):
    assert rounded_down(value) == down


def test_a_floor_that_is_too_close_gives_way():
    assert (spaced(1.0, 3.0).floor, spaced(1.0, 1.5).floor) == (1.0, 1.0)
    assert spaced(1.0, 0.3).floor == 0.2
    with pytest.raises(ValueError, match="full: got 0"):
        spaced(1.0, 0)


def environment(gpu, **changes):
    facts = {"device": "cuda", "device_name": gpu.name, "capability": gpu.capability}
    return Environment(**facts, chip=gpu.chip).model_copy(update=changes)


def source(problem, gpu, shape, **changes):
    figures = SpeedFigures(speedup=2.0, naive_ms=1.0, shape=shape)
    found = aimed(problem, figures, environment(gpu, **changes), None)
    assert found.note is None and found.speedup == 2.0
    return found.floor, found.full, found.targets


def test_without_a_calibration_problem_toml_comes_before_the_rates():
    p06 = load_problem("p06")
    large, middle, _ = map(str, p06.benchmarks_on("cuda"))
    h200, h100 = GPUS["H200"], GPUS["H100"]
    assert source(p06, h200, large) == (2.0, 120.0, STATED)
    # Its targets are those of the largest shape: in another one the answer comes to less.
    assert source(p06, h200, middle) == (2.0, 21.0, IMPLIED)
    assert source(p06, h100, middle) == (2.0, 29.0, IMPLIED)
    # What is not known leaves what is stated.
    assert source(p06, h200, middle, chip=None) == (2.0, 120.0, STATED)
    assert source(p06, h100, middle, chip=None) == (2.0, 60.0, STATED)
    assert source(p06, h100, "another shape") == (2.0, 60.0, STATED)
    assert source(load_problem("p01"), h100, "") == (0.25, 0.5, STATED)


def test_a_cpu_has_the_targets_that_are_stated_for_it():
    p01 = load_problem("p01")
    shape = str(p01.benchmarks_on("cpu")[1])
    cpu = Environment(device="cpu", device_name="x86_64")
    found = aimed(p01, SpeedFigures(speedup=2.0, shape=shape), cpu, None)
    assert (found.floor, found.full, found.targets) == (1.0, 2.6, STATED)


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
