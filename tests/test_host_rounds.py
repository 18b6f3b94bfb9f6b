"""`make trace P=p01`: a function of PyTorch, one tile of queries after the other tile of keys."""

import pytest

from grader.isolate import host_rounds
from grader.isolate.host_rounds import HostRounds
from tests import forked, trials
from tests.harness import model_answer
from tests.shares import drawn
from tests.tracing import trace

SUM = "torch.addcmul(tile_sum, running_sum, rescale)"
ACC = "torch.addcmul(tile_acc, acc, rescale)"
_quick = forked.quick


@pytest.mark.parametrize(
    ("old", "new", "tile", "name", "line"),
    [
        (SUM, "torch.addcmul(running_sum, tile_sum, rescale)", 1, "running_sum", "new_sum = "),
        (SUM, "tile_sum + running_sum", 2, "running_sum", "new_sum = tile_sum"),
        (ACC, "tile_acc + acc", 2, "acc", "new_acc = tile_acc"),
        ("exp(running_max - new_max)", "exp(new_max - running_max)", 1, "running_sum", "new_sum"),
    ],
)  # fmt: skip
def test_a_mistake_parts_in_its_tile_and_at_its_line(old, new, tile, name, line):
    record = trace("p01", model_answer("p01").replace(old, new), "plain:1")
    assert record.result == "wrong" and record.program.kernel == ""
    assert record.parting.number == tile and name in record.parting.names
    assert any(line in shown.text for shown in record.parting.lines)
    assert {s.name for r in record.rounds for s in r.shown if s.agrees is False} >= {name}


def test_what_is_not_seen_and_a_call_that_raises_are_said():
    source = model_answer("p01")
    (old,) = (line.strip() for line in source.splitlines() if "scores = tile_matmul(" in line)
    elements = "scores = (q_tile[:, :, None] * k_tile[:, None]).sum(-1).float() * softmax_scale"
    unseen = trace("p01", source.replace(old, elements), "plain:1")
    assert unseen.rounds == () and "no product of a tile of queries" in unseen.conclusion
    raised = source.replace("out[:, q_start:q_stop] = ", "raise ValueError\n        out[:, :1] = ")
    record = trace("p01", raised, "plain:1")
    assert record.result == "failed" and len(record.rounds) == 2 and record.parting is None


def test_keys_that_no_tile_holds_and_what_comes_behind_the_loop_are_said():
    source = model_answer("p01")
    apart = source.replace("range(0, visible_stop, tile_k)", "range(0, visible_stop, 2 * tile_k)")
    assert "were in no tile" in trace("p01", apart, "plain:1").conclusion
    behind = trace("p01", source.replace("acc / running_sum", "acc / tile_sum"), "plain:1")
    assert behind.parting is None and "behind the loop" in behind.conclusion


@pytest.mark.parametrize(
    "id", drawn([k for k, (p, _) in trials.right_answers("unusual").items() if p == "p01"], 3)
)
def test_no_state_of_a_right_answer_is_called_wrong(id):
    _, source = trials.right_answers("unusual")[id]
    record = trace("p01", source, "tile_sizes:1")
    assert record.result == "right" and record.parting is None
    assert not any(s.agrees is False for r in record.rounds for s in r.shown)


def test_to_follow_a_function_imports_no_compiler_of_pytorchs() -> None:
    assert not HostRounds._should_skip_dynamo()  # else torch._dynamo, 2 s in each worker


def test_what_a_loop_carries_in_a_container_is_found_and_no_class_of_the_file_is_asked() -> None:
    class Own(dict):
        def items(self):
            raise AssertionError("code of the submission runs unseen")

    class Key:
        def __repr__(self):
            raise AssertionError("code of the submission runs unseen")

    own = Own()
    held = {"state": (1, 2), "by_name": {"m": 3, Key(): 4}, "own": own, "other": [5]}
    found = dict(host_rounds._flat(held, {"state", "by_name", "own"}))
    assert found == {"state[0]": 1, "state[1]": 2, "by_name['m']": 3, "own": own, "other": [5]}
