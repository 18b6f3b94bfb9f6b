"""The marks of memory that a submission has allocated and nobody has written."""

from __future__ import annotations

import torch

# The lowest byte of each element, of which all other bytes are 0xFF: a NaN, but not the one that
# arithmetic makes of the bytes between the elements of an input, which are 0xFF as well. Each
# allocation has a mark of its own, which arithmetic in one dtype keeps (quiet NaN in bf16 too).
MARKS = range(0xC1, 0xE5)
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by an element's bytes


def marked(values: torch.Tensor, marks: range = MARKS) -> torch.Tensor:
    """Return where a tensor holds the NaN of memory that nobody wrote, with one of these marks."""
    word = _WORDS[values.element_size()]
    raw, above = values.contiguous().view(word), -256 if word.is_signed else 0
    return (raw >= above + marks[0]) & (raw <= above + marks[-1])


def marks_in(values: torch.Tensor) -> set[int]:
    """Return the marks that a tensor holds somewhere."""
    if not values.is_floating_point() or values.element_size() == 1:
        return set()
    found = values[marked(values)].contiguous().view(_WORDS[values.element_size()])
    return {int(one) & 0xFF for one in torch.unique(found)}
