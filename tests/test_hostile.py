"""Hostile submissions gain nothing, cost their neighbours nothing and leave nothing behind.

Each run grades several side by side with an honest answer. One run of a share of each kind per
version; `make sweep PARTS=hostile` grades all.
"""

import pytest
import torch

from grader.base.scratch import remove_tree
from tests import needs
from tests.hostile.catalogue import CATALOGUE
from tests.hostile.court import grade, kind, packed
from tests.hostile.entry import Hostile
from tests.shares import drawn, of_all

QUICK = [
    entry for entry in CATALOGUE if not entry.slow and (torch.cuda.is_available() or not entry.gpu)
]
RUNS = drawn(packed(drawn(QUICK, 40, kind)), 4, of_all)


@pytest.mark.parametrize("number", range(len(RUNS)))
def test_hostile_submissions_gain_nothing_and_cost_nobody_else(number: int, tmp_path) -> None:
    if any(entry.jailed for entry in RUNS[number].values()):
        needs.a_jail()
    try:
        assert grade(RUNS[number], tmp_path).faults == []
    finally:
        remove_tree(tmp_path)  # pytest keeps the folder otherwise, with what was put there


def test_every_submission_and_trick_has_a_name_of_its_own() -> None:
    names = [entry.name for entry in CATALOGUE if not entry.tricks]
    names += [trick.name for entry in CATALOGUE for trick in entry.tricks]
    assert len(names) == len(set(names)) >= 200
    assert not [e.name for e in CATALOGUE if not isinstance(e, Hostile)]
