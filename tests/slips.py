"""Mistakes that nobody thought of: `python -m tests.slips --seed b --many 30 [--minutes 10] [pNN]`.

The corpora hold mistakes that somebody had in mind, for which the judge has been made. Here one
expression of one step of a model answer is changed at random: a comparison, an operator, a name for
a near one, a constant, an axis, the order of two arguments, a statement left out. Of the slips that
fail a check, the table counts those whose step and line the judge names, and those whose cause has
a name, or is an error that says itself what is wrong, as that of a name which is not defined;
`--out` records all that was said, `--show` prints what is not right.
A slip takes some 18 CPU seconds.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import re
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from grader.source.steps import step_regions
from grader.spec.problem import load_problem, problem_ids
from tests.forked import in_pool
from tests.harness import judge, model_answer


class Slip(NamedTuple):
    """One change of one line of a step."""

    problem: str
    line: int
    step: int
    kind: str
    old: str
    new: str
    text: str  # the whole file with the change


_COMPARISONS: dict[type, tuple[str, ...]] = {
    ast.Lt: ("<=", ">"), ast.LtE: ("<", ">="), ast.Gt: (">=", "<"), ast.GtE: (">", "<="),
    ast.Eq: ("!=",), ast.NotEq: ("==",),
}  # fmt: skip
_OPERATORS: dict[type, tuple[str, ...]] = {
    ast.Add: ("-",), ast.Sub: ("+",), ast.Mult: ("+", "/"), ast.Div: ("*",),
    ast.FloorDiv: ("%", "*"), ast.Mod: ("//",), ast.BitAnd: ("|",), ast.BitOr: ("&",),
}  # fmt: skip
_TURNED: dict[type, str] = {ast.Sub: "-", ast.Div: "/", ast.FloorDiv: "//"}
_FUNCTIONS = {
    "exp2": "exp", "log2": "log", "exp": "log", "log": "exp", "maximum": "minimum",
    "minimum": "maximum", "max": "min", "sum": "max",
}  # fmt: skip
_AXES = {":, None": "None, :", "None, :": ":, None"}
_NO_VARIABLES = {"tl", "torch", "float", "range", "math", "triton"}


class _Function:
    """A function of an answer, with the names that a slip may put in place of one another."""

    def __init__(self, text: str, node: ast.FunctionDef) -> None:
        self.text, self.node = text, node
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        called = {n.func.id for n in ast.walk(node) if _is_call_by_name(n)}
        self.names = sorted(names - _NO_VARIABLES - called)
        self.stored = collections.Counter(
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        )
        self.stored.update(a.arg for a in node.args.args)

    def said(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""

    def changes(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """What may stand in place of a node: the kind of the slip, and the text."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.said(node.left), self.said(node.comparators[0])
            for other in _COMPARISONS.get(type(node.ops[0]), ()):
                yield "comparison", f"{left} {other} {right}"
        elif isinstance(node, ast.BinOp):
            left, right = self.said(node.left), self.said(node.right)
            for other in _OPERATORS.get(type(node.op), ()):
                yield "operator", f"{left} {other} {right}"
            yield "right part dropped", left
            yield "left part dropped", right
            if turned := _TURNED.get(type(node.op)):
                yield "turned", f"({right}) {turned} ({left})"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield from (("name", other) for other in self._near(node))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield "constant", str(node.value + 1)
            if node.value > 0:
                yield "constant", str(node.value - 1)
        elif (
            isinstance(node, ast.Subscript) and (said := self.said(node.slice).strip("()")) in _AXES
        ):
            yield "axis", f"{self.said(node.value)}[{_AXES[said]}]"
        elif isinstance(node, ast.Call):
            yield from self._calls(node)
        elif isinstance(node, ast.AugAssign):
            yield "accumulation dropped", f"{self.said(node.target)} = {self.said(node.value)}"
            yield "statement dropped", "pass"
        elif isinstance(node, ast.Assign) and self.stored[self.said(node.targets[0])] > 1:
            yield "statement dropped", "pass"

    def _near(self, node: ast.Name) -> list[str]:
        """Two names that share a word or an ending with this one, drawn by its place."""
        if node.id not in self.names:
            return []
        near = [
            name
            for name in self.names
            if name != node.id and (_words(name) & _words(node.id) or name[-3:] == node.id[-3:])
        ]
        place = random.Random(zlib.crc32(f"{node.lineno}{node.col_offset}{node.id}".encode()))
        return place.sample(near, min(2, len(near)))

    def _calls(self, node: ast.Call) -> Iterator[tuple[str, str]]:
        said, first = self.said(node), node.args[:2]
        if len(first) == 2 and all(isinstance(a, (ast.Name, ast.Attribute)) for a in first):
            a, b = map(self.said, first)
            yield "arguments exchanged", said.replace(f"{a}, {b}", f"{b}, {a}", 1)
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "trans":
                yield "transpose dropped", self.said(node.args[0])
            elif other := _FUNCTIONS.get(name):
                yield "function", said.replace(f".{name}(", f".{other}(", 1)


def _is_call_by_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _words(name: str) -> set[str]:
    return set(re.split(r"[_\d]+", name))


def slips(problem: str) -> list[Slip]:
    """All slips of a model answer, each text once."""
    text = model_answer(problem)
    lines, found = text.split("\n"), {}
    steps = {n: s for s, (a, b) in step_regions(text).items() for n in range(a + 1, b)}
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        function = _Function(text, node)
        for inner in ast.walk(node):
            line = getattr(inner, "lineno", 0)
            if line not in steps or inner.end_lineno != line:
                continue
            old = lines[line - 1].encode()  # columns count bytes
            for kind, put in function.changes(inner):
                changed = old[: inner.col_offset] + put.encode() + old[inner.end_col_offset :]
                whole = "\n".join([*lines[: line - 1], changed.decode(), *lines[line:]])
                slip = Slip(problem, line, steps[line], kind, *_stripped(old, changed), whole)
                found.setdefault(whole, slip)
    found.pop(text, None)
    return list(found.values())


def _stripped(*lines: bytes) -> tuple[str, ...]:
    return tuple(line.decode().strip() for line in lines)


def drawn(problem: str, seed: str, many: int) -> list[Slip]:
    """Draw slips of one problem, of each line at most one of a kind."""
    shuffle = random.Random(f"{seed}{problem}").shuffle
    found = slips(problem)
    shuffle(found)
    one_each = list({(slip.line, slip.kind): slip for slip in reversed(found)}.values())
    shuffle(one_each)
    return one_each[:many]


def judge_one(problem: str, seed: str, many: int, index: int, end: float) -> dict[str, Any] | None:
    """Judge one drawn slip: what was changed, and what each check that fails says of it.

    None where that would begin after `end`, a time.monotonic().
    """
    if time.monotonic() > end:
        return None
    slip = drawn(problem, seed, many)[index]
    judged = judge(slip.text, load_problem(problem))
    checks = []
    for check in judged.checks:
        if check.share < 1.0 and check.verdict not in ("not-measured", "skipped"):
            cause, message = check.diagnosis, check.message
            checks.append(
                {
                    "id": check.id,
                    "verdict": str(check.verdict),
                    "cause": cause and cause.id,
                    "title": cause and cause.title,
                    "step": check.step,
                    "lines": [n for n in (message.line, *message.fed_by) if n] if message else [],
                    "headline": message and message.headline,
                }
            )
    points = judged.correctness.points
    said = slip._asdict() | {"points": f"{points.earned:g}/{points.possible:g}", "checks": checks}
    said.pop("text")
    return said


def verdict_on(record: dict[str, Any]) -> tuple[str, str, str]:
    """What most of the failing checks of a slip say of its step, its line and its cause.

    A statement that is left out has no line: the one before it counts, and the one behind it.
    """
    checks = record["checks"]
    if not checks:
        return ("passes", "passes", "passes")
    ((step, _),) = collections.Counter(check["step"] for check in checks).most_common(1)
    line = record["line"]
    near = {line - 1, line, line + 1} if record["kind"] == "statement dropped" else {line}
    half = len(checks) / 2
    return (
        "right step" if step == record["step"] else "wrong step" if step else "no step",
        "its line"
        if sum(not near.isdisjoint(check["lines"]) for check in checks) >= half
        else "another line"
        if sum(bool(check["lines"]) for check in checks) >= half
        else "no line",
        "named"
        if sum(bool(check["cause"]) for check in checks) >= half
        else "said"
        if sum(bool(check["cause"]) or _is_error(check) for check in checks) >= half
        else "no name",
    )


def _is_error(check: dict[str, Any]) -> bool:
    """Whether the code did not run, at a line: Python or Triton says why."""
    return check["verdict"] == "error" and bool(check["lines"])


_COLUMNS = (
    *("right step", "wrong step", "no step"),
    *("its line", "another line", "no line"),
    *("named", "said", "no name"),
)


def table(records: Iterable[dict[str, Any]]) -> Table:
    """Count by problem what was said of the slips that fail a check."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        words = {"slips", *verdict_on(record)}
        for row in (record["problem"], "all"):
            counts[row].update(words)
    shown = Table(
        "",
        "slips",
        "pass",
        title="What was said of random slips",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for word in _COLUMNS:
        shown.add_column(word.replace(" ", "\n"))
    for row in sorted(counts, key=lambda row: (row == "all", row)):
        of = counts[row]
        shown.add_row(row, *(str(of[word]) for word in ("slips", "passes", *_COLUMNS)))
    return shown


def _said(record: dict[str, Any]) -> Iterator[str]:
    """One slip and what was said of it, for a reader."""
    yield f"\n{record['problem']}:{record['line']} step {record['step']} {record['points']}"
    yield f"    {record['old']}\n -> {record['new']}"
    seen = collections.Counter(
        (check["step"], tuple(check["lines"][:5]), check["title"] or check["headline"])
        for check in record["checks"]
    )
    for (step, lines, words), times in seen.most_common(3):
        yield f"    {times}x step {step}, lines {list(lines)}: {words}"


def main(argv: list[str] | None = None) -> int:
    """Judge drawn slips and print the table; return 1 if a step is wrong too often."""
    parser = argparse.ArgumentParser(prog="python -m tests.slips", description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(problem_ids()))
    parser.add_argument("--seed", default="a", help="draws other slips")
    parser.add_argument("--many", type=int, default=20, help="slips of each problem")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin none after that")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", help="append one JSON line for each slip")
    parser.add_argument("--show", action="store_true", help="print those whose step is not right")
    options = parser.parse_args(argv)
    records, console = [], Console()
    for record in _judged(options, console):
        if isinstance(record, Exception):
            console.print(f"not judged: {type(record).__name__}: {record}", markup=False)
            continue
        records.append(record)
        if options.out:
            with open(options.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if options.show and verdict_on(record)[0] in ("wrong step", "no step"):
            console.print(*_said(record), sep="\n", markup=False, highlight=False)
    console.print(table(records))
    words = collections.Counter(verdict_on(record)[0] for record in records)
    failing = len(records) - words["passes"]
    return int(words["wrong step"] > _WRONG_STEPS * failing)


# Of the slips that fail, at the most so many are said to lie in a step in which they do not: of
# seeds d and e (2026-11-27) these were 0 of 83, and of seeds f and g, which nobody had looked at
# before, 0 of 39.
_WRONG_STEPS = 0.04


def _judged(options: argparse.Namespace, console: Console) -> Iterator[dict[str, Any] | Exception]:
    end = time.monotonic() + 60.0 * options.minutes
    tasks = [
        (problem, options.seed, options.many, index, end)
        for problem in options.problems
        for index in range(len(drawn(problem, options.seed, options.many)))
    ]
    random.Random(options.seed).shuffle(tasks)
    found = in_pool(judge_one, tasks, options.jobs)
    for _, record in track(found, "slips", len(tasks), console=console):
        if record is not None:
            yield record


if __name__ == "__main__":
    sys.exit(main())
