"""Tensors among the arguments of a launch: where they may stand, and that all of them are found."""

from __future__ import annotations

import types
from collections import namedtuple

import pytest
import torch

from grader.running import constants
from grader.running.passed import tensors_of

Q, K = torch.zeros(2), torch.ones(3)
Pair = namedtuple("Pair", "first second")


def refuse(name, value):
    raise constants.refused(name, type(value).__name__)


def given(name, value, **options):
    return constants.taken(name, value, "answer", refuse, **options)


def test_tensors_in_tuples_are_found_by_their_places():
    descriptor = types.SimpleNamespace(base=K)
    found = dict(tensors_of("both", (Q, (4, descriptor), Pair(K, "no"))))
    assert found == {"both[0]": Q, "both[1][1]": K, "both[2][0]": K}
    assert list(tensors_of("number", 3)) == [] and list(tensors_of("list", [Q])) == []


@pytest.mark.parametrize("value", [(Q, 3), ((Q, K), 3), Pair(Q, 3)])
def test_a_launch_takes_tensors_in_tuples(value):
    got = given("both", value, tensors=True)
    places = dict(tensors_of("both", value))
    assert dict(tensors_of("both", got)) == places and len(got) == len(value)


@pytest.mark.parametrize("value", [[Q, 3], ([Q], 3), {"q": Q}, {"q": (Q,)}])
def test_a_launch_takes_no_tensor_of_a_list(value):
    with pytest.raises(TypeError, match="got Tensor"):
        given("both", value, tensors=True)


def test_what_is_no_argument_has_no_tensors():
    with pytest.raises(TypeError, match=r"both\[0\]: got Tensor"):
        given("both", (Q, 3))
