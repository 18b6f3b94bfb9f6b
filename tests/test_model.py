"""The records that every room passes on: frozen, strict, writable as JSON whatever they hold.

`python -m tests.test_model` writes docs/record.schema.json anew after a change of the records.
"""

import json
import math

import pytest
from pydantic import BaseModel, ValidationError

from grader.base.text import finite
from grader.spec import findings, grade_record
from grader.spec.grade_record import (
    SEVERITY,
    Amount,
    CheckResult,
    ComponentResult,
    CorrectnessFigures,
    Diagnosis,
    Environment,
    ErrorMap,
    GradeRecord,
    MemoryFigures,
    Message,
    Points,
    ProblemResult,
    Record,
    SpeedFigures,
    TileMap,
    Verdict,
    WorkFigures,
    worst,
)
from grader.spec.problem import ROOT

SCHEMA = ROOT / "docs" / "record.schema.json"
NOT_NUMBERS = [math.nan, math.inf, -math.inf]


def schema_text():
    return json.dumps(GradeRecord.model_json_schema(), indent=1) + "\n"


def make_record(**fields):
    """A record in which every field of every part is filled in."""
    tiles = TileMap(product="dk", batch=1, head=2, tile_q=64, tile_k=32, rows=("#/", "x!"))
    errors = ErrorMap(
        output="out", batch=0, head=1, num_rows=3, num_columns=4, cell_rows=2, cell_columns=2,
        rows=(".1", "N9"),
    )  # fmt: skip
    message = Message(
        headline="out is wrong",
        test="test_plain",
        file="causal_attention.py",
        line=71,
        step=2,
        input="seqlen=128 fp32",
        first="out[0]   got 1   expected 2",
        worst="out[5]   got 1   expected 9",
        extent="100 % of out",
        output="hello\n",
        help="look at the mask",
        repeat="make grade P=p04 SEED=1f",
        tiles=tiles,
        errors=errors,
        not_run=True,
    )
    diagnosis = Diagnosis(id="P04-DIAGONAL", title="own key", note="equals <", help="use <=")
    check = CheckResult(
        id="plain",
        title="whole tiles",
        verdict=Verdict.FAIL,
        step=2,
        weight=2.5,
        points=Points(earned=0.4, available=1.2, possible=1.2),
        message=message,
        diagnosis=diagnosis,
        share=1 / 3,
        cases_passed=1,
        cases_total=3,
        duration_s=0.25,
    )
    work = WorkFigures(
        multiply_adds=Amount(done=3, needed=2, naive=4),
        elements_read=Amount(done=30, needed=20, naive=40),
        distinct_read=Amount(done=300, needed=200, naive=400),
        full=1.1,
        tile_q=64,
        tile_k=32,
        launches=2,
        programs=128,
        shape="seqlen=512",
        tiles=tiles,
    )
    speed = SpeedFigures(speedup=2.5, median_ms=1.5, samples=9, clock="cpu", shape="seqlen=2048")
    memory = MemoryFigures(lengths=(1, 2), extra_bytes=(3, 4), allowed_bytes=(5, 6))
    figures = {"correctness": CorrectnessFigures(checks_passed=1, checks_total=3)}
    figures |= {"work": work, "speed": speed, "memory": memory}
    components = {
        name: ComponentResult(verdict=Verdict.PASS, reason="why", figures=figure)
        for name, figure in figures.items()
    }
    problem = ProblemResult(
        id="p04",
        title="Causal",
        bonus=False,
        verdict=Verdict.FAIL,
        points=Points(earned=0.4, available=1.2, possible=15),
        components=components,
        checks=(check,),
        message=message,
        next_step="p04 step 2",
        unseen="a GPU sees more",
        source_sha256="0" * 64,
        duration_s=1.5,
    )
    environment = Environment(
        device="cuda", device_name="H200", capability=(9, 0), device_bytes=2**37, notes=("old",)
    )
    given = {
        "mode": "local",
        "environment": environment,
        "seed": "1f0c",
        "submission": "problems",
        "problems": (problem,),
        "totals": problem.points,
        "bonus": Points(),
        "interrupted": True,
        "duration_s": 3.5,
    }
    return GradeRecord(**(given | fields))


def records_of(*modules):
    found = [value for module in modules for value in vars(module).values()]
    kinds = {kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)}
    return sorted(kinds - {BaseModel, Record}, key=lambda kind: kind.__name__)


def test_a_record_comes_back_from_json_as_it_was():
    record = make_record()
    assert GradeRecord.model_validate_json(record.to_json()) == record
    assert record.to_json().endswith("}\n")


def test_the_json_of_a_record_moves_no_cursor_and_comes_back():
    message = Message(headline="\x1b[31m \x9b2J \u202e \u2028 \x7f é")
    assert message.to_json().isprintable() is False  # but for its line breaks
    assert message.to_json().replace("\n", "").isprintable()
    assert Message.model_validate_json(message.to_json()) == message


def test_the_schema_in_docs_is_that_of_the_record():
    expected = "write it anew with: python -m tests.test_model"
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), expected


def test_the_outer_keys_of_a_record_are_those_that_instructors_were_told():
    keys = "schema_version mode environment seed submission problems totals bonus"
    assert list(json.loads(make_record().to_json()))[:8] == keys.split()
    assert json.loads(make_record().to_json())["schema_version"] == 2


@pytest.mark.parametrize("kind", records_of(grade_record, findings))
def test_no_record_can_be_changed_or_extended(kind):
    assert kind.model_config["frozen"], f"{kind.__name__} can be changed"
    assert kind.model_config["extra"] == "forbid", f"{kind.__name__} takes any field"


def test_a_field_cannot_be_set_and_an_unknown_one_not_given():
    message = Message(headline="x")
    with pytest.raises(ValidationError, match="frozen"):
        message.headline = "y"
    with pytest.raises(ValidationError, match="colour"):
        Message(headline="x", colour="red")
    text = make_record().to_json().replace('"seed"', '"sneed": 1, "seed"')
    with pytest.raises(ValidationError, match="sneed"):
        GradeRecord.model_validate_json(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema_version": 2', '"schema_version": 1'),
        ('"mode": "local"', '"mode": "for credit"'),
        ('"verdict": "fail"', '"verdict": "perfect"'),
        ('"share": 0.3333333333333333', '"share": 1.5'),
        ('"kind": "speed"', '"kind": "colour"'),
        ('"kind": "work"', '"kind": "speed"'),
        ('"done": 30,', '"done": 30.5,'),
        ('"launches": 2', '"launches": 2, "reads": 9'),
        ('"tile_k": 32', '"tile_k": null'),
        ('"device": "cuda"', '"device": "tpu"'),
        ('"problems": [', '"problems": 3, "other": ['),
    ],
)
def test_what_is_no_record_is_refused_when_it_is_read(old, new):
    text = make_record().to_json()
    assert old in text
    with pytest.raises(ValidationError):
        GradeRecord.model_validate_json(text.replace(old, new, 1))


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_is_null_in_json(value):
    figures = SpeedFigures(speedup=value, worst_error_over_allowed=value, spread_percent=value)
    component = ComponentResult(verdict=Verdict.FAIL, figures=figures)
    problem = make_record().problems[0].model_copy(update={"components": {"speed": component}})
    text = make_record(problems=(problem,)).to_json()
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    written = found["problems"][0]["components"]["speed"]["figures"]
    assert written["speedup"] is None and written["worst_error_over_allowed"] is None
    back = GradeRecord.model_validate_json(text).problems[0].components["speed"].figures
    assert back.speedup is None


@pytest.mark.parametrize(
    "text", ["\ud800", "a\udcffb", "\udfff\ud800", "\x00\x1b[31m", "é漢\U0001f600"]
)
def test_any_text_of_a_submission_can_be_written(text):
    message = Message(headline=text, output=text)
    component = ComponentResult(verdict=Verdict.ERROR, reason=text)
    problem = make_record().problems[0]
    problem = problem.model_copy(update={"message": message, "components": {"work": component}})
    record = make_record(submission=text, problems=(problem,))
    record.to_json().encode("utf-8")
    assert GradeRecord.model_validate_json(record.to_json()) == record


def test_text_without_surrogates_is_kept_as_it_is():
    assert Message(headline="é漢\U0001f600\\ud800").headline == "é漢\U0001f600\\ud800"


def test_a_ratio_of_work_is_what_was_done_over_what_is_needed():
    amount = Amount(done=30, needed=20, naive=50)
    assert (amount.ratio, amount.naive_ratio) == (1.5, 2.5)
    assert Amount(done=3, needed=0, naive=5).ratio == 3.0


def test_kinds_of_work_that_do_not_apply_are_left_out():
    read = Amount(done=3, needed=2, naive=4)
    figures = WorkFigures(elements_read=read, distinct_read=read)
    assert list(figures.amounts) == ["elements read", "different elements read"]
    assert WorkFigures().amounts == {}


def test_points_add_up_without_the_noise_of_binary_fractions():
    tenth = Points(earned=0.1, available=0.1, possible=0.1)
    total = sum([tenth] * 3, Points())
    assert total == Points(earned=0.3, available=0.3, possible=0.3)
    assert "0.30000000000000004" not in total.model_dump_json()


def test_every_verdict_has_a_place_among_the_severities():
    assert sorted(SEVERITY) == sorted(Verdict)
    assert worst([Verdict.PASS, Verdict.FAIL, Verdict.CRASH]) is Verdict.CRASH
    assert worst([Verdict.PASS, Verdict.NOT_MEASURED]) is Verdict.PASS
    assert worst([Verdict.INTERNAL, Verdict.REJECTED]) is Verdict.INTERNAL
    assert worst([]) is Verdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("value", "number"),
    [(3, 3.0), (-2.5, -2.5), (True, None), ("9", None), (None, None), (10**400, None)]
    + [(value, None) for value in NOT_NUMBERS],
)
def test_only_finite_numbers_are_numbers(value, number):
    assert finite(value) == number


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
