"""Counted work of who hides from it: earns nothing, and is told how."""

import pytest

from grader.judge.scoring import score_work, work_fraction
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import SEED, model_answer
from tests.hostile import choosing
from tests.records import count_work
from tests.shares import drawn
from tests.test_work import LAUNCH, changed, counted, ratios, short

_quick = forked.quick


def in_entry(line: str, *, top: str = "", problem_id: str = "p04") -> str:
    """The model answer with a line before its launch, and others before all functions."""
    text = changed(problem_id, (LAUNCH, line))
    return text.replace("\nimport torch\n", f"\nimport torch\n{top}", 1)


_DECOY = """
from given.arguments import check_attention

@triton.jit
def _read(x_ptr, y_ptr, count, SIZE: tl.constexpr):
    ids = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + ids, mask=ids < count, other=0.0)
    tl.store(y_ptr + ids, x, mask=ids < count)

def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, True)
    for tensor in (q, k, v):
        grid, copy = (triton.cdiv(tensor.numel(), 1024),), torch.empty_like(tensor)
        _read[grid](tensor, copy, tensor.numel(), SIZE=1024)
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    scores += torch.full(scores.shape[-2:], float("-inf")).triu(1)
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)
"""


def test_products_of_torch_earn_nothing_and_are_told():
    figures = counted(model_answer("p04") + _DECOY, short("p04"))
    adds, pairs = figures.multiply_adds, 256 * 257 // 2
    assert adds.least == 2 * pairs * 64 > adds.done
    work = score_work(figures, 2)
    assert work.points.earned == 0 and work.verdict is Verdict.PASS
    assert work.reason.endswith("and sums and outer products of tiles")


_LATER = """
honest = weighted_row_sum

class Later(torch.Tensor):
    def METHOD(self, *rest):
        given = self.__dict__.pop("given", None)
        if given:
            honest(*given)
        return torch.Tensor.METHOD(self.as_subclass(torch.Tensor), *rest)

def weighted_row_sum(x, w):
    y = honest(x, w).as_subclass(Later)
    y.given = x, w
    return y
"""
_OF_ITS_OWN = """
honest = weighted_row_sum

def weighted_row_sum(x, w):
    y = honest(x, w)
    y.METHOD = lambda *rest: (honest(x, w), torch.Tensor.METHOD(y, *rest))[1]
    return y
"""


@pytest.mark.parametrize("how", [_LATER, _OF_ITS_OWN])
def test_a_kernel_that_a_result_launches_when_it_is_looked_at_is_seen(how):
    source = model_answer("p02") + how.replace("METHOD", "is_contiguous")
    figures = counted(source, load_problem("p02"))
    assert ratios(figures)["elements read"] >= 2.0


def test_products_that_are_no_dots_are_counted_as_these_are():
    scores = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee")'
    of_sums = "scores = tl.sum(q[:, None, :].to(tl.float32) * k[None, :, :].to(tl.float32), 2)"
    figures = counted(changed("p04", (scores, of_sums)), short("p04"))
    assert figures.multiply_adds == counted(model_answer("p04"), short("p04")).multiply_adds


_A_ROW = """
@triton.jit
def _row(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, D: tl.constexpr, N: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, D)
    q = tl.load(q_ptr + row * D + offs)[None, :]
    best, total = tl.full((1,), float("-inf"), tl.float32), tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, D), tl.float32)
    for start in range(0, row + 1, N):
        keys = start + tl.arange(0, N)
        k = tl.load(k_ptr + keys[:, None] * D + offs[None, :])
        v = tl.load(v_ptr + keys[:, None] * D + offs[None, :])
        s = tl.sum(q[:, None, :] * k[None, :, :], 2) * scale
        s = tl.where(keys[None, :] <= row, s, float("-inf"))
        new = tl.maximum(best, tl.max(s, 1))
        p, alpha = tl.exp(s - new[:, None]), tl.exp(best - new)
        total, best = total * alpha + tl.sum(p, 1), new
        acc = acc * alpha[:, None] + tl.sum(p[:, :, None] * v[None, :, :], 1)
    tl.store(out_ptr + row * D + offs[None, :], acc / total[:, None])
    tl.store(lse_ptr + row + tl.arange(0, 1), best + tl.log(total))

def attention(q, k, v, *, softmax_scale=None):
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    _row[(q.shape[2],)](q, k, v, out, lse, q.shape[3] ** -0.5, D=q.shape[3], N=64)
    return out, lse
"""


def test_scores_of_a_single_row_are_counted_as_those_of_many():
    """Its weights times V are not recognised, and count as the products of elements they are."""
    figures = counted(model_answer("p04") + _A_ROW, short("p04"))
    tiles = sum(row // 64 + 1 for row in range(256))
    dots = 2 * tiles * 64 * 64
    assert dots < figures.multiply_adds.done < 1.1 * dots
    assert score_work(figures, 2).points.earned == 0  # each row reads all keys before it


@pytest.mark.parametrize("how", drawn(choosing.SCORES, 3))
def test_products_of_what_is_not_known_are_counted(how):
    """All tiles of copies that the judge does not recognise."""
    figures = counted(choosing.every_tile(how), short("p04"))
    assert work_fraction(figures) == 0 and ratios(figures)["multiply-adds"] > 1.4


@pytest.mark.parametrize("how", choosing.READS)
def test_reads_of_what_a_kernel_made_are_counted(how):
    problem_id, kind, source = choosing.READS[how]
    figures = counted(source, load_problem(problem_id))
    assert ratios(figures)[kind] > 1.4 and work_fraction(figures) < 0.6


REPEATED = {
    "by index": "k, v = (x.repeat_interleave(num_q_heads // x.shape[1], 1) for x in (k, v))",
    "by view": "k, v = (x[:, :, None].expand(*x.shape[:2], num_q_heads // x.shape[1], *x.shape[2:])"
    ".reshape(q.shape) for x in (k, v))",
}


@pytest.mark.parametrize("how", REPEATED)
def test_heads_that_are_repeated_in_memory_are_counted(how):
    """A view repeats one head in no memory: the case that counts has two."""
    source = in_entry(f"{REPEATED[how]}\n    {LAUNCH}", problem_id="p05")
    figures = counted(source, load_problem("p05"))
    assert ratios(figures)["different elements read"] == 2.25 and work_fraction(figures) == 0


def test_a_kernel_that_is_launched_from_a_thread_is_seen():
    text = model_answer("p04")
    start = text.index(LAUNCH)
    end = text.index("    )  # fmt: skip\n", start) + len("    )  # fmt: skip\n")
    body = text[start:end].replace("\n", "\n    ").rstrip(" ")
    run = "import threading\n    thread = threading.Thread(target=launch)\n"
    threaded = f"def launch():\n        {body}    {run}    thread.start()\n    thread.join()\n"
    figures = counted(text[:start] + threaded + text[end:], short("p04"))
    assert ratios(figures) == {"multiply-adds": 1.0, "elements read": 1.0}
    assert not set("".join(figures.tiles.rows)) & set("xo!2")


_AT_ONCE = """
import sys, threading
honest = weighted_row_sum
sys.setswitchinterval(1e-5)

def weighted_row_sum(x, w):
    parts = x.chunk(8)
    results = [None] * len(parts)

    def run(number):
        results[number] = honest(parts[number], w)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.cat(results)
"""


def test_kernels_that_several_threads_launch_at_once_run_one_after_the_other():
    (case,) = load_problem("p02").work_cases(SEED)
    figures = counted(model_answer("p02") + _AT_ONCE, load_problem("p02"))
    read = figures.elements_read.done
    assert figures.launches == 8 and read == case.rows * case.cols + figures.programs * case.cols


def test_a_call_that_launches_nothing_has_no_work_to_count():
    naive = (
        "scores = (q @ k.transpose(-1, -2) * softmax_scale).float()\n"
        "    keys = torch.arange(seqlen)\n"
        "    scores = scores.masked_fill(keys[None, :] > keys[:, None], float('-inf'))\n"
        "    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)\n    "
    )
    evidence = count_work(in_entry(naive + LAUNCH), short("p04"))
    assert evidence.verdict is Verdict.FAIL and evidence.figures is None
    assert evidence.reason.startswith("kernels read 0 elements, and the output depends on ")


def test_a_file_that_begins_with_a_byte_order_mark_is_traced_like_any_other():
    figures = counted("\ufeff" + model_answer("p04"), short("p04"))
    assert ratios(figures) == {"multiply-adds": 1.0, "elements read": 1.0}


def test_what_a_file_does_to_the_judges_modules_reaches_no_observer():
    """It breaks those of its own process, which only says what to launch."""
    broken = "import sys\nsys.modules['grader.kernel.observers.tracing'].moved = None\n"
    broken += "sys.modules['grader.kernel.machine.engine'].Engine.launch = lambda *all: None\n"
    figures = counted(broken + model_answer("p04"), short("p04"))
    assert ratios(figures) == {"multiply-adds": 1.0, "elements read": 1.0}


ENDS = {
    "raise RuntimeError('not here')": (Verdict.ERROR, "RuntimeError: not here"),
    "q = 2 * q": (Verdict.FAIL, "the result is wrong"),
    "import os; os._exit(0)": (Verdict.CRASH, ""),
}


@pytest.mark.parametrize("line", ENDS)
def test_a_call_that_goes_wrong_says_how_and_in_which_case(line):
    verdict, reason = ENDS[line]
    evidence = count_work(in_entry(f"{line}\n    {LAUNCH}"), short("p04"))
    assert evidence.verdict is verdict and evidence.figures is None
    assert evidence.reason.startswith(reason) and " seqlen=256 " in evidence.reason
