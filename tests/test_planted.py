"""tests/planted.py: every fault still fits the code it is planted in, and its tests exist."""

from tests.planted import FAULTS, ROOT


def test_every_fault_fits_the_code():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25
    texts = {fault: (ROOT / fault.file).read_text(encoding="utf-8") for fault in FAULTS}
    assert [f.name for f, text in texts.items() if text.count(f.old) != 1 or f.new == f.old] == []
    assert [f.name for f in FAULTS if not all((ROOT / test).exists() for test in f.tests)] == []
