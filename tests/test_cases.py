"""What a problem.toml comes to: cases that depart from the base case, sizes drawn from the seed."""

import dataclasses

import pytest

from grader.spec.cases import Case, Draw, resolve
from grader.spec.problem import read_problem
from tests.test_manifest import TEXT, write


@pytest.fixture
def problem(tmp_path):
    return read_problem(write(tmp_path, TEXT))


def test_a_case_is_the_base_case_with_what_it_sets():
    given = {"seqlen": 65, "num_q_heads": 4, "window_size": 8, "dtypes": ("fp32",), "gpu": True}
    case = resolve(given, "fp16", "place", exact=True)
    assert case == Case(
        num_q_heads=4,
        num_kv_heads=4,
        seqlen_q=65,
        seqlen_k=65,
        dtype="fp16",
        gpu=True,
        exact=True,
        options=(("window_size", 8),),
    )
    assert case.kwargs == {"window_size": 8}
    assert given["seqlen"] == 65


def test_a_length_of_its_own_goes_before_the_common_one():
    case = resolve({"seqlen": 64, "seqlen_k": 96, "num_q_heads": 4, "num_kv_heads": 2}, "fp32", "")
    assert (case.seqlen_q, case.seqlen_k, case.num_kv_heads) == (64, 96, 2)


def test_a_case_is_said_in_words_without_what_is_as_usual():
    case = resolve({"seqlen": 65, "num_q_heads": 4, "softmax_scale": 0.5}, "fp16", "")
    assert str(case) == "batch=1 num_q_heads=4 seqlen=65 head_dim=64 softmax_scale=0.5 fp16"
    case = dataclasses.replace(
        case, num_kv_heads=2, seqlen_k=7, layout="padded", values="large", options=(), invalid="k"
    )
    assert str(case).split()[2:6] == ["num_kv_heads=2", "seqlen_q=65", "seqlen_k=7", "head_dim=64"]
    assert str(case).endswith("fp16 layout=padded values=large invalid=k")
    rows = resolve({"rows": 3, "cols": 4}, "bf16", "")
    assert str(rows) == "rows=3 cols=4 bf16"
    infinite = resolve(
        {"seqlen": 8, "sink_logits": True, "sink_logits_values": "neg_inf"}, "fp32", ""
    )
    assert "sink_logits=-inf" in str(infinite)


def test_only_a_check_of_precision_is_exact(problem):
    exact = {c.id for c in problem.checks for k in problem.cases(c, "1").values() if k.exact}
    assert exact == {"lse"}


def test_bf16_runs_on_the_gpu_where_there_is_one(problem):
    cases = problem.cases(problem.check("half"), "5eed")
    assert {i: c.dtype for i, c in cases.items()} == {0: "fp16", 1: "bf16", 2: "fp32"}
    assert [c.gpu for c in cases.values()] == [False, True, False]


def test_what_a_check_judges(problem, tmp_path):
    assert problem.judged(problem.check("lse")) == ("lse",)
    assert problem.judged(problem.check("plain")) == ("out",)
    text = TEXT.replace("gradients = []", 'gradients = ["dq", "dk", "dv", "dsink_logits"]')
    path = tmp_path / "p04" / "problem.toml"
    path.write_text(text.replace('["lse"]', '["dsink_logits"]'))
    backward = read_problem(path)
    assert backward.judged(backward.check("plain")) == ("dq", "dk", "dv")
    assert backward.judged(backward.check("lse")) == ("dsink_logits",)


def test_points_steps_targets_and_shapes(problem):
    assert problem.total_points == 15 and problem.points_of("memory") == 2
    assert problem.step_of_cause("SHIFTED") == 2 and problem.step_of_cause("OTHER") is None
    assert problem.targets("NVIDIA H200").full == 10 and problem.targets("NVIDIA L4").full == 8
    shapes = problem.benchmarks_on("cuda")
    assert [(c.seqlen_k, c.dtype) for c in shapes] == [(4096, "bf16"), (2048, "fp32")]
    assert problem.benchmarks_on("cpu") == ()
    short, long = problem.memory_cases("cuda")
    assert (short.seqlen_q, short.seqlen_k, long.seqlen_q, long.seqlen_k) == (
        4096,
        4096,
        8192,
        8192,
    )
    assert short.num_kv_heads == 2 and problem.memory_cases("cpu") is None


def drawn(problem, check, index, seeds):
    cases = (problem.cases(problem.check(check), f"{seed:x}") for seed in seeds)
    return [found[index].seqlen_k for found in cases]


def test_a_draw_takes_every_size_of_its_list_and_no_other(problem):
    found = drawn(problem, "plain", 1, range(200))
    assert {n: found.count(n) > 40 for n in set(found)} == dict.fromkeys((384, 512, 640), True)


def test_a_range_includes_both_ends_and_keeps_its_step(problem):
    assert Draw.model_validate({"from": 4, "to": 10, "step": 3}).choices == (4, 7, 10)
    assert Draw.model_validate({"from": 4, "to": 9, "step": 3}).choices == (4, 7)
    assert Draw.model_validate({"draw": [5, 9]}).choices == (5, 9)
    found = drawn(problem, "ragged", 1, range(300))
    assert all(130 <= n <= 400 and (n - 130) % 3 == 0 for n in found)
    assert len(set(found)) > 70


def test_a_draw_depends_on_the_seed_and_the_place_alone(problem, tmp_path):
    seeds = range(60)
    assert drawn(problem, "plain", 1, seeds) == drawn(problem, "plain", 1, seeds)
    places = [drawn(problem, "plain", 1, seeds), drawn(problem, "ragged", 1, seeds)]
    assert places[0] != places[1]
    # Neither the device nor what stands in other checks has a part in it.
    for seed in ("1", "2", "3"):
        check = problem.check("plain")
        assert problem.cases(check, seed) == problem.cases(check, seed)
    path = tmp_path / "p04" / "problem.toml"
    path.write_text(TEXT.replace("seqlen = 256 }]", "seqlen = 512 }, { seqlen = 128 }]"))
    assert drawn(read_problem(path), "ragged", 1, seeds) == places[1]


def test_two_drawn_sizes_of_a_case_are_drawn_apart():
    draw = Draw.model_validate({"from": 1, "to": 50})
    cases = [resolve({"rows": draw, "cols": draw}, "fp32", str(i)) for i in range(50)]
    assert sum(case.rows == case.cols for case in cases) < 10


@pytest.mark.parametrize(
    ("batch", "q_heads", "kv_heads", "seqlen", "small"),
    [
        (2, 3, 3, 128, (2, 3, 3)),
        (8, 24, 24, 512, (1, 12, 12)),
        (8, 24, 4, 512, (1, 12, 2)),
        (8, 7, 7, 1024, (1, 1, 1)),
        (8, 7, 1, 1024, (1, 7, 1)),
        (4, 1, 1, 4096, (1, 1, 1)),
    ],
)
def test_on_the_machine_a_case_has_few_batches_then_few_heads(
    batch, q_heads, kv_heads, seqlen, small
):
    heads = {"num_q_heads": q_heads, "num_kv_heads": kv_heads}
    case = resolve({"batch": batch, "seqlen": seqlen, **heads}, "bf16", "").small
    assert (case.batch, case.num_q_heads, case.num_kv_heads, case.seqlen_k) == (*small, seqlen)
