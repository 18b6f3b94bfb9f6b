"""A class of many students, made of a real grade record: some right, some wrong in known ways."""

import dataclasses
import functools
import random
from collections.abc import Sequence

import reference
from classroom.records import Fault, FileResult, Student
from classroom.store import Store
from grader.spec.causes import entry_of
from grader.spec.grade_record import (
    CheckResult,
    ComponentResult,
    Diagnosis,
    GradeRecord,
    Message,
    Points,
    ProblemResult,
    Verdict,
)
from grader.spec.problem import ROOT, load_problem
from tests.classes import AT, hand_in, key_of

RECORD = ROOT / "docs" / "records" / "nvidia-h200-2026-11-22.json"


@functools.cache
def record() -> GradeRecord:
    """Return the record of full marks on a GPU."""
    return GradeRecord.model_validate_json(RECORD.read_text(encoding="utf-8"))


@functools.cache
def _mistakes(problem: str) -> dict:
    return {mistake.id: mistake for mistake in reference.mistakes_for(problem)}


def full(problem: str) -> ProblemResult:
    """Return a result of full marks."""
    return next(p for p in record().problems if p.id == problem)


def sped(result: ProblemResult, factor: float) -> ProblemResult:
    """Return a result with another speed-up."""
    speed = result.components["speed"]
    figures = speed.figures.model_copy(update={"speedup": speed.figures.speedup * factor})
    parts = result.components | {"speed": speed.model_copy(update={"figures": figures})}
    return result.model_copy(update={"components": parts})


def wrong(result: ProblemResult, failing: Sequence[str], cause: str | None = None, **message):
    """Return a result in which checks fail, for a known mistake or for none."""
    problem = load_problem(result.id)
    known = _mistakes(result.id)
    diagnosis, step = None, None
    if cause is not None:
        mistake = known[cause]
        figures = {"tile": mistake.tile or "tile_k", **mistake.figures}
        text = entry_of(cause).said(figures, mistake.variant)
        name = f"{result.id.upper()}-{cause}"
        diagnosis = Diagnosis(id=name, **dataclasses.asdict(text))
        step = problem.step_of_cause(cause)
    given = {"headline": "out is wrong", "test": "test_x", "file": problem.file} | message

    def judged(check: CheckResult) -> CheckResult:
        if check.id not in failing:
            return check
        update = {"verdict": Verdict.FAIL, "diagnosis": diagnosis, "step": step, "share": 0.0}
        points = check.points.model_copy(update={"earned": 0.0})
        return check.model_copy(update=update | {"points": points, "message": Message(**given)})

    checks = tuple(judged(check) for check in result.checks)
    earned = round(sum(c.points.earned for c in checks), 1)
    right = result.components["correctness"]
    lost = _without(result, Verdict.SKIPPED)
    lost["correctness"] = right.model_copy(
        update={
            "verdict": Verdict.FAIL,
            "points": right.points.model_copy(update={"earned": earned}),
        }
    )
    points = Points(
        earned=earned, available=result.points.available, possible=result.points.possible
    )
    update = {"verdict": Verdict.FAIL, "checks": checks, "components": lost, "points": points}
    return result.model_copy(update=update)


def stub(result: ProblemResult, step: int = 1) -> ProblemResult:
    """Return the result of a stub whose first empty step is `step`."""
    points = result.points.model_copy(update={"earned": 0.0})
    checks = tuple(
        c.model_copy(update={"verdict": Verdict.NOT_IMPLEMENTED, "points": Points()})
        for c in result.checks
    )
    message = Message(headline=f"{result.id} step {step}", step=step)
    update = {"verdict": Verdict.NOT_IMPLEMENTED, "points": points, "checks": checks}
    lost = _without(result, Verdict.NOT_IMPLEMENTED)
    return result.model_copy(update=update | {"message": message, "components": lost})


def _without(result: ProblemResult, verdict: Verdict) -> dict[str, ComponentResult]:
    """Return the components of a result with nothing earned."""
    return {
        name: ComponentResult(
            verdict=verdict, points=part.points.model_copy(update={"earned": 0.0})
        )
        for name, part in result.components.items()
    }


def stored(result: ProblemResult, data: bytes, version: str = "v1", **fields: object) -> FileResult:
    """Return a result as it is stored."""
    given = {"mode": "official", "seed": "5eed", "graded_at": AT}
    given |= {"environment": record().environment} | fields
    return FileResult(key=key_of(result.id, data, version), result=result, **given)


def fill(store: Store, count: int, seed: int = 1) -> None:
    """Put `count` students with all sorts of results into a store."""
    rng = random.Random(seed)
    store._connection.execute("PRAGMA synchronous = OFF")  # 500 commits; nothing is to last
    problems = [p.id for p in record().problems]
    store.set_students(
        Student(id=f"s{n:04d}", name=f"Student {n}", email=f"s{n}@uni.example", section="A")
        for n in range(count)
    )
    store.set_versions(dict.fromkeys(problems, "v1"))
    results = []
    for n in range(count):
        skill, files = rng.random(), {}
        for at, problem in enumerate(problems):
            if rng.random() > 1.1 + skill / 2 - at / 9:
                continue
            data = f"# {n} {problem}\n".encode()
            files[problem] = data
            draw = rng.random()
            if rng.random() < 0.01:
                store.add(Fault(key=key_of(problem, data), text="worker lost", at=AT))
                continue
            results.append(stored(_drawn(rng, problem, skill, draw), data))
        if files:
            hand_in(store, f"s{n:04d}", files)
    store.save_results(results)


def _drawn(rng: random.Random, problem: str, skill: float, draw: float) -> ProblemResult:
    result, steps = full(problem), len(load_problem(problem).steps)
    result = result.model_copy(update={"duration_s": rng.uniform(9, 60)})
    if draw < 0.25 + skill / 2:
        return sped(result, rng.lognormvariate(-0.4, 0.5))
    if draw > 0.93:
        return stub(result, rng.randint(1, steps))
    checks = [c.id for c in result.checks]
    failing = rng.sample(checks, rng.randint(1, len(checks) - 1))
    causes = [c for s in load_problem(problem).steps for c in s.causes]
    causes = [c for c in causes if c in _mistakes(problem)]
    cause = rng.choice(causes) if causes and rng.random() < 0.7 else None
    return wrong(result, failing, cause)
