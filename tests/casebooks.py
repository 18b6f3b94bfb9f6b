"""Casebooks for tests: filled with cases of known mistakes, or of mistakes that are made up."""

import functools

import torch

import reference
from grader.causes import diagnose, known_mistakes
from grader.causes.diagnose import Casebook
from grader.causes.outputs import Outputs
from grader.causes.rules import sighting
from grader.checks.correctness import expect
from grader.spec.cases import resolve
from grader.spec.causes import Entry
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import load_problem

P03 = load_problem("p03")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


class Book:
    """A casebook, and cases to fill it with: `what` names what came out."""

    def __init__(self, problem=P03):
        self.problem = problem
        self.book = Casebook(problem)
        self.recomputed = 0

    def _case(self, given, dtype):
        case = resolve({"seqlen": 64, "num_q_heads": 2} | given, dtype, "")
        inputs = make_inputs(self.problem, case, case_seed("5eed", case))
        names = self.problem.returns + self.problem.gradients
        return case, inputs, expect(self.problem, case, inputs, names)

    def wrong(self, place, what, given=(), dtype="fp32"):
        """A case that came out as the mistake called `what` has it, or as `what` of the truth."""
        case, inputs, expected = self._case(dict(given), dtype)
        got = dict(expected.truth)
        if callable(what):
            got |= {name: what(value) for name, value in got.items()}
        else:
            mistakes = diagnose.reference.mistakes_for(self.problem.id)
            made = next(m for m in mistakes if m.id == what and m.tile in (None, 32))
            got |= made.fn(dict(inputs.all), case.kwargs)
        got = {n: torch.where(t.isnan(), expected.truth[n], t) for n, t in got.items()}
        own = {n: t.to(torch.float32 if n == "lse" else DTYPES[dtype]) for n, t in got.items()}
        again = functools.partial(self.recompute, inputs, expected)
        wrong = Outputs(self.problem.id, case, inputs, own, expected)
        self.book.add_wrong(place, wrong, again)

    def recompute(self, inputs, expected):
        self.recomputed += 1
        return inputs, lambda: expected

    def right(self, given=(), dtype="fp32"):
        case, inputs, expected = self._case(dict(given), dtype)
        self.book.add_right(case, lambda: (inputs, lambda: expected))

    def named(self):
        """By id, without the problem's prefix, the cases that each cause explains."""
        prefix = f"{self.problem.id.upper()}-"
        causes = self.book.settle()
        assert all(cause.diagnosis.id.startswith(prefix) for cause in causes)
        return {cause.diagnosis.id.removeprefix(prefix): cause.cases for cause in causes}


def made_up(id, change, *, only=lambda inputs, options: True, tile=None):
    """A mistake that adds `change` to the output, of some calls only."""

    def fn(inputs, options):
        exact = {name: tensor.double() for name, tensor in inputs.items()}
        out, lse = reference.noncausal_attention(**exact, **options)
        return {"out": out + change if only(inputs, options) else out, "lse": lse}

    return reference.Mistake(id, ("p03",), fn, tile)


TABLE = {"title": "made up", "note": "with tiles of {tile}", "help": "help"}
SAID = Entry("MADE-UP", "results", TABLE | {"seen": {"note": "seen: ..."}}, {})


def casebooks(monkeypatch):
    """What makes casebooks that know the mistakes they are given and no other."""

    def make(*mistakes):
        monkeypatch.setattr(diagnose.reference, "mistakes_for", lambda problem_id: mistakes)
        for module in (known_mistakes, sighting):
            monkeypatch.setattr(module, "entry_of", lambda id: SAID)
        return Book()

    return make
