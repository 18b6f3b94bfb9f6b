"""Fresh memory is NaN and stands between guards, and so do the inputs of a call."""

import ctypes

import pytest
import torch

from grader.isolate.allocations import Guarded
from grader.kernel.marks import MARKS
from grader.spec.problem import load_problem
from tests.forked import forked_workers
from tests.harness import judge, model_answer


def allocate(how, *size, dtype=torch.float32):
    """A fresh tensor, and the guards that watch it."""
    guarded = Guarded()
    with guarded:
        tensor = how(size, dtype)
    return tensor, guarded


WAYS = {
    "empty": lambda size, dtype: torch.empty(size, dtype=dtype),
    "empty_like": lambda size, dtype: torch.empty_like(torch.ones(size, dtype=dtype)),
    "new_empty": lambda size, dtype: torch.ones(2).new_empty(size, dtype=dtype),
    "empty_strided": lambda size, dtype: torch.empty_strided(size, (1, size[0]), dtype=dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("how", WAYS)
def test_fresh_memory_is_nan(how, dtype):
    tensor, guarded = allocate(WAYS[how], 3, 5, dtype=dtype)
    assert tensor.shape == (3, 5) and bool(tensor.isnan().all())
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    start = tensor.storage_offset() * tensor.element_size()
    assert int(raw[start]) in MARKS
    assert guarded.broken() == ""


@pytest.mark.parametrize("how", WAYS)
def test_a_whole_tensor_may_be_written(how):
    tensor, guarded = allocate(WAYS[how], 3, 5)
    tensor.fill_(1.0)
    assert bool((tensor == 1.0).all()) and guarded.broken() == ""


def test_a_tensor_without_memory_is_left_alone():
    guarded = Guarded()
    with guarded:
        meta = torch.empty(3, 5, device="meta")
        assert torch.empty_like(meta).add_(1.0).is_meta
        assert meta.new_empty(4).stride() == (1,)
        kept = torch.empty(3)
    assert guarded.broken() == "" and bool(kept.isnan().all())


@pytest.mark.parametrize(
    ("at", "where"), [(60, "past the end"), (5000, "past the end"), (-1, "before the start")]
)
def test_a_byte_written_outside_is_seen(at, where):
    tensor, guarded = allocate(WAYS["empty"], 3, 5)
    ctypes.memset(tensor.data_ptr() + at, 0, 1)
    assert guarded.broken() == f"1 bytes written {where} of a tensor of 60 bytes"


def test_what_is_not_empty_is_left_alone():
    guarded = Guarded()
    with guarded:
        zeros, none = torch.zeros(4), torch.empty(0)
    assert bool((zeros == 0).all()) and none.numel() == 0 and guarded.broken() == ""


# What lies past the end of K, times 0: right if that is 0, NaN if it is the judge's.
PAST_THE_END = """
import ctypes

_right = flash_attention

def flash_attention(q, k, v, **options):
    out, lse = _right(q, k, v, **options)
    return out + 0.0 * PAST.sum().to(out.dtype), lse
"""
BY_A_VIEW = "torch.as_strided(k, (1,), (1,), k.storage_offset() + k.numel())"
BY_ITS_ADDRESS = (
    "torch.frombuffer(bytearray(ctypes.string_at(k.data_ptr() + k.nbytes, 4)), dtype=torch.float32)"
)


def test_what_lies_behind_an_input_is_out_of_reach_and_nan():
    problem = load_problem("p01")
    told = []
    with forked_workers():
        assert judge(model_answer("p01"), problem, checks={"plain"}).wrong == {}
        for past in (BY_A_VIEW, BY_ITS_ADDRESS):
            source = model_answer("p01") + PAST_THE_END.replace("PAST", past)
            judged = judge(source, problem, checks={"plain"}, policy=False)
            told.append({f.message.headline for f in judged.wrong.values()})
    assert told[0] and all("out of bounds for storage of size" in text for text in told[0])
    assert told[1] == {"out was computed as NaN"}
