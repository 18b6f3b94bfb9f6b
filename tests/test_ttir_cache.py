"""TTIR that is kept for the next worker: of what it is made, and what is translated each time."""

import importlib.util
import warnings
import zlib

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from triton.runtime import jit

from grader.isolate.session import Budget
from grader.judge.case import CheckCase
from grader.judge.sessions import Sessions
from grader.kernel.lines import read_as_written
from grader.kernel.machine.ttir_cache import TtirCache
from grader.source.submission import Source
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import cases_of, edited, run_of, whole_answer

_quick = forked.quick
TEXT = """\
import triton
import triton.language as tl
from triton.language import cdiv

SIZE = tl.constexpr(16)
OTHER = [1]


@triton.jit
def twice(x, by: tl.constexpr = 2):
    return x * by


@triton.jit
def kernel(out_ptr, FN: tl.constexpr, N: tl.constexpr):
    x = tl.arange(0, SIZE) + cdiv(N, 4)
    tl.store(out_ptr + x, FN(x))


@triton.jit
def last(out_ptr):
    tl.store(out_ptr, 0.0)
"""
TARGET = GPUTarget("cuda", 80, 32)


class Worker:
    """Translates the kernel of a text as a worker would, with another path each time."""

    def __init__(self, folder):
        self.folder, self.workers, self.asked = folder, 0, 0

    def __call__(self, text=TEXT, n=8, types=None, options=None):
        """Return what is made, and whether the front end was asked for it."""
        self.workers += 1
        path = self.folder / f"worker-{self.workers}" / "answer.py"
        path.parent.mkdir()
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("answer", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel = module.kernel
        signature = {"out_ptr": "*fp32", "FN": "constexpr", "N": "constexpr"} | (types or {})
        source = ASTSource(kernel, signature, {(1,): module.twice, (2,): n}, {})
        before = self.asked

        def make(source, target, options):
            self.asked += 1
            if "or 0" in text:
                warnings.warn_explicit("old", UserWarning, str(path), 1)
            return f'loc("{path}":{kernel.starting_line_number}) {text}', self.asked % 2 == 0

        cache = TtirCache(self.folder / "kept", str(path))
        found = cache.made(make, source, TARGET, {"num_warps": 4} | (options or {}))
        assert str(path) in found[0]
        return found[0].replace(str(path), ""), found[1], self.asked > before


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path)


@pytest.mark.parametrize("behind", ["", "\n\n# more\n", "\n\nMORE = 4\n"])
def test_what_was_made_is_there_for_the_next_worker_with_its_own_path(worker, behind):
    text, by_blocks, _ = worker()
    assert worker(TEXT + behind) == (text, by_blocks, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FN(x))", "FN(x) + 1)"),  # the kernel
        ("x * by", "by * x"),  # what it is given
        ("by: tl.constexpr = 2", "by: tl.constexpr = 3"),
        ("constexpr(16)", "constexpr(32)"),
        ("constexpr(16)", "constexpr(16.0)"),
        ("import cdiv\n", "import cdiv\n\n"),  # all lines
        ("return x * by\n", "return x * by\n\n"),  # the kernel's
        ("import cdiv", "import max as cdiv"),
    ],
)
def test_a_text_of_which_another_would_be_made_is_translated(worker, old, new):
    worker()
    assert worker(edited(TEXT, (old, new)))[2]


@pytest.mark.parametrize(
    "how", [{"n": 9}, {"n": 8.0}, {"types": {"out_ptr": "*fp16"}}, {"options": {"num_warps": 8}}]
)
def test_so_are_other_types_constants_and_options(worker, how):
    worker()
    assert worker(**how)[2]


@pytest.mark.parametrize(
    "edit",
    [
        ("    x = ", "    tl.static_print(N)\n    x = "),  # it is to be printed again
        ("    return x * by", "    tl.static_print(by)\n    return x * by"),
        ("import cdiv", "import static_print as cdiv"),
        ("cdiv(N, 4)", "(cdiv(N, 4) or 0)"),  # `make` warns
        ("SIZE = tl.constexpr(16)", "SIZE = [16][0:1]"),  # nobody knows what may be in a list
    ],
)
def test_what_speaks_or_is_not_understood_is_translated_each_time(worker, edit):
    text = edited(TEXT, edit)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        worker(text)
        assert worker(text)[2]
    assert len(said) == (2 if "or 0" in text else 0)


def test_a_damaged_file_does_not_serve(worker):
    text, _, _ = worker()
    for path in (worker.folder / "kept").iterdir():
        path.write_bytes(b"x")
    assert worker()[::2] == (text, True)


def test_a_text_that_triton_reads_is_compared_with_the_file_each_time_it_is_another(
    monkeypatch, tmp_path
):
    owner = getattr(jit, "JITCallable", jit.JITFunction)
    monkeypatch.setattr(owner, "parse", owner.parse)  # which is given back
    path = tmp_path / "answer.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("answer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    read_as_written(str(path))
    assert module.kernel.parse().body and module.kernel.parse().body
    module.kernel._unsafe_update_src(module.kernel.src.replace("FN(x)", "x"))
    with pytest.raises(TypeError, match="Triton reads another text"):
        module.kernel.parse()


def test_the_machine_runs_what_was_kept_and_the_judge_says_the_same(tmp_path):
    problem = load_problem("p02")
    text = edited(
        whole_answer("p02"), ("row_mask = row_ids < rows", "row_mask = row_ids < rows + 1")
    )

    def said(kernels):
        data = Source("p02", text.encode())
        sessions = Sessions(problem, data, "cpu", Budget(problem.limits), kernels=kernels)
        run = run_of(text, problem, sessions=sessions)
        try:
            places = cases_of(problem, ["plain", "ragged_rows"])
            return [run.judge(CheckCase(problem, *place)) for place in places]
        finally:
            sessions.close()

    first = said(None)
    assert len({finding.verdict for finding in first}) == 2
    assert said(tmp_path) == first == said(tmp_path)
    kept = [*tmp_path.iterdir()]
    assert len(kept) > 1 and {path.suffix for path in kept} == {".ttir"}
    for path in kept:
        path.write_bytes(zlib.compress(b"0module {}", 1))
    assert said(tmp_path) != first
