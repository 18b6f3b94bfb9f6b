"""docs/tracing.md: its sample is what the command prints, and its commands are understood.

`python -m tests.test_trace_page` writes the sample anew.
"""

import re
import shlex

from grader.commands.cli import parser_of
from grader.commands.trace.command import render
from grader.commands.trace.wanted import Wanted
from grader.spec.problem import ROOT, load_problem
from grader.spec.trace_record import TRACED
from tests.forked import forked_workers
from tests.harness import model_answer
from tests.mutants.forward import SUM
from tests.tracing import trace

PAGE = ROOT / "docs" / "tracing.md"
BEGIN, END = "<!-- trace of p03 unequal:1 with the seed 5eed -->\n", "<!-- end of trace -->"
COMMAND = re.compile(r"^make trace (.*)$", re.MULTILINE)


def page_with_sample() -> str:
    text = PAGE.read_text("utf-8")
    source = model_answer("p03").replace(SUM, "running_sum = running_sum + tl.sum(p, 1)")
    sample = render(trace("p03", source, "unequal:1", seed="5eed"))
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}```\n{sample}```\n{rest[rest.index(END) :]}"


def rounded(page: str) -> list[str]:
    """The words of a page, its numbers to four digits: the last ones differ between processors."""
    numbers = re.compile(r"-?\d+\.\d+")
    return numbers.sub(lambda number: f"{float(number[0]):.4g}", page).split()


def test_the_sample_is_what_is_printed():
    with forked_workers():
        assert rounded(PAGE.read_text("utf-8")) == rounded(page_with_sample())


def test_the_commands_are_understood():
    parser = parser_of()
    commands = COMMAND.findall(PAGE.read_text("utf-8"))
    assert len(commands) == 3
    for command in commands:
        named = dict(word.split("=") for word in shlex.split(command))
        options = {"P": "--only", "CASE": "--case", "SEED": "--seed", "PROGRAM": "--program"}
        words = [part for name, value in named.items() for part in (options[name], value)]
        parsed = parser.parse_args(["trace", *words])
        problem = load_problem(parsed.only)
        wanted = Wanted.of(problem, parsed.case, parsed.program)
        assert wanted.number == (1 if parsed.case else None)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    target = makefile[makefile.index("\ntrace:") : makefile.index("\nexplain:")]
    assert all(f"$({name})" in target for name in ("CASE", "PROGRAM", "SEED", "JSON"))


def test_the_page_names_the_problems_that_are_traced():
    assert TRACED == ("p01", "p03", "p04", "p05", "p06", "p07")
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"the forward passes: {TRACED[0]} and {TRACED[1]} to {TRACED[-1]}" in text
    for id in TRACED:
        handout = (ROOT / "problems" / id / "README.md").read_text("utf-8")
        assert (f"make trace P={id}" in " ".join(handout.split())) == (id != "p05")


if __name__ == "__main__":
    PAGE.write_text(page_with_sample(), encoding="utf-8")
