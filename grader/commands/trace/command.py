"""`python -m grader trace`: shows one program of a kernel tile by tile."""

from __future__ import annotations

import argparse
import functools

from rich.console import Console

from grader.base import stdout
from grader.base.atomic_write import write_whole
from grader.commands.options import (
    SEED,
    SUBMISSION,
    expect_folder,
    expect_place,
    seed_of,
    writing,
)
from grader.commands.trace.view import render
from grader.commands.trace.wanted import Wanted, expect_traceable
from grader.spec.environment import probe
from grader.spec.problem import load_problem, problems_named

HELP = "show one program of a kernel, tile by tile"


OPTIONS = {
    "--only p06": "the problem, p01 or one of p03 to p07",
    "--case CHECK[:N]": "a check, and which of its cases, from 1 (default: the first that is"
    " wrong)",
    "--program X,Y,Z": "the program's ids (default: the one with the worst wrong element)",
    **SEED,
    "--json FILE": "write what is shown as JSON",
    **SUBMISSION,
}


def run(options: argparse.Namespace) -> int:
    """Find a case, follow one program and show it; return 0, whatever it shows."""
    problem = load_problem(expect_traceable(problems_named(options.only)))
    wanted = Wanted.of(problem, options.case, options.program)
    seed, folder = seed_of(options.seed), expect_folder(options.submission)
    expect_place(options.json, "--json")
    probe("cpu")
    from grader.commands.trace import traced_case  # with torch, which no other command imports

    with Console(stderr=True).status("starting") as status:
        record = traced_case.run(problem, folder, wanted, seed, status.update)
    stdout.show(functools.partial(render, record))
    if options.json is not None:
        with writing(options.json, "--json"):
            write_whole(options.json, record.to_json())
    return 0
