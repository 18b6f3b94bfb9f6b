"""Every help that may stand under a cause, and the code that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

import reference
from grader.source.submission import step_regions
from grader.spec.problem import ROOT, Problem, load_problem, problem_ids
from tests.errors.causes import all_ids, cause, written

_LIBRARIES = {"tl": tl, "torch": torch, "triton": triton}
_NAME = re.compile(r"(?<![\w./\"'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?=([(\[]?))")
_OPERAND = "\0"  # in place of what a rule fills in
_MATHEMATICS = {"exp", "exp2", "log2", "ln", "sqrt", "float"}


def helps() -> Iterator[tuple[str, str, str]]:
    """Yield id, problem and help: of the known mistakes, of the rules and of the pages."""
    for problem in problem_ids():
        of_problem = reference.mistakes_for(problem), reference.bridge_mistakes_for(problem)
        for mistake in (m for mistakes in of_problem for m in mistakes):
            yield mistake.id, problem, mistake.help
    for path in sorted((ROOT / "grader" / "causes" / "rules").glob("*.py")):
        for id, text, of_groups in _of_rules(ast.parse(path.read_text("utf-8"))):
            for problem in cause(id).problems:
                if not of_groups or "num_kv_heads" in stub(load_problem(problem)):
                    yield id, problem, text.replace(_OPERAND, "x" if problem == "p02" else "k")
    for id, text in written().items():
        for problem in cause(id).problems if "help" in text else ():
            yield id, problem, text["help"]


def _of_rules(tree: ast.Module) -> Iterator[tuple[str, str, bool]]:
    """Yield id, help and whether it is of query heads in groups, of each Sighting in a module."""
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        given = [n for n in ast.walk(function) if isinstance(n, ast.Assign)]
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Sighting":
                continue
            named = {k.arg: k.value for k in call.keywords}
            id, help = (
                (*call.args, named.get("id"))[0],
                named.get("help", (*call.args, *[None] * 4)[3]),
            )
            ids = [n.value for n in ast.walk(id) if isinstance(n, ast.Constant)] if id else []
            sides = [(help, False)]
            if isinstance(help, ast.IfExp):
                of_groups = ast.unparse(help.test).startswith("group")
                sides = [(help.body, of_groups), (help.orelse, False)]
            elif isinstance(help, ast.Name):
                sides = [(n.value, False) for n in given if ast.unparse(n.targets[0]) == help.id]
            for side, of_groups in sides:
                for known in all_ids() & set(ids):
                    yield known, _text(side), of_groups


def _text(help: ast.expr | None) -> str:
    """Return the text of an expression, with the name of an operand where it is filled in."""
    if isinstance(help, ast.JoinedStr):
        return "".join(n.value if isinstance(n, ast.Constant) else _OPERAND for n in help.values)
    if help is None:
        return ""
    return " ".join(str(n.value) for n in ast.walk(help) if isinstance(n, ast.Constant))


def stub(problem: Problem) -> str:
    """Return the text of a problem's stub."""
    return (ROOT / "problems" / problem.id / problem.file).read_text("utf-8")


def unknown(id: str, problem: Problem, help: str) -> set[str]:
    """Return the code in a help that the student of a problem has not got.

    That is what neither the stub nor the handout has. Of a cause with a step, a name of the stub
    has to be one of the step's function.
    """
    folder, source = ROOT / "problems" / problem.id, stub(problem)
    has = _words(*((folder / name).read_text("utf-8") for name in ("README.md", "HINTS.md")))
    step = problem.step_of_cause(id)
    own = source
    if step is not None:
        line = step_regions(source)[step][0]
        functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
        function = next(n for n in functions if n.lineno <= line <= (n.end_lineno or 0))
        own = ast.get_source_segment(source, function) or ""
    has = (has - _words(source)) | _words(own)
    return {name for name in _code(help) if not _exists(name, has)}


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
