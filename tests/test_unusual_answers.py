"""Right answers that do not look like the model answer pass every check of their problem.

They are the model answer with another line here and there, or with the functions of a file of
tests/unusual/ put behind it, which take the place of those of the same name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grader.manifest import ROOT, load_problem
from grader.model import Verdict
from grader.policy import read_source
from grader.session import Session
from tests.test_wrong_kernels import SEED, model_answer, run_case

UNUSUAL = ROOT / "tests" / "unusual"

_P04_CONFIG = "config = _launch_config(head_dim, q.dtype, q.device)"
# One stage: fp32 at head_dim 128 must fit shared memory.
_P04_TILES = 'config = {"BLOCK_M": 32, "BLOCK_N": 64, "num_stages": 1}'
_P03_GRID = 'grid = (batch * num_q_heads * triton.cdiv(seqlen_q, config["BLOCK_M"]),)'
_P03_DOT = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee")'
# No check has more than one section otherwise.
_SECTIONS = (("size = max(16 * 2**20 // head_bytes, triton.cdiv(512, num_tiles), 1)", "size = 1"),)
_P03_AUTOTUNED = """\
@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 16}, num_warps=4),
    ],
    key=["HEAD_DIM"],
)
@triton.jit
def _attention_kernel("""

# problem, name, edits of the model answer
EDITED = (
    (
        "p01",
        "large tiles",
        (
            ("range(0, seqlen_q, tile_q)", "range(0, seqlen_q, 7 * tile_q)"),
            ("min(q_start + tile_q, seqlen_q)", "min(q_start + 7 * tile_q, seqlen_q)"),
        ),
    ),
    ("p04", "tiles of 16", ((_P04_CONFIG, 'config = {"BLOCK_M": 16, "BLOCK_N": 16}'),)),
    ("p04", "tiles of 32 by 64", ((_P04_CONFIG, _P04_TILES),)),
    *((problem_id, "one head a section", _SECTIONS) for problem_id in ("p04", "p05", "p08")),
    (
        "p03",
        "scaled before the maximum",
        (
            (_P03_DOT, _P03_DOT + " * scale_log2"),
            ("tl.max(scores, 1) * scale_log2)", "tl.max(scores, 1))"),
            ("tl.exp2(scores * scale_log2 - ", "tl.exp2(scores - "),
        ),
    ),
    (
        "p03",
        "autotuned",
        (
            ("@triton.jit\ndef _attention_kernel(", _P03_AUTOTUNED),
            (
                _P03_GRID,
                "def grid(meta):\n"
                '        return (batch * num_q_heads * triton.cdiv(seqlen_q, meta["BLOCK_M"]),)\n',
            ),
            ("HEAD_DIM=head_dim, **config,", "HEAD_DIM=head_dim,"),
        ),
    ),
)


def edited(problem_id: str, edits: tuple[tuple[str, str], ...]) -> str:
    source = model_answer(problem_id)
    for old, new in edits:
        assert source.count(old) == 1, f"the model answer of {problem_id} has changed: {old!r}"
        source = source.replace(old, new)
    return source


def answers() -> list:
    sources = [
        pytest.param(
            problem_id, edited(problem_id, edits), id=f"{problem_id}-{name.replace(' ', '_')}"
        )
        for problem_id, name, edits in EDITED
    ]
    for path in sorted(UNUSUAL.glob("p[0-9][0-9]_*.py")):
        problem_id, _, name = path.stem.partition("_")
        source = model_answer(problem_id) + "\n\n" + path.read_text("utf-8")
        sources.append(pytest.param(problem_id, source, id=f"{problem_id}-{name}"))
    return sources


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("problem_id", "source"), answers())
def test_right_answer_passes(problem_id: str, source: str, device: str, tmp_path: Path) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    problem = load_problem(problem_id)
    folder = tmp_path / problem_id
    folder.mkdir()
    (folder / problem.file).write_text(source, "utf-8")
    torch.set_num_threads(1)
    submission = read_source(problem, tmp_path)
    assert submission.verdict is None, submission.message
    interpret = problem.uses_triton and device == "cpu"
    session = Session(problem, submission, device=device, interpret=interpret, seed=SEED)
    failed = []
    try:
        for check in problem.checks:
            for index, case in enumerate(check.cases_on(device, triton=problem.uses_triton)):
                finding = run_case(session, check, index)
                if finding.verdict != Verdict.PASS:
                    failed.append((check.id, str(case), finding.margin, finding.message))
    finally:
        session.close()
    assert not failed
