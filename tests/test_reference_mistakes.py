"""Every known mistake: it shows, it is what its note says, and it differs from the others."""

import functools
import itertools
import math

import pytest
import torch

import reference
from grader.spec.causes import entry_of
from grader.spec.problem import load_problem
from reference import variants
from reference.variants import Case, attend
from reference.variants_backward import differentiate
from reference.variants_online import online
from tests.shares import drawn
from tests.test_reference import FP64, ORACLES, qkv, random_inputs

# The length is no multiple of any tile, the window of none either, and the sinks lie inside and
# outside of it.
SEQLEN = 133
BAND = {"window_size": 37, "num_sink_tokens": 5}


def mistake_cases(problem_id):
    """(inputs, options) on which every mistake of the problem must show in one at least."""
    problem = load_problem(problem_id)
    if "rows" in problem.base.given:
        generator = torch.Generator().manual_seed(2)
        x = (torch.randn(2500, 2500, generator=generator) + 0.2).to(torch.bfloat16)
        w = (torch.randn(2500, generator=generator) + 0.1).to(torch.bfloat16)
        return [({name: {"x": x, "w": w}[name] for name in problem.inputs}, {})]
    grouped = problem_id >= "p05"
    inputs = random_inputs(
        num_q_heads=6, num_kv_heads=3 if grouped else 6, seqlen=SEQLEN, head_dim=16
    )
    options = {"p06": {"window_size": BAND["window_size"]}, "p07": BAND, "p09": BAND}.get(
        problem_id, {}
    )
    cases = [(inputs, options), (inputs, options | {"softmax_scale": 0.11})]
    if problem_id == "p01":
        cases.append((inputs, {"is_causal": True}))
        longer = random_inputs(num_kv_heads=4, seqlen=48, seqlen_k=72)
        cases += [(longer, {"tile_q": 32, "tile_k": 16}), (longer, {"tile_q": 16, "tile_k": 32})]
        square = random_inputs(num_kv_heads=4, seqlen=80)
        cases += [(square, {"tile_q": 32, "tile_k": 16, "is_causal": True})]
    if problem_id in ("p08", "p09"):  # dq and dk are of one shape
        apart = random_inputs(num_q_heads=2, num_kv_heads=2, seqlen=SEQLEN, head_dim=16)
        cases.append((apart, options))
    if problem_id == "p09":
        logits = torch.linspace(0.5, 3, 6, dtype=torch.float64)
        cases.append((inputs | {"sink_logits": logits}, options))
        longer = random_inputs(num_q_heads=2, num_kv_heads=1, seqlen=600, head_dim=16)
        cases.append((longer, options))
    return cases


def right_outputs(problem_id, inputs, options):
    if problem_id == "p02":
        return {"y": inputs["x"].double() @ inputs["w"].double()}
    if "x" in inputs:
        oracle = getattr(reference, ORACLES[problem_id])
        return {"y": oracle(**{name: x.double() for name, x in inputs.items()})}
    right = reference.attention_gradients(
        *(inputs[name] for name in ("q", "k", "v", "dout")),
        sink_logits=inputs.get("sink_logits"),
        **reference.rules(problem_id, options),
    )
    return {name: x for name, x in right.items() if name in reference.OUTPUTS[problem_id]}


@pytest.fixture(scope="module")
def cases_with_answers():
    return {
        problem_id: [
            (inputs, options, right_outputs(problem_id, inputs, options))
            for inputs, options in mistake_cases(problem_id)
        ]
        for problem_id in ORACLES
    }


def known_mistakes(mistakes_for):
    for problem_id in ORACLES:
        for mistake in mistakes_for(problem_id):
            name = f"{problem_id}-{mistake.id}" + (f"-{mistake.tile}" if mistake.tile else "")
            yield pytest.param(problem_id, mistake, id=name)


@pytest.mark.parametrize("problem_id", drawn(ORACLES, 3))
def test_every_mistake_shows(problem_id, cases_with_answers):
    for mistake in reference.mistakes_for(problem_id):
        largest = largest_error(mistake, cases_with_answers[problem_id])
        assert largest > 1e-3, f"{mistake.id}: the right answer on every case, to {largest:.1e}"


def largest_error(mistake, cases):
    """Return how far a mistake is off, in the first case in which that shows."""
    largest = 0.0
    for inputs, options, right in cases:
        given = {name: x.clone() for name, x in inputs.items()}
        found = mistake.fn(inputs, options)
        assert all(torch.equal(inputs[name], given[name]) for name in inputs)
        assert found and set(found) <= set(right)
        for name, value in found.items():
            assert value.shape == right[name].shape and value.dtype == torch.float64
            assert not torch.isposinf(value).any()
            if value.norm() == 0.0:
                largest = max(largest, right[name].norm().item())
            elif not torch.isnan(value).all():
                largest = max(largest, reference.relative_distance(right[name], value))
        if largest > 1e-3:
            break
    return largest


def tensors_in(found, name=""):
    """All tensors of a result that is kept, with names."""
    if isinstance(found, torch.Tensor):
        yield name, found
    elif isinstance(found, dict):
        for key, part in found.items():
            yield from tensors_in(part, key)
    elif isinstance(found, (tuple, list)):
        for index, part in enumerate(found):
            yield from tensors_in(part, f"{name}{index}.")


@pytest.mark.parametrize("problem_id", [name for name in ORACLES if name != "p02"])
def test_no_mistake_writes_to_what_the_others_share(problem_id, cases_with_answers):
    inputs, options, _ = cases_with_answers[problem_id][0]
    case = variants.case_of(problem_id, inputs, options)
    case.scores()
    for mistake in reference.mistakes_for(problem_id):  # what they share is there after a round
        mistake.predict(inputs, options)
    shared = {name: x for name, x in vars(case).items() if isinstance(x, torch.Tensor)}
    for number, (key, found) in enumerate(case._found.items()):
        of = f"{key[0].__name__} {number}" if isinstance(key, tuple) else key.__name__
        shared |= {f"{of} {name}": x for name, x in tensors_in(found)}
    # Each write in place is counted. A row that sees no key is NaN, which equals nothing.
    before = {name: (x._version, x.nan_to_num(7.0)) for name, x in shared.items()}
    assert {"q", "_scores ", "_attend out"} <= set(shared)
    for mistake in reference.mistakes_for(problem_id):
        mistake.predict(inputs, options)
        assert [n for n, x in shared.items() if x._version != before[n][0]] == [], mistake.id
    assert all(torch.equal(x.nan_to_num(7.0), before[n][1]) for n, x in shared.items())
    assert variants.case_of(problem_id, inputs, options) is case


def test_mistakes_that_show_the_same_keys_share_what_comes_of_it(cases_with_answers):
    inputs, options, _ = cases_with_answers["p06"][0]
    case = Case("p06", inputs, options)
    once, again = (attend(case, case.window(last=-1)) for _ in range(2))
    other = attend(case, case.window(last=-2))
    assert all(once[name] is again[name] and once[name] is not other[name] for name in once)
    nan = once["out"].isnan()
    assert bool(nan[:, :, 0].all()) and not nan[:, :, 1:].any()  # a row that sees no key
    assert not other["out"][:, :, 2:].isnan().any()


@pytest.mark.parametrize("problem_id", [name for name in ORACLES if name != "p02"])
def test_what_mistakes_are_built_from_is_right_when_nothing_is_changed(
    problem_id, cases_with_answers
):
    for inputs, options, right in cases_with_answers[problem_id]:
        case = Case(problem_id, inputs, options)
        found = [attend(case), online(case, 16), online(case, 128), differentiate(case)]
        for name, value in ((name, value) for part in found for name, value in part.items()):
            if name in right:
                torch.testing.assert_close(value, right[name], **FP64)


def test_mistakes_equal_what_their_notes_say():
    # a few, recomputed without the code they are built from
    inputs, options = mistake_cases("p07")[0]
    q, k, v = qkv(inputs)
    found = {m.id: m.fn(inputs, options) for m in reference.mistakes_for("p07") if not m.tile}
    window_size, num_sink_tokens = BAND["window_size"], BAND["num_sink_tokens"]

    def sink_attention(q=q, k=k, v=v, **changes):
        return reference.sink_attention(q, k, v, **(BAND | changes))

    expected = {
        "WINDOW-ONE-SMALLER": sink_attention(window_size=window_size - 1),
        "WINDOW-ONE-LARGER": sink_attention(window_size=window_size + 1),
        "WINDOW-IGNORED": reference.gqa_attention(q, k, v),
        "SINKS-IGNORED": sink_attention(num_sink_tokens=0),
        "SINKS-ONE-FEWER": sink_attention(num_sink_tokens=num_sink_tokens - 1),
        "SINKS-ONE-MORE": sink_attention(num_sink_tokens=num_sink_tokens + 1),
        "SCALE-MISSING": sink_attention(softmax_scale=1.0),
        "SCALE-SQUARED": sink_attention(softmax_scale=1 / 16),
        "K-V-SWAPPED": sink_attention(k=v, v=k),
        "HEADS-ZERO": sink_attention(k=k[:, :1], v=v[:, :1]),
        "HEADS-INTERLEAVED": sink_attention(k=k.repeat(1, 2, 1, 1), v=v.repeat(1, 2, 1, 1)),
        "BATCH-ZERO": sink_attention(k=k[[0, 0]], v=v[[0, 0]]),
    }
    for name, (out, lse) in expected.items():
        torch.testing.assert_close(found[name], {"out": out, "lse": lse}, **FP64)

    # rows one before each query, from the causal result of shifted keys: row i sees j < i
    inputs, options = mistake_cases("p04")[0]
    (mistake,) = (m for m in reference.mistakes_for("p04") if m.id == "DIAGONAL-EXCLUDED")
    out = mistake.fn(inputs, options)["out"]
    q, k, v = qkv(inputs)
    assert torch.isnan(out[:, :, 0]).all()
    expected = reference.causal_attention(q[:, :, 1:], k[:, :, :-1], v[:, :, :-1])[0]
    torch.testing.assert_close(out[:, :, 1:], expected, **FP64)

    # without rescaling, two tiles of which the second holds the larger maximum
    q = torch.tensor([[[[1.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[0.0]] * 16 + [[2.0]]]], dtype=torch.float64).reshape(1, 1, 17, 1)
    v = torch.tensor([[1.0]] * 16 + [[5.0]], dtype=torch.float64).reshape(1, 1, 17, 1)
    tiled = (mistake for mistake in reference.mistakes_for("p03") if mistake.tile == 16)
    found = {mistake.id: mistake.fn({"q": q, "k": k, "v": v}, {}) for mistake in tiled}
    decay = math.exp(-2.0)
    assert found["RESCALE-MISSING"]["out"].item() == pytest.approx((16 + 5) / 17)
    assert found["RESCALE-ACC-MISSING"]["out"].item() == pytest.approx(21 / (16 * decay + 1))
    assert found["RESCALE-SUM-MISSING"]["out"].item() == pytest.approx((16 * decay + 5) / 17)
    assert found["PADDED-KEYS-COUNTED"]["lse"].item() == pytest.approx(math.log(31 + math.e**2))


OF_BRIDGES = list(known_mistakes(reference.bridge_mistakes_for))


@functools.cache
def of_first_step(problem_id):
    if problem_id == "p03":
        ramp = torch.linspace(-3.0, 3.0, 300, dtype=torch.float64)
        given = {"x": ramp + torch.randn(4, 300, generator=torch.Generator().manual_seed(0))}
        return [(given, {}, {"lse": reference.row_logsumexp(given["x"])})]
    options = {"softmax_scale": 0.3}
    heads = [random_inputs(num_q_heads=6, num_kv_heads=n, seqlen=300, head_dim=16) for n in (3, 6)]
    return [(given, options, right_outputs(problem_id, given, options)) for given in heads]


@pytest.mark.parametrize("problem_id, mistake", OF_BRIDGES)
def test_every_mistake_of_a_first_step_shows(problem_id, mistake):
    for given, options, right in of_first_step(problem_id):
        wrong = mistake.fn(given, options)
        names = [name for name in wrong if name in right]
        if any(reference.relative_distance(right[name], wrong[name]) > 1e-3 for name in names):
            return
    pytest.fail("the right answer in every case")


def test_mistakes_are_described():
    seen = set()
    of_bridges = [param.values[1] for param in OF_BRIDGES]
    own = [m for m in of_bridges if m.id not in {m.id for m in reference.MISTAKES}]
    for mistake in (*reference.MISTAKES, *own):
        figures = {"tile": mistake.tile or "tile_k", **mistake.figures}
        text = entry_of(mistake.id).said(figures, mistake.variant)
        variant = (mistake.id, mistake.tile, text.note)
        # Tiles may shrink to short rows or not, and the text is the same.
        assert variant not in seen or mistake.id == "LAST-COLUMN-COUNTED-AGAIN"
        seen.add(variant)
        assert mistake.id == mistake.id.upper() and " " not in mistake.id
        assert mistake.problems and set(mistake.problems) <= set(ORACLES)
        for line in (text.title, text.note, text.help):
            assert line and not line.endswith(".") and len(line) <= 100 and "\n" not in line
        assert text.note.startswith("your ") and " step" not in text.help
    for problem_id, name in ORACLES.items():
        assert callable(getattr(reference, name))
        assert len(reference.mistakes_for(problem_id)) > 10


def test_mistakes_of_one_problem_differ_from_each_other():
    # Tile variants apart: some tiles give one and the same result at a given length.
    with_logits, options = next(case for case in mistake_cases("p09") if "sink_logits" in case[0])
    apart = random_inputs(num_q_heads=2, num_kv_heads=2, seqlen=SEQLEN, head_dim=16)
    scaled = options | {"softmax_scale": 0.3}
    found = {
        mistake.id: [mistake.fn(inputs, scaled) for inputs in (with_logits, apart)]
        for mistake in reference.mistakes_for("p09")
        if mistake.tile is None
    }

    def are_same(a, b):
        return all(torch.allclose(a[name], b[name], equal_nan=True, rtol=1e-4) for name in a)

    # Norms further apart than those of equal tensors settle most pairs.
    norms = {
        id: [x.nan_to_num().norm().item() for _, x in sorted(outputs.items())]
        for id, (outputs, _) in found.items()
    }
    for (one, a), (other, b) in itertools.combinations(found.items(), 2):
        if set(a[0]) != set(b[0]) or "SINK-LOGIT-ZERO-WHEN-ABSENT" in (one, other):
            continue
        if all(
            math.isclose(x, y, rel_tol=1e-3) for x, y in zip(norms[one], norms[other], strict=True)
        ):
            assert not are_same(a[0], b[0]) or not are_same(a[1], b[1]), (one, other)
