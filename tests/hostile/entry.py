"""What a hostile submission is, and the sources that most of them are made from."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from grader.isolate.placing import place
from grader.spec.cases import Case
from grader.spec.inputs import make_inputs
from grader.spec.problem import ROOT, load_problem

SEED = "5eed"
# Hostile to the judge and not to the machine that tests it, whatever becomes of the judge: `own`
# stands before all that deletes, moves or writes, `parent` before all that is done to a process,
# and no process burns more than two minutes. RUN_FOLDER is replaced.
HEAD = """\
import ctypes, gc, math, mmap, os, resource, shutil, signal, socket, sys, threading, time
import torch

resource.setrlimit(resource.RLIMIT_CPU, (120, 120))


def own(path):
    path = os.path.realpath(path)
    if not path.startswith("RUN_FOLDER/") or os.path.dirname(path) == "RUN_FOLDER":
        raise PermissionError(path)
    return path


def parent():
    pid = os.getppid()
    environment = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
    arguments = open(f"/proc/{pid}/cmdline").read().split("\\0")
    ours = any(name.startswith(b"TMPDIR=RUN_FOLDER/tmp") for name in environment)
    if not ours or not any(a == "-m" or a.endswith("fork_server.py") for a in arguments):
        raise PermissionError(arguments)
    return pid
"""


@dataclasses.dataclass(frozen=True)
class Hostile:
    """One submitted file. `problem` None: any, since it fails before that matters.

    `verdicts` are those that the problem may end in, `points` what it may earn at most, `limit_s`
    the seconds in which it has to be graded. `make` puts something else than a regular file into
    the submission. `measured`: speed and memory are measured as well; `slow`: left out of
    `make test`. `tricks` are judged one by one. With `policy` the source policy is in force, which
    would refuse most of the others before they could try anything. `jailed`: as in an official run.
    `gpu`: needs one.
    """

    name: str
    source: str | bytes = b""
    verdicts: tuple[str, ...] = ("error",)
    problem: str | None = None
    points: float = 0.0
    limit_s: float = 90.0
    make: Callable[[Path], None] | None = None
    measured: bool = False
    slow: bool = False
    policy: bool = False
    jailed: bool = False
    gpu: bool = False
    tricks: tuple[Trick, ...] = ()

    @property
    def id(self) -> str:
        """What it is drawn by, see tests/shares.py."""
        return self.name


@dataclasses.dataclass(frozen=True)
class Trick:
    """What an otherwise right answer of p01 does in one call, in one check of its own.

    `verdicts` are those that the check may end in. Without "pass" among them it earns nothing;
    every other check keeps its points.
    """

    name: str
    body: str
    verdicts: tuple[str, ...] = ("error",)
    check: str | None = None
    seconds: float = 5.0


@functools.cache
def answer(problem_id: str) -> str:
    """Source of the model answer."""
    return (ROOT / "solutions" / problem_id / load_problem(problem_id).file).read_text("utf-8")


def instead(body: str, head: str = "") -> str:
    """A file for any problem whose entry point does `body`; PROBLEM is replaced when it is put."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}{head}\ndef ENTRY(*tensors, **options):\n{lines}"


def beside(problem_id: str, body: str, head: str = "") -> str:
    """The model answer as `honest`, and an entry point that does `body` with it."""
    entry = load_problem(problem_id).entry
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return (
        f"{HEAD}{answer(problem_id)}\nhonest = {entry}\n{head}\n"
        f"def {entry}(*args, **options):\n{lines}"
    )


_DISPATCH = """
def trick_of(q, k, options):
    sizes = (tuple(q.shape), tuple(k.shape), q.stride(), str(q.dtype))
    return TRICKS.get((*sizes, tuple(sorted(options.items()))))


def flash_attention(q, k, v, **options):
    trick = trick_of(q, k, options)
    return trick(q, k, v, options) if trick else honest(q, k, v, **options)
"""


def hosts(tricks: Iterable[Trick], **fields: object) -> list[Hostile]:
    """Spread tricks over answers of p01, one to a check, so that each is judged on its own."""
    waiting = list(tricks)
    found = []
    while waiting:
        taken: dict[str, Trick] = {}
        for trick in list(waiting):
            free = [trick.check] if trick.check else list(trick_keys())
            check = next((c for c in free if c not in taken), None)
            if check is not None:
                taken[check] = dataclasses.replace(trick, check=check)
                waiting.remove(trick)
        found.append(_host(tuple(taken.values()), **fields))
    return found


def _host(tricks: tuple[Trick, ...], **fields: object) -> Hostile:
    keys = trick_keys()
    functions, table = "", ""
    for number, trick in enumerate(tricks):
        lines = "".join(f"    {line}\n" for line in trick.body.splitlines())
        functions += f"\n\ndef trick_{number}(q, k, v, options):\n{lines}"
        assert trick.check is not None
        table += f"    {keys[trick.check]}: trick_{number},\n"
    source = (
        f"{HEAD}{answer('p01')}\nhonest = flash_attention\n{functions}\n"
        f"\nTRICKS = {{\n{table}}}\n{_DISPATCH}"
    )
    return Hostile(
        name=f"an answer of p01 with {len(tricks)} tricks",
        source=source,
        verdicts=(),
        problem="p01",
        limit_s=60.0 + sum(trick.seconds for trick in tricks),
        tricks=tricks,
        **fields,
    )


@functools.cache
def trick_keys() -> dict[str, str]:
    """By check the key of a case that no other check has, as the submission sees it.

    Only checks that judge the numbers of out are among them, and not the plain one, without which
    arguments are not judged.
    """
    problem = load_problem("p01")
    keys = {
        check.id: [_key(case) for case in problem.cases(check, SEED).values()]
        for check in problem.checks
    }
    found = {}
    for check_id, own in keys.items():
        others = {key for other, found in keys.items() if other != check_id for key in found}
        free = [key for key in own if key not in others]
        check = problem.check(check_id)
        looked_at = check.judges == "numbers" and "out" in problem.judged(check)
        looked_at = looked_at and check_id not in ("plain", "arguments")
        if free and looked_at:
            found[check_id] = free[0]
    return found


def _key(case: Case) -> str:
    problem = load_problem("p01")
    layout = place(case, make_inputs(problem, case, 0), problem.returns)
    q, k = layout.inputs[:2]
    dtype = {"fp32": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}
    options = tuple(sorted(case.kwargs.items()))
    return repr((q.size, k.size, q.stride, dtype[q.dtype], options))
