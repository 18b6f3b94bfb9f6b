"""Whether a file is one that nobody has worked in yet: where its entry, or its stub, raises."""

from __future__ import annotations

import ast

from grader.base.functions import is_reached
from grader.source.steps import RAISE, code_of_steps
from grader.spec.problem import Problem


def raised_at(
    problem: Problem, tree: ast.Module, entry: ast.FunctionDef, text: str
) -> tuple[int, str] | None:
    """Return line and text of the NotImplementedError that each call comes to, if there is one."""
    return _unconditional(entry) or _untouched(problem, tree, text)


def _unconditional(entry: ast.FunctionDef) -> tuple[int, str] | None:
    """Return line and text of a top-level `raise NotImplementedError` no return comes before."""
    for statement in entry.body:
        if isinstance(statement, ast.Raise) and statement.exc is not None:
            call = statement.exc
            name = call.func if isinstance(call, ast.Call) else call
            if isinstance(name, ast.Name) and name.id == "NotImplementedError":
                args = call.args if isinstance(call, ast.Call) else []
                text = args[0].value if args and isinstance(args[0], ast.Constant) else ""
                return statement.lineno, text if isinstance(text, str) else ""
        if any(isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom)) for n in ast.walk(statement)):
            return None
    return None


def _untouched(problem: Problem, tree: ast.Module, text: str) -> tuple[int, str] | None:
    """Return line and text of the `raise NotImplementedError` of a stub of which no step is done.

    None if a step is, or if no entry point comes near that line: who has written a kernel of his
    own may have left the stub's lines where they were.
    """
    code = [line for lines in code_of_steps(text).values() for line in lines]
    raised = [(number, line) for number, line in code if line.startswith(RAISE)]
    own = [number for number, line in code if not line.startswith((RAISE, '"', ")"))]
    if not raised or own:
        return None
    entries = {problem.entry, *([problem.bridge.entry] if problem.bridge else [])}
    number = raised[0][0]
    return (number, "") if is_reached(tree, entries, number) else None
