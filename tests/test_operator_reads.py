"""What a record of operators finds where values of tensors are read into Python.

tests/test_operators.py has what is computed.
"""

import pytest
import torch

from grader.isolate import operators
from grader.kernel import readings
from grader.source.policy.operators import MOST_READ, opened
from grader.spec.problem import load_problem
from tests.test_operators import INDEX, M, Plain, Q, found, often


class Reading(torch.Tensor):
    """Reads when it is looked at."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch.tensor(Q.tolist())


class Quiet(torch.Tensor):
    """Says that it has no elements."""

    def numel(self):
        return 0


def said(call):
    """The text of an error: "index 99 is out of bounds for dimension 0 with size 4"."""
    try:
        call()
    except IndexError as error:
        return str(error)


class Asked:
    """Reads when PyTorch asks it for its length, in a function that no mode sees."""

    def __len__(self):
        return int(Q.tolist()[0][0][0][0])

    __getitem__ = None


READS = {
    "tolist": lambda: Q.tolist(),
    "numpy": lambda: Q.numpy(),
    "an array": lambda: __import__("numpy").asarray(Q),
    "dlpack": lambda: __import__("numpy").from_dlpack(Q),
    "its storage": lambda: Q.untyped_storage().tolist(),
    "item": lambda: [x.item() for x in Q.flatten()],
    "float": lambda: [float(x) for x in Q.flatten()],
    "a comparison": lambda: max(Q.flatten()),
    "a callback": lambda: Q.clone().apply_(lambda x: 2.0 * x),
    "a class that reads": lambda: Q.as_subclass(Reading) + 1,
    "of a class": lambda: Q.as_subclass(Plain).tolist(),
    "of a class that hides how much": lambda: Q.as_subclass(Quiet).tolist(),
    "sizes of pieces": lambda: torch.tensor_split(M, INDEX.flatten().repeat(3)),
    "sizes of pieces by a keyword": lambda: M.tensor_split(
        tensor_indices_or_sections=INDEX.flatten().repeat(3)
    ),
    "sizes of what is there": lambda: [x.nonzero().shape for x in Q.flatten().expand(2, -1).T],
    "how many are true": lambda: [M[0, :1][x > 0].shape for x in Q.flatten().split(1)],
    "texts of errors": lambda: [said(lambda i=i: M[i]) for i in (Q.flatten().long() + 99).split(1)],
    "a class asked for its size": lambda: torch.tensor(Asked()),
    "whether two are equal": lambda: [torch.equal(x, x) for x in Q.flatten()],
}


@pytest.mark.parametrize("name", READS)
def test_reading_many_values_is_found(name):
    kind, text = found(READS[name])
    assert kind == "reads" and text.startswith("values of tensors are read into Python here, with ")


def test_a_few_values_may_be_read():
    few = Q.flatten()[:MOST_READ]
    assert found(lambda: few.tolist()) is found(lambda: [float(x) for x in few]) is None
    assert found(lambda: [few.tolist(), few[0].item()])[0] == "reads"
    assert found(lambda: Q.tolist(), "p01") is None


def test_inference_mode_hides_nothing():
    """In it operators that are made of others reach the judge whole."""
    inference = torch.inference_mode()
    few = Q.flatten()[: MOST_READ + 1]
    for read in (lambda: [x.item() for x in few], lambda: [x > 2 and 1 for x in few]):
        assert found(inference(read))[0] == found(read)[0] == "reads"
    views = inference(lambda: [Q.reshape(-1).contiguous().to(Q.dtype) for _ in range(99)])
    assert found(views) is None


def test_a_default_device_counts_nothing_twice():
    few = Q.flatten()[:MOST_READ]
    torch.set_default_device("cpu")
    try:
        assert found(lambda: few.tolist()) is None
        assert found(lambda: readings.as_numpy(Q)) is None
        assert found(lambda: Q.tolist())[0] == "reads"
    finally:
        torch.set_default_device(None)


def test_the_text_of_a_tensor_has_no_values():
    class Looks(torch.Tensor):
        def dim(self):
            Q.tolist()
            return 1

    said = []
    assert found(lambda: said.extend([str(Q), f"{Q}", repr(Q.as_subclass(Looks))])) is None
    assert set(said) == {"tensor(..., size=(2, 2, 32, 4), dtype=torch.float32)"}
    assert str(Q[0, 0]) == "tensor(..., size=(32, 4), dtype=torch.float32)"  # nor in other calls


def test_print_shows_values_to_a_person(capsys):
    class Paper:
        def write(self, text):
            TEXTS.append(text)

    TEXTS = []
    assert found(lambda: print(Q, "and", Q.half()[0, 0].mT)) is None
    assert "127." in capsys.readouterr().out
    assert found(lambda: print(Q, file=Paper())) is None
    assert "size=(2, 2, 32, 4)" in TEXTS[0]


@pytest.mark.parametrize("asks", [torch.allclose, torch.equal])
def test_to_ask_whether_values_are_alike_reads_them(asks):
    assert found(lambda: asks(M, M)) is None
    assert often(lambda: asks(M, M), MOST_READ + 1)[0] == operators.READS


def test_what_answers_in_numbers_of_python_reads_values():
    """Of the operators that are open, but for what tells no more than sizes and types."""
    sizes = "_has_compatible_shallow_copy_type is_pinned is_same_size sym_numel sym_size"
    known = {*sizes.split(), "sym_storage_offset", "sym_stride", "item"} | operators._TELLING
    names = {*opened(load_problem("p04"))["open"]}
    dispatched = set(torch._C._dispatch_get_all_op_names())
    for schema in torch._C._jit_get_all_schemas():
        if f"{schema.name}.{schema.overload_name}".removesuffix(".") not in dispatched:
            continue  # of TorchScript's
        name = schema.name.removeprefix("aten::")
        takes = [a for a in schema.arguments if str(a.type) == "Tensor"]
        if name in names and takes and schema.name.startswith("aten::"):
            returned = {str(r.type) for r in schema.returns}
            assert not returned & {"bool", "int", "float", "number"} or name in known, name
