"""Requests and events between the judge's processes: round trips, and garbage that is no event."""

import json
import random

import pytest
from pydantic import ValidationError

from grader.spec.findings import (
    Alive,
    CaseBegins,
    CaseEnds,
    CaseFailed,
    CauseFound,
    Evidence,
    Finding,
    Measured,
    MeasureRequest,
    Phase,
    SourceFile,
    TestRequest,
    WorkCounted,
    read_event,
    write_event,
)
from grader.spec.grade_record import (
    Amount,
    Diagnosis,
    MemoryFigures,
    Message,
    SpeedFigures,
    TileMap,
    Verdict,
    WorkFigures,
)
from grader.spec.problem import load_problem, problem_ids
from grader.spec.problem_tables import WORK

ANY_BYTES = [
    b"",
    bytes(range(256)),
    b"\xff\xfe\x00\xd8",
    b"\0" * 1000,
    "# é漢\U0001f600\r\n\u2028".encode(),
    random.Random(5).randbytes(128 * 1024),
]
EVENTS = [
    Alive(),
    CaseBegins(check="plain", index=3),
    CaseEnds(
        check="plain",
        index=0,
        finding=Finding(
            verdict=Verdict.FAIL,
            message=Message(headline="out is wrong", output="a\nb\x1b[0m", line=3, not_run=True),
            wrong_outputs=("dq", "dk"),
            margin=12.5,
            duration_s=0.25,
            after_calls=True,
        ),
        spent_s=1.5,
        lost_s=0.5,
    ),
    CauseFound(
        diagnosis=Diagnosis(id="P04-X", title="t", note="n", help="h"),
        step=None,
        cases=(("plain", 0), ("half", 12)),
    ),
    CauseFound(
        diagnosis=Diagnosis(id="P04-X", title="t", note="n", help="h"),
        step=3,
        cases=(("plain", 0),),
        line=77,
    ),
    WorkCounted(
        evidence=Evidence(
            figures=WorkFigures(
                multiply_adds=Amount(done=2**40, needed=2**39, naive=2**62),
                full=1.1,
                tile_q=64,
                launches=2,
                shape="seqlen=512",
                tiles=TileMap(
                    product="out", batch=0, head=7, tile_q=16, tile_k=16, rows=("#/ox!2.",) * 48
                ),
            )
        )
    ),
    WorkCounted(evidence=Evidence(verdict=Verdict.FAIL, reason="kernels read 0 elements")),
    Phase(problem="p01", text="speed of your answer", submission=True),
    Measured(
        problem="p01",
        speed=Evidence(figures=SpeedFigures(speedup=2.5, clock="cpu")),
        memory=Evidence(figures=MemoryFigures(lengths=(1, 2), extra_bytes=(3, 4))),
    ),
    Measured(
        problem="p01",
        speed=Evidence(verdict=Verdict.CRASH, reason="died"),
        memory=Evidence(verdict=Verdict.NOT_MEASURED, reason="busy"),
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event)
def test_an_event_is_one_line_and_comes_back(event):
    line = write_event(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert read_event(line) == event
    assert read_event(line.rstrip(b"\n")) == event


def test_the_longest_message_of_a_case_is_still_an_event():
    # The tail of the output is 16 KiB and a reply's text 2 KiB, each byte six characters of JSON.
    message = Message(headline="\x01" * 600, output="\x01" * 16 * 1024, extent="\x01" * 2048)
    finding = Finding(verdict=Verdict.CRASH, message=message)
    event = CaseEnds(check="plain", index=0, finding=finding)
    assert read_event(write_event(event)) == event


def test_error_over_allowed_may_be_infinite():
    event = CaseEnds(check="a", index=0, finding=Finding(verdict="fail", margin=float("inf")))
    back = read_event(write_event(event))
    assert back.finding.verdict is Verdict.FAIL and back.finding.margin is None


def begin(index):
    return b'{"event": "begin", "check": "plain", "index": ' + index + b"}"


def end(finding, rest=b""):
    return b'{"event": "end", "check": "plain", "index": 0, "finding": ' + finding + rest + b"}"


PASS = b'{"verdict": "pass"}'
GARBAGE = {
    "nothing": b"",
    "noise": random.Random(3).randbytes(4096),
    "null": b"null",
    "a number": b"7",
    "a list of events": b'[{"event": "alive"}]',
    "not a number": b"NaN",
    "5,000 digits": b"9" * 5000,
    "an index of 5,000 digits": begin(b"9" * 5000),
    "an infinite index": begin(b"1e999"),
    "an index in words": begin(b'"first"'),
    "half a line": write_event(EVENTS[2])[:-20],
    "two events": b'{"event": "alive"}{"event": "alive"}',
    "closed lists in lists": b"[" * 5_000 + b"]" * 5_000,
    "tables in tables": b'{"event":' * 20_000,
    "no UTF-8": b'{"event": "begin", "check": "\xff\xfe", "index": 0}',
    "half a surrogate pair": b'{"event": "begin", "check": "\\ud800", "index": 0}',
    "UTF-16": '{"event": "alive"}'.encode("utf-16"),
    "a NUL": b'{"event": "alive"}\0',
    "a huge line": b'{"event": "phase", "problem": "' + b"x" * 300_000 + b'", "text": ""}',
    "an unknown event": b'{"event": "points", "earned": 100}',
    "an event that is a list": b'{"event": ["alive"]}',
    "an unknown field": b'{"event": "alive", "points": 100}',
    "a finding that is null": end(b"null"),
    "a verdict that is none": end(b'{"verdict": "perfect"}'),
    "a message without headline": end(b'{"verdict": "fail", "message": {}}'),
    "time that is not a number": end(PASS, b', "spent_s": NaN'),
    "time without end": end(PASS, b', "lost_s": 1e999'),
    "cases that are no pairs": b'{"event": "cause", "diagnosis": {"id": "a", "title": "b",'
    b' "note": "c", "help": "d"}, "step": 1, "cases": [["plain"], 3]}',
    "a line that is a text": b'{"event": "cause", "diagnosis": {"id": "a", "title": "b",'
    b' "note": "c", "help": "d"}, "step": 1, "cases": [], "line": "x"}',
    "work without evidence": b'{"event": "work"}',
    "work that is not counted": b'{"event": "work", "evidence": {"figures": {"kind": "work",'
    b' "multiply_adds": {"done": 1.5, "needed": 1, "naive": 2}}}}',
    "figures of no kind": b'{"event": "measured", "problem": "p01",'
    b' "speed": {"figures": {"kind": "colour"}}, "memory": {}}',
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_no_event_and_no_exception(name):
    assert read_event(GARBAGE[name]) is None


def test_a_line_that_lost_or_changed_any_byte_raises_nothing():
    line = bytearray(write_event(EVENTS[2]).rstrip())
    generator = random.Random(7)
    for _ in range(3000):
        broken = bytearray(line)
        for _ in range(generator.randint(1, 4)):
            broken[generator.randrange(len(broken))] = generator.randrange(256)
        read_event(bytes(broken[: generator.randint(0, len(broken))]))


@pytest.mark.parametrize("data", ANY_BYTES, ids=lambda data: f"{len(data)} bytes")
def test_a_source_travels_byte_for_byte(data):
    source = SourceFile.of("p02", data)
    assert source.data == data
    request = TestRequest(source=source, device="cpu", seed="5eed")
    text = request.model_dump_json()
    text.encode("ascii")
    assert TestRequest.model_validate_json(text).source.data == data
    several = MeasureRequest(sources=(source, SourceFile.of("p03", b"#")), device="cuda")
    back = MeasureRequest.model_validate_json(several.model_dump_json())
    assert [file.data for file in back.sources] == [data, b"#"]


def test_a_request_comes_back_as_it_was():
    request = TestRequest(
        source=SourceFile.of("p02", b"x = 1\n"),
        device="cuda",
        seed="5eed",
        done=(("plain", 0), ("half", 3)),
        spent_s=3.25,
        lost_s=2.5,
        compile_workers=4,
    )
    assert TestRequest.model_validate_json(request.model_dump_json()) == request


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"cpu"', '"tpu"'),
        ('"seed"', '"sneed"'),
        ('"spent_s":0.0', '"spent_s":null'),
        ('"data":"eA=="', '"data":"eA"'),
    ],
)
def test_a_request_that_does_not_fit_is_an_error_at_once(old, new):
    request = TestRequest(source=SourceFile.of("p02", b"x"), device="cpu", seed="5eed")
    text = request.model_dump_json()
    assert old in text
    with pytest.raises(ValidationError):
        TestRequest.model_validate_json(text.replace(old, new))


def test_evidence_may_quote_a_path_that_is_no_utf8():
    reason = "the judge failed: FileNotFoundError: '/tmp/\udcff'"
    evidence = Evidence(verdict=Verdict.INTERNAL, reason=reason)
    event = Measured(problem="p01", speed=evidence, memory=evidence)
    assert read_event(write_event(event)) == event


def test_a_cause_that_was_seen_puts_its_line_and_step_in_place_of_the_messages():
    message = Message(headline="out is wrong", line=3, step=1)
    diagnosis = Diagnosis(id="P04-X", title="t", note="n", help="h")
    cause = CauseFound(diagnosis=diagnosis, step=None, cases=())
    assert cause.located(message) == message
    located = cause.model_copy(update={"line": 77}).located(message)
    assert located == Message(headline="out is wrong", line=77)
    assert cause.model_copy(update={"line": 77, "step": 2}).located(message).step == 2


def test_no_check_of_a_problem_has_the_name_under_which_work_is_counted():
    checks = {check.id for id in problem_ids() for check in load_problem(id).checks}
    assert WORK not in checks and "plain" in checks


def test_a_failed_case_says_what_it_came_to():
    finding = Finding(verdict=Verdict.FAIL, message=Message(headline="out is wrong"))
    assert str(CaseFailed(finding)) == "out is wrong"
    assert str(CaseFailed(Finding(verdict=Verdict.TIMEOUT))) == "timeout"
    assert json.loads(finding.model_dump_json())["verdict"] == "fail"
