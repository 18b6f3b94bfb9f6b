"""What the compiler made of the kernels: the table of one problem, the lines of several."""

import pytest
from rich.console import Console

from grader.judge import scoring
from grader.report import markdown, terminal
from grader.report.html import measured
from grader.report.html.page import render
from grader.report.kernels import chip_lines, kernel_table, kernels_of, spill_lines
from grader.spec.grade_record import CheckResult, GradeRecord, Points, ProblemResult, Verdict
from grader.spec.kernel_report import Compilation, Dot, KernelReport, Refusal
from tests import exports
from tests.environments import CPU

WHOLE = KernelReport(
    kernel="_forward_kernel",
    line=12,
    num_warps=4,
    registers=168,
    stack_bytes=0,
    shared_bytes=73_728,
    dots=(Dot(line=20, instruction="wgmma"), Dot(line=24, instruction="mma")),
)
SPILLS = WHOLE.model_copy(update={"kernel": "_dq_kernel", "registers": 255, "stack_bytes": 1536})
NO_DOTS = WHOLE.model_copy(update={"kernel": "_delta_kernel", "shared_bytes": 0, "dots": ()})
SOME_DOTS = WHOLE.model_copy(
    update={"kernel": "_dkdv_kernel", "dots": (*WHOLE.dots, Dot(line=31, instruction="none"))}
)
NOTHING_KNOWN = KernelReport(kernel="_bare_kernel", line=3)
REFUSED = KernelReport(
    kernel="_wide_kernel",
    line=40,
    registers=255,
    stack_bytes=64,
    refusal=Refusal(error_type="OutOfResources", line=0, text="needs 300000 bytes"),
)


def on_chip(kernel: KernelReport, capability: int = 80, **more: object) -> Compilation:
    return Compilation(capability=capability, kernel=kernel, **more)


def rows(*kernels: Compilation) -> list[list[str]]:
    """The cells of the table below its header, as they are printed."""
    console = Console(width=200)
    with console.capture() as capture:
        console.print(kernel_table(kernels))
    header, *lines = capture.get().splitlines()
    names = ("compiled", "for", "regs", "spills", "shared", "programs", "tensor cores")
    assert header.split() == " ".join(names).split()
    return [line.split() for line in lines]


def record(*problems: tuple[Compilation, ...]) -> GradeRecord:
    """A record in which the second of two checks of each problem has compiled its kernels."""
    plain = CheckResult(id="plain", title="plain", verdict=Verdict.PASS, weight=1.0)
    results = tuple(
        ProblemResult(
            id=f"p{number:02}",
            title="a problem",
            bonus=False,
            verdict=Verdict.PASS,
            points=Points(earned=0.0, available=0.0, possible=0.0),
            components={},
            checks=(plain, plain.model_copy(update={"id": "compiles", "kernels": kernels})),
        )
        for number, kernels in enumerate(problems, 3)
    )
    totals, bonus = scoring.total(results)
    return GradeRecord(
        mode="local",
        environment=CPU,
        seed="1f",
        submission="answers",
        problems=results,
        totals=totals,
        bonus=bonus,
        duration_s=1.0,
    )


@pytest.mark.parametrize(
    ("kernel", "more", "row"),
    [
        (WHOLE, {"programs": 3, "limit": "registers"}, "168 none 72.0 KiB 3 (registers) all dots"),
        (SPILLS, {}, "255 1.5 KiB 72.0 KiB all dots"),  # per thread
        (REFUSED, {"programs": 0}, "refused"),
        (SOME_DOTS, {}, "168 none 72.0 KiB 2 of 3 dots"),
        (NO_DOTS, {}, "168 none 0 B no dots"),
        (NOTHING_KNOWN, {}, "no dots"),
    ],
)
def test_a_row_says_what_a_kernel_takes_of_the_chip(kernel, more, row):
    assert rows(on_chip(kernel, 90, **more)) == [f"{kernel.kernel} 9.0 {row}".split()]


def test_a_long_or_hostile_name_is_cut_and_clean():
    hostile = WHOLE.model_copy(update={"kernel": "\x1b[31m" + "k" * 60})
    (row,) = rows(on_chip(hostile))
    assert row[0].startswith("k") and len(" ".join(row[: row.index("8.0")])) <= 20 + len(" [...]")


def test_the_kernels_of_a_problem_are_those_of_all_its_checks():
    kernels = (on_chip(WHOLE), on_chip(WHOLE, 90))
    assert kernels_of(record(kernels).problems[0]) == kernels


def test_only_kernels_that_spill_are_named_with_their_chip():
    kernels = (on_chip(WHOLE), on_chip(SPILLS), on_chip(SPILLS, 90), on_chip(NOTHING_KNOWN))
    assert spill_lines(record((on_chip(NO_DOTS),), kernels)) == [
        "p04 _dq_kernel: spills 1.5 KiB per thread on compute capability 8.0",
        "p04 _dq_kernel: spills 1.5 KiB per thread on compute capability 9.0",
    ]
    assert spill_lines(record((), (on_chip(WHOLE), on_chip(NOTHING_KNOWN)))) == []


def test_other_chips_have_a_line_each_in_every_view():
    gone = REFUSED.refusal.model_copy(update={"text": "no compiler", "error_type": ""})
    kernels = (
        *(on_chip(kernel) for kernel in (WHOLE, SPILLS)),
        *(on_chip(kernel, 86) for kernel in (WHOLE, SPILLS)),
        on_chip(NO_DOTS, 942),
        on_chip(WHOLE, 950),
        on_chip(REFUSED.model_copy(update={"refusal": REFUSED.refusal.model_copy(
            update={"line": 41})}), 950),
        on_chip(KernelReport(kernel="", line=0, refusal=gone), 120),
    )  # fmt: skip
    made = record(kernels)
    (problem,) = made.problems
    lines = [
        "for 8.6: compiles, up to 255 registers, 72.0 KiB shared, 1.5 KiB spilled",
        "for 12.0: not compiled: no compiler",
        "for gfx942: compiles, up to 168 registers, 0 B shared, no spills",
        "for gfx950: does not compile: line 41: needs 300000 bytes (_wide_kernel)",
    ]
    assert chip_lines(problem) == lines
    assert kernels_of(problem) == kernels[:2]
    for line in lines:
        assert f"p03 {line}" in terminal.render(made, width=120)
        assert line in markdown.render(made).replace("\\", "")
        assert line in render(made)


def compiled_twice() -> GradeRecord:
    """A record whose problems have kernels that were compiled for two cases and two chips."""
    small = WHOLE.model_copy(
        update={"types": "q_ptr=*fp32 k_ptr=*fp32 n=i32", "constants": "HEAD_DIM=64 BLOCK_M=32"}
    )
    large = WHOLE.model_copy(
        update={"types": "q_ptr=*fp16 k_ptr=*fp16 n=i32", "constants": "HEAD_DIM=128 BLOCK_M=32"}
    )
    kernels = tuple(
        on_chip(kernel.model_copy(update={"kernel": name}), chip, programs=1, limit="shared memory")
        for kernel in (large, small)
        for chip in (80, 90)
        for name in ("_forward_kernel", "_dkdv_kernel_of_the_window_and_of_the_sinks", "_delta")
    )
    graded = exports.record("mixed")
    problems = [
        problem.model_copy(
            update={"checks": (check.model_copy(update={"kernels": kernels}), *checks)}
        )
        for problem in graded.problems
        for check, *checks in [problem.checks]
    ]
    return graded.model_copy(update={"problems": tuple(problems)})


def test_a_kernel_that_was_compiled_twice_says_what_is_not_the_same():
    table = measured.kernel_table(compiled_twice().problems[0])
    assert [row[:2] for row in table.rows[:4]] == [
        ("_forward_kernel", chip) for chip in ("8.0", "8.0", "9.0", "9.0")
    ]
    assert table.details[:2] == ("fp16 HEAD_DIM=128", "fp32 HEAD_DIM=64")
    assert len(table.rows) == len(table.details) == 12
    assert '_delta <small class="free">fp32 HEAD_DIM=64</small>' in render(compiled_twice())
