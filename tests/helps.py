"""Every help that may stand under a cause, and the code that it names."""

import ast
import functools
import re
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

import reference
from grader.source.steps import step_regions
from grader.spec.causes import entries, entry_of
from grader.spec.problem import ROOT, Problem, load_problem, problem_ids

_LIBRARIES = {"tl": tl, "torch": torch, "triton": triton}
_NAME = re.compile(r"(?<![\w./\"'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?=([(\[]?))")
_FIELD = re.compile(r"\{\w+\}")  # what a rule fills in, such as the name of an operand
_MATHEMATICS = {"exp", "exp2", "log2", "ln", "sqrt", "float"}


def helps() -> Iterator[tuple[str, str, str]]:
    """Yield id, problem and help: of the known mistakes, and of the rules, in each of its forms."""
    known = set()
    for problem in problem_ids():
        of_problem = reference.mistakes_for(problem), reference.bridge_mistakes_for(problem)
        for mistake in (m for mistakes in of_problem for m in mistakes):
            known.add(mistake.id)
            yield mistake.id, problem, entry_of(mistake.id).templates(mistake.variant)["help"]
    for id, entry in entries().items():
        forms = [("seen",), *(form for form in entry.forms() if form[0] == "seen")]
        problems = entry.table.get("problems", "").split() if id in known else entry.problems
        for form in [*forms, *([] if id in known else [()])]:
            text = entry.templates(*form)["help"]
            for problem in problems if form in entry.forms() or id not in known else ():
                # "group_size" is said where it is more than 1.
                if "group_size" not in text or "num_kv_heads" in stub(load_problem(problem)):
                    yield id, problem, _FIELD.sub("x" if problem == "p02" else "k", text)


def stub(problem: Problem) -> str:
    """Return the text of a problem's stub."""
    return (ROOT / "problems" / problem.id / problem.file).read_text("utf-8")


def unknown(id: str, problem: Problem, help: str) -> set[str]:
    """Return the code in a help that the student of a problem has not got.

    That is what neither the stub nor the handout has. Of a cause with a step, a name of the stub
    has to be one of the step's function.
    """
    step, source = problem.step_of_cause(id), stub(problem)
    own = source if step is None else _function_of(source, step)
    has = (_words(*_handout(problem.id)) - _words(source)) | _words(own)
    return {name for name in _code(help) if not _exists(name, has)}


@functools.cache
def _function_of(source: str, step: int) -> str:
    line = step_regions(source)[step][0]
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    begun = [n for n in functions if n.lineno <= line]  # it may end before its empty step
    return ast.get_source_segment(source, max(begun, key=lambda n: n.lineno)) or ""


@functools.cache
def _handout(problem_id: str) -> tuple[str, ...]:
    folder = ROOT / "problems" / problem_id
    return tuple((folder / name).read_text("utf-8") for name in ("README.md", "HINTS.md"))


@functools.cache
def _words(*texts: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", "\n".join(texts)))


def _code(help: str) -> set[str]:
    """Return what is written as code: with an underscore, dotted, called or indexed."""
    found = _NAME.findall(help)
    code = {name for name, behind in found if behind or "_" in name or "." in name}
    return {name for name in code if not name.endswith(".md")}


def _exists(name: str, has: set[str]) -> bool:
    library, *path = name.split(".")
    if library in _LIBRARIES and path:
        return hasattr(_LIBRARIES[library], path[0])
    if name in _MATHEMATICS or hasattr(tl, name) or hasattr(torch.Tensor, name):
        return True
    return library in has  # what follows a dot is PyTorch's or Triton's
