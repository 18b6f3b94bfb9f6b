"""What a submission imports from `given`, the assignment's own package: found by its text."""

from __future__ import annotations

import ast
import dataclasses
import functools

from grader.spec.grade_record import Verdict
from grader.spec.problem import GIVEN, Problem, load_problem, problem_ids

_OTHER_RELEASE = "; a file of another release? CHANGELOG.md says what has changed"


@dataclasses.dataclass(frozen=True)
class BadImport:
    """An import of a module or name that does not exist, or is not open to this problem."""

    line: int
    headline: str
    verdict: Verdict


def bad_import(problem: Problem, tree: ast.Module) -> BadImport | None:
    """Return the first import from `given` that `problem` cannot have."""
    for node in ast.walk(tree):
        for module, names in _imported(node):
            if module not in given_modules():
                some = ", ".join(sorted(problem.given)) or "none"
                headline = f"no module given.{module}: expected one of {some}"
                return BadImport(node.lineno, headline + _OTHER_RELEASE, Verdict.ERROR)
            if module not in problem.given:
                return BadImport(node.lineno, _closed(problem, module), Verdict.REJECTED)
            unknown = [name for name in names if name not in (*public_names(module), "*")]
            if unknown:
                headline = (
                    f"given.{module} has no {unknown[0]!r}: expected some of"
                    f" {', '.join(public_names(module))}"
                )
                return BadImport(node.lineno, headline + _OTHER_RELEASE, Verdict.ERROR)
    return None


def _imported(node: ast.AST) -> list[tuple[str, list[str]]]:
    """Return modules of `given` and what is imported from each."""
    if isinstance(node, ast.Import):
        paths = [alias.name.split(".") for alias in node.names]
        return [(path[1], []) for path in paths if path[0] == "given" and len(path) > 1]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        package, _, module = node.module.partition(".")
        if package == "given" and module:
            return [(module, [alias.name for alias in node.names])]
        if package == "given":
            return [(alias.name, []) for alias in node.names if alias.name != "*"]
    return []


def _closed(problem: Problem, module: str) -> str:
    users = [p for p in map(load_problem, problem_ids()) if module in p.given and p.id > problem.id]
    if not users:
        return f"given.{module} is not for {problem.id}: expected {', '.join(problem.given)}"
    return f"given.{module} opens with {users[0].id}: it holds what {problem.id} asks you to write"


@functools.cache
def given_modules() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in GIVEN.glob("[a-z]*.py")))


@functools.cache
def public_names(module: str) -> tuple[str, ...]:
    """Return the functions and constants that a module defines itself."""
    names = []
    for node in ast.parse((GIVEN / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return tuple(name for name in names if not name.startswith("_"))
