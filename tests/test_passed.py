"""Tensors among the arguments of a launch: where they may stand, and that all of them are found."""

from collections import namedtuple

import torch

from grader.kernel.passed import tensors_of

Q, K = torch.zeros(2), torch.ones(3)
Pair = namedtuple("Pair", "first second")


def test_tensors_in_tuples_are_found_by_their_places():
    descriptor = type("Descriptor", (), {"__module__": "triton.tools", "base": K})()
    found = dict(tensors_of("both", (Q, (4, descriptor), Pair(K, "no"))))
    assert found == {"both[0]": Q, "both[1][1]": K, "both[2][0]": K}
    assert list(tensors_of("number", 3)) == [] and list(tensors_of("list", [Q])) == []


class Hostile(Pair):
    """An argument of a file, whose code would run in the judge's tracer."""

    def __iter__(self):
        raise ZeroDivisionError

    @property
    def base(self):
        raise ZeroDivisionError


def test_no_code_of_an_argument_is_called():
    plain = type("Plain", (), {"base": property(lambda _: 1 // 0)})()
    assert dict(tensors_of("odd", (plain, Hostile(K, 3)))) == {"odd[1][0]": K}


def test_a_tensor_without_addresses_is_none_of_them():
    assert list(tensors_of("odd", (Q.to_sparse(), torch.empty(2, device="meta")))) == []
