"""Inputs of a call lie apart: none reaches another, and in a timed call none tells where one is."""

import dataclasses
import itertools
import types

import torch

from grader.isolate import apart
from grader.isolate.arena import GUARD_BYTES
from grader.isolate.placing import place
from grader.isolate.session import Budget, Session
from grader.judge import measurement
from grader.source.submission import Source
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from grader.timing.stopwatch import Bench
from tests.forked import forked_workers

# What it can know of where its inputs lie, as the elements of its result.
NOSY = """
import torch

def reach(x):
    try:
        return int(x.as_strided((1,), (1,), x.numel()).numel())
    except RuntimeError:
        return 0

def flash_attention(q, k, v, **options):
    told = []
    for x in (q, k, v):
        told += [x.untyped_storage().nbytes() - x.nbytes, x.storage_offset(), reach(x)]
        told += [x.data_ptr() // 4096 % 2**20, x.data_ptr() % 512]
    out = torch.zeros_like(q)
    out.view(-1)[: len(told)] = torch.tensor(told, dtype=q.dtype)
    return out, torch.zeros(q.shape[:3])
"""


def timed_case():
    problem = load_problem("p01")
    return problem, problem.memory_cases("cpu")[0]


def test_places_are_drawn_and_have_guard_zones_between_them():
    problem, case = timed_case()
    layout = place(case, make_inputs(problem, case, 0), problem.returns)
    apart_by, orders = set(), set()
    for _ in range(20):
        places = apart.scatter(layout, 4, 2**30)
        sizes = [len(block) for block in apart.blocks(layout)]
        pairs = [zip(starts, sizes, strict=True) for starts in places.starts]
        spans = [(start, start + size) for pair in pairs for start, size in pair]
        end = places.outputs_start + 4 * (layout.total_bytes - layout.inputs_end) - GUARD_BYTES
        spans = sorted([(0, 0), *spans, (places.outputs_start, end), (places.total_bytes,) * 2])
        assert all(b[0] - a[1] >= GUARD_BYTES - 512 for a, b in itertools.pairwise(spans))
        assert all(start % 512 == 0 for start, _ in spans[:-1])
        apart_by.add(places.starts[1][0] - places.starts[0][0])
        orders.add(tuple(sorted(range(12), key=lambda n: places.starts[n // 3][n % 3])))
    assert len(apart_by) == len(orders) == 20


def test_where_there_is_no_room_the_order_is_drawn_all_the_same():
    problem, case = timed_case()
    layout = place(case, make_inputs(problem, case, 0), problem.returns)
    draws = [apart.scatter(layout, 4, 0) for _ in range(20)]
    assert {places.total_bytes <= 4 * layout.total_bytes for places in draws} == {True}
    assert len({places.starts for places in draws}) > 15
    assert apart.scatter(layout, 1, 0).total_bytes <= layout.total_bytes


def test_slices_of_one_tensor_stay_in_one_and_all_inputs_are_where_the_layout_has_them():
    problem = load_problem("p04")
    for check in problem.checks:
        for case in problem.cases(check, "5eed").values():
            layout = place(case, make_inputs(problem, case, 0), problem.returns)
            memory = torch.empty(layout.inputs_end, dtype=torch.uint8)
            parts = apart.parts(memory, layout)
            assert [view.name for view, _ in parts] == [view.name for view in layout.inputs]
            for (view, own), there in zip(parts, layout.inputs, strict=True):
                tensor = view.of(own)
                assert tensor.data_ptr() == there.of(memory).data_ptr()
                assert tensor.stride() == there.stride
                assert tensor.untyped_storage().nbytes() == own.numel()
            packed = case.layout == "packed_qkv"
            assert len({own.data_ptr() for _, own in parts}) == (1 if packed else 3)


def test_a_timed_call_and_a_checked_one_know_as_little_of_where_their_inputs_lie():
    problem, case = timed_case()
    bench, told = Bench("cpu"), []
    case = dataclasses.replace(case, seqlen_q=256, seqlen_k=256)
    with (
        forked_workers(),
        measurement._worker(NOSY.encode(), problem.file, problem.entry, "cpu") as worker,
    ):
        timed, layout = bench.attach(worker), bench.layout(problem, case)
        for _ in range(2):
            results = bench.go(timed, problem, case, layout, sets=8)[1]
            told += [result.outputs["out"].flatten()[:15].long() for result in results]
        source = Source("p01", NOSY.encode(), policy=False)
        session = Session(
            problem, source, device="cpu", machine=False, budget=Budget(problem.limits)
        )
        try:
            evidence = session.call(case, make_inputs(problem, case, 0), problem.returns)
        finally:
            session.close()
        told.append(evidence.outputs["out"].flatten()[:15].long())
    for numbers in torch.stack(told).view(-1, 3, 5):
        assert numbers[:, :3].eq(0).all()  # nothing beside it in its storage, nothing in reach
    steps = torch.stack(told[:8])[1:, 3] - torch.stack(told[:8])[:-1, 3]
    assert len(set(steps.tolist())) == 7  # nor does the address of one tell that of the next


def test_on_a_gpu_an_input_is_mapped_where_it_begins(monkeypatch):
    problem, case = timed_case()
    layout = place(case, make_inputs(problem, case, 0), problem.returns)
    memory = types.SimpleNamespace(data_ptr=lambda: 2**40)
    monkeypatch.setattr(apart, "_is_on_gpu", lambda _: True)
    monkeypatch.setattr(apart.device_memory, "mapped", lambda *place, of: (*place, of))
    starts = [512, 2**20, 2**21]
    found = apart.parts(memory, layout, starts)
    sizes = [len(block) for block in apart.blocks(layout)]
    assert [own for _, own in found] == [
        (2**40 + start, size, memory) for start, size in zip(starts, sizes, strict=True)
    ]
    assert [view.offset_bytes for view, _ in found] == [0, 0, 0]


def test_memory_that_answers_for_an_absent_gpu_is_a_cpu_s(monkeypatch):
    memory = torch.arange(2048, dtype=torch.uint8)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda this: True))
    assert memory.is_cuda and torch.equal(apart._own(memory, 512, 64), memory[512:576])
