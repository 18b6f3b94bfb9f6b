"""`python -m benchmarks.chips`: its tables, its record, and the page that shows them.

`python -m tests.test_chips` writes the table of the page anew after the record has changed.
"""

import json

import pytest

from benchmarks import chips, chips_table, record
from grader.isolate.compiled import call_of, compile_calls, unavailable
from grader.kernel.compile import chips as known_chips
from grader.kernel.compile.chips import EVERY_CHIP, resident_programs
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.problem import ROOT, load_problem
from grader.spec.protocol import Status
from tests import forked

PAGE = ROOT / "benchmarks" / "CHIPS.md"
RECORD = ROOT / "benchmarks" / "records" / "chips-2026-11-23.json"
BEGIN = f"<!-- table of {RECORD.relative_to(PAGE.parent)} -->\n"
END = "<!-- end of table -->"

_quick = forked.quick


def page_with_table() -> str:
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    return head + BEGIN + chips_table.summary(record.load(RECORD)) + END + rest.split(END)[1]


def row(**given):
    return {
        "kernel": "_attention_kernel", "dtype": "bf16", "head_dim": 64, "tile": "64x64",
        "num_warps": 4, "num_stages": 2, "registers": 162, "stack_bytes": 0, "spill_bytes": 0,
        "shared_bytes": 32768, "programs": 3, "limit": "registers", "dots": "mma",
        "refusal": None,
    } | given  # fmt: skip


def made(kernels, capability=89, problem="p04", source="x"):
    """A record of one answer on one chip."""
    found = record.new_record("chips", {})
    found["results"] = [
        {"problem": problem, "capability": capability, "source": source, "seconds": 1.0,
         "kernels": kernels}
    ]  # fmt: skip
    return found


def test_a_kernel_is_one_row_beside_the_limit_of_its_chip():
    found = made([row(), row(head_dim=128, stack_bytes=24, spill_bytes=40, registers=255)])
    first, second = chips_table.kernel_rows(found)
    assert first == (
        "p04", "attention", "8.9", "64", "bf16", "64x64, 4, 2", "162", "none", "32.0 of 99",
        "3 (registers)", "mma",
    )  # fmt: skip
    assert second[3] == "128" and second[7] == "24, 40"
    assert len(first) == len(chips_table.COLUMNS)


def test_the_summary_names_the_largest_share_and_the_worst_spill():
    kernels = [row(), row(head_dim=128, shared_bytes=50688, stack_bytes=8), row(head_dim=32)]
    kernels += [row(dtype="fp32", dots="none", stack_bytes=0)]
    lines = chips_table.summary(made(kernels)).splitlines()
    assert lines[0] == "| | 8.9 |" and lines[2] == "| shared memory | 99 KiB |"
    assert "| p04 16-bit | 50%, **spills 8 B at 128** |" in lines
    assert "| p04 fp32 | 32% |" in lines
    assert "| dots in 16-bit | mma |" in lines and "| dots in fp32 | none |" in lines


def test_a_refused_kernel_and_unknown_dots_are_said():
    kernels = [row(refusal="needs 1 bytes", dots="", programs=0, shared_bytes=None, registers=None)]
    found = made(kernels)
    found["results"] += made([row(), row(kernel="_delta_kernel", dots="")], 90)["results"]
    text = chips_table.summary(found)
    assert "| p04 16-bit | **refused** | 14% |" in text
    assert "| dots in 16-bit | unknown | mma |" in text  # a kernel without dots is none of these
    assert next(iter(chips_table.kernel_rows(made(kernels))))[9] == "refused"


KERNEL = """\
import torch, triton
import triton.language as tl

@triton.jit
def product(q_ptr, out_ptr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    rows, cols = tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    at = rows[:, None] * HEAD_DIM + cols[None, :]
    a, b = tl.load(q_ptr + at), tl.load(q_ptr + at + 64)
    scores = tl.dot(a, tl.trans(b))
    tl.store(out_ptr + rows[:, None] * BLOCK_M + rows[None, :], scores)

def attention(q, k, v, *, softmax_scale=None):
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    product[(1,)](q, out, HEAD_DIM=q.shape[3], BLOCK_M=32)
    return out, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
"""


def compiled_for(capabilities, text=KERNEL):
    problem = load_problem("p03")
    case = resolve({"seqlen": 64, "head_dim": 32}, "fp16", "")
    calls = [call_of(problem, case, ("out",))]
    return compile_calls(Source("p03", text.encode()), problem, calls, capabilities=capabilities)


def test_a_kernel_compiled_by_each_compiler_becomes_rows():
    found = compiled_for((75, 89, 120, 942))
    for whole, dots in zip(found, ("none", "mma", "mma", "mma"), strict=True):
        assert [reply.status for reply in whole.results] == [Status.OK], whole.output
        (got,) = chips.rows_of(whole.kernels, "fp16")
        assert (got["kernel"], got["head_dim"], got["tile"]) == ("product", 32, "32")
        assert got["dots"] == dots and got["registers"]
        assert bool(got["programs"]) == (whole.capability != 942)
        assert got["stack_bytes"] == 0
        assert 0 < got["shared_bytes"] <= EVERY_CHIP[whole.capability].program_shared_bytes


ASSEMBLY = """tl.inline_asm_elementwise(
        "bogus.f32 $0, $1;", "=r,r", [scores], dtype=tl.float32, is_pure=True, pack=1)"""
THREADS = "needs 2048 threads, the chip has 1024"


@pytest.mark.parametrize(
    ("chip", "old", "new", "said", "mark"),
    [
        (950, "BLOCK_M=32)", "BLOCK_M=32, num_warps=32)", THREADS, "product[(1,)]("),
        (120, "scores)", f"{ASSEMBLY})", "NVIDIA's assembler knows no instruction 'bogus'", '"bog'),
        (942, "scores)", f"{ASSEMBLY})", "AMD's assembler refuses the kernel: invalid instr", "pr"),
    ],
)
def test_each_compiler_refuses_in_a_sentence_with_a_line(chip, old, new, said, mark):
    text = KERNEL.replace(old, new)
    ((kernel,),) = (whole.refused for whole in compiled_for((chip,), text))
    refusal = kernel.kernel.refusal
    assert refusal.text.startswith(said)
    assert text.splitlines()[refusal.line - 1].strip().startswith(mark)


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert [unavailable(capability) for capability in (80, 120, 942)] == [None] * 3
    monkeypatch.setattr("os.access", lambda path, mode: path.name == "ptxas")
    assert unavailable(80) is None
    ((amd,),) = (chip.refused for chip in compiled_for((942,)))
    assert amd.kernel.refusal.text == "this Triton came without AMD's compiler"
    assert unavailable(120) == "this Triton came without NVIDIA's assembler, ptxas-blackwell"


# NVIDIA, CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability":
# shared memory per block, threads and blocks per multiprocessor.
@pytest.mark.parametrize(
    ("capability", "kib", "threads", "programs"),
    [
        (75, 64, 1024, 16), (80, 163, 2048, 32), (86, 99, 1536, 16), (89, 99, 1536, 24),
        (90, 227, 2048, 32), (100, 227, 2048, 32), (120, 99, 1536, 24),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_programming_guide(capability, kib, threads, programs):
    chip = EVERY_CHIP[capability]
    assert chip.program_shared_bytes == kib * 1024
    assert (chip.threads, chip.programs) == (threads, programs)
    assert chip.shared_bytes == chip.program_shared_bytes + chip.reserved_bytes
    for text in (known_chips.__doc__, PAGE.read_text()):
        assert "Programming Guide" in " ".join(text.split())


def test_cuda_reserves_no_shared_memory_before_8_0():
    usage = {"num_warps": 4, "registers": 64, "shared_bytes": 32768}
    assert resident_programs(EVERY_CHIP[75], **usage) == (2, "shared memory")
    assert resident_programs(EVERY_CHIP[89], **usage) == (3, "shared memory")


@pytest.fixture
def compiled(monkeypatch):
    """What the command asks to be compiled; nothing is."""
    asked = []

    def compile_answer(problem_id, capabilities):
        asked.extend((problem_id, c) for c in capabilities)
        source = chips.digest(load_problem(problem_id))
        return [
            result
            for c in capabilities
            for result in made([row()], c, problem_id, source)["results"]
        ]

    monkeypatch.setattr(chips, "compile_answer", compile_answer)
    return asked


def test_what_the_record_holds_is_not_compiled_again(tmp_path, compiled, capsys, monkeypatch):
    path = tmp_path / "record.json"
    options = ["--problems", "p04", "--chips", "7.5,8.9", "--json", str(path), "--summary"]
    assert chips.main(options) == 0 and compiled == [("p04", 75), ("p04", 89)]
    assert capsys.readouterr().out == chips_table.summary(record.load(path))
    assert chips.main([*options[:3], "7.5,8.0,8.9", *options[4:]]) == 0
    assert compiled[2:] == [("p04", 80)]
    monkeypatch.setattr(chips, "digest", lambda problem: "changed")
    assert chips.main(options) == 0 and compiled[3:] == [("p04", 75), ("p04", 89)]


def test_a_record_of_another_triton_is_compiled_anew(tmp_path, compiled):
    path = tmp_path / "record.json"
    options = ["--problems", "p04", "--chips", "8.0", "--json", str(path)]
    assert chips.main(options) == 0
    path.write_text(path.read_text().replace(f'"triton": "{chips_triton(path)}"', '"triton": "0"'))
    assert chips.main(options) == 0 and compiled == [("p04", 80)] * 2


def chips_triton(path):
    return record.load(path)["versions"]["triton"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--problems", "p01"], "--problems: got 'p01', expected among p02"),
        (["--chips", "7.0"], "--chips: got '7.0', expected among 7.5"),
        (["--from", "{tmp}/none.json"], "none.json"),
        (["--from", "{tmp}/kind.json"], "kind.json: got a record of kind sweep, expected chips"),
        (["--json", "{tmp}/schema.json"], "schema.json: got schema_version 9"),
        (["--from", "{tmp}/broken.json"], "benchmarks.chips: "),
    ],
)
def test_usage(options, words, tmp_path, capsys, compiled):
    (tmp_path / "kind.json").write_text(json.dumps({"schema_version": 1, "kind": "sweep"}))
    (tmp_path / "schema.json").write_text('{"schema_version": 9}')
    (tmp_path / "broken.json").write_text("{")
    assert chips.main([option.format(tmp=tmp_path) for option in options]) == 2
    assert words in capsys.readouterr().err and not compiled


def test_where_nothing_can_be_compiled_it_says_why(monkeypatch, capsys, compiled):
    monkeypatch.setattr(chips, "unavailable", lambda: "Triton is not installed")
    assert chips.main([]) == 4
    assert "Triton is not installed" in capsys.readouterr().err and not compiled


def test_the_page_shows_the_record(capsys):
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with_table()
    assert chips.main(["--from", str(RECORD), "--summary"]) == 0
    assert capsys.readouterr().out in text
    found = record.load(RECORD)
    assert f"Triton {found['versions']['triton']}" in text and found["date"][:10] in text
    for command in ("python -m benchmarks.chips --json", "--from", "--summary"):
        assert command in text


def test_the_record_holds_every_answer_on_every_chip_at_every_head_dim():
    found = record.load(RECORD)
    places = {(r["problem"], r["capability"]) for r in found["results"]}
    assert places == {(p, c) for p in chips.PROBLEMS for c in chips.CHIPS}
    for result in found["results"]:
        half = "bf16" if result["capability"] >= chips.BF16_FROM else "fp16"
        dims = chips.HEAD_DIMS if result["problem"] != "p02" else (None,)
        got = {(k["dtype"], k["head_dim"]) for k in result["kernels"]}
        assert got == {(dtype, d) for dtype in (half, "fp32") for d in dims}


def test_what_the_page_says_of_spills_is_so():
    half, fp32 = {}, {}
    for result in record.load(RECORD)["results"]:
        for kernel in result["kernels"]:
            assert kernel["refusal"] is None and kernel["programs"]
            into = fp32 if kernel["dtype"] == "fp32" else half
            if kernel["stack_bytes"]:
                place = (result["problem"], kernel["head_dim"])
                into.setdefault(result["capability"], set()).add(place)
    assert not half.keys() & {86, 89, 90}
    assert {problem for problem, _ in half[80]} == {"p08"}
    forward = {(f"p0{number}", head_dim) for number in range(3, 8) for head_dim in (32, 64, 128)}
    assert half[75] == forward | {("p08", 128), ("p09", 64), ("p09", 128)}
    for problem in ("p03", "p09"):
        assert {c for c in fp32 if (problem, 128) in fp32[c]} >= {86, 89, 90, 100, 120}


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
