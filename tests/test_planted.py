"""tests/planted.py: every fault still fits the code it is planted in, and its tests exist."""

import pytest

from tests.planted import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_fits_the_code(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1
    assert fault.new != fault.old
    assert any((ROOT / test).exists() for test in fault.tests)


def test_there_are_forty_and_they_differ():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
