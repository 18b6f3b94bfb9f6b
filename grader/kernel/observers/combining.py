"""Derives what is known of elementwise results: their rows, their masks, the first NaN."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from grader.kernel.machine import elementwise, events
from grader.kernel.machine.arrays import Tensor, cast
from grader.kernel.machine.notes import together
from grader.kernel.machine.ttir import Operation, operations
from grader.kernel.observers import trace
from grader.kernel.observers.knowledge import Note, Rows, is_outer
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.record import Record
from grader.kernel.observers.trace import STATISTIC, Counter

ELEMENTWISE = elementwise.NAMES | {"arith.bitcast", "tt.bitcast"}

# Additions count as products too: eight as one.
_ADDITIONS = frozenset(
    (
        *("arith.addf", "arith.subf", "arith.negf", "math.absf", "tt.clampf"),
        *("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"),
    )
)
_FOR_A_PRODUCT = 8
# Any other function of floats may be a product, or lead to one: cosines do, and logarithms. The
# names of integer operations end in "i".
_NO_PRODUCTS = elementwise.CASTS | {"arith.select", "arith.cmpf", "tt.addptr"}
_OF_FLOATS = {name for name in elementwise.NAMES if not name.endswith("i")}
_PRODUCTS = _OF_FLOATS - _NO_PRODUCTS - _ADDITIONS | {"arith.muli", "tt.mulhiui"}
_EXPONENTIALS = ("math.exp", "math.exp2")
_PRODUCT, _QUOTIENT, _CHOICE, _DIFFERENCE = "arith.mulf", "arith.divf", "arith.select", "arith.subf"
_SUMS = ("arith.addf", _DIFFERENCE)
_HIDDEN = -1e4
_COUNTS = 1e-3  # of the largest weight beside it


class Side(NamedTuple):
    """An operand of an elementwise operation, with its note if it has the result's shape."""

    data: Tensor
    note: Note | None

    @property
    def is_of_pairs(self) -> bool:
        return self.note is not None and self.note.is_of_pairs


class Combining:
    """Derives the notes of elementwise results from those of the operands."""

    def __init__(self, record: Record, placement: Placement, nans: Nans) -> None:
        self._record = record
        self._placement = placement
        self._nans = nans

    def computed(self, event: events.Computed) -> Any:
        """Return the note of an elementwise result."""
        type = event.types[-1]
        outer = is_outer(event.operands, event.results[0])
        outer = outer and type.is_float and event.op.name != _CHOICE
        count = type.numel * len(event.programs) if outer else products(event, [event.op])
        self._record.count_products(count, of_elements=outer)
        sides = [
            Side(data, note if own.shape == type.shape else None)
            for data, note, own in zip(event.operands, event.notes, event.types, strict=False)
        ]
        known = [side.note for side in sides if side.note is not None]
        axes = merged(known)
        self._nans.look(event, axes)
        of_queries = {a for n in known for a, rows in enumerate(n.axes) if rows and rows.of_queries}
        if len(of_queries) > 1 and not self._record.counters[Counter.ACROSS_LINE]:
            self._record.note_line(Counter.ACROSS_LINE)
        if not known:
            return None
        condition, of_pairs = event.operands[0], any(side.is_of_pairs for side in sides)
        if event.op.name == _CHOICE and not of_pairs and condition[0].numel() == 1:
            return _of_programs(condition.flatten(), *(side.note for side in sides[1:]))
        if not _sums_up(event, known):
            self._placement.meet(known, len(event.programs), type.shape)
        product = next((note.product for note in known if note.product), None)
        factors = ()
        if event.op.name == _PRODUCT and len(axes) == 3 and len(known) == 2:
            factors = tuple(zip(known, event.operands, event.types, strict=False))
        note = Note(axes, product=product, factors=factors)
        return self._of_pairs(event, sides, note) if note.is_of_pairs else note

    def applied(self, event: events.Computed) -> None:
        """Note products in the function that a reduction or a scan applies to elements."""
        inside = [op for region in event.op.regions for op in operations(region)]
        if len(inside) > 2 or inside[0].name in _PRODUCTS:  # else a sum or a maximum, and the end
            self._record.count_products(products(event, inside), of_elements=False)

    def _of_pairs(self, event: events.Computed, sides: list[Side], note: Note) -> Note:
        """Return the note of a tile of pairs, of which `note` has the axes and the product."""
        (result,), name, record = event.results, event.op.name, self._record
        known = [side.note for side in sides if side.note is not None]
        over_queries = note.axes[0].of_queries
        keys = 2 if over_queries else 1
        weights = name in _EXPONENTIALS or any(other.weights for other in known)
        hidden, mask = _follow(name, result, sides, keys, weights=weights)
        mask_line = max(other.mask_line for other in known)
        by_factor = name == _PRODUCT and mask is not None
        made = mask is not None and not mask_line
        made = made and (by_factor or bool(((mask > 0) & (mask < trace.DROWNED)).any()))
        # What was hidden before may be hidden once more, where the scores say so themselves.
        anew = name == _CHOICE and not (sides[0].is_of_pairs and sides[0].note.mask_line)
        if anew or made:
            mask_line = self._made_at(event) or record.where.line
            rows = trace.MASK_ROWS.index("queries" if over_queries else "keys")
            record.of_kernel["mask_line"], record.of_kernel["mask_rows"] = mask_line, rows
        decided = min((side.note.decided for side in sides if side.is_of_pairs), default=0)
        if name == _CHOICE and [side.is_of_pairs for side in sides] == [True, False, False]:
            decided = record.where.line
        pairs = {"hidden": hidden, "mask": mask, "mask_line": mask_line, "weights": weights}
        note = dataclasses.replace(note, decided=decided, **pairs)
        if name in _EXPONENTIALS:
            shown = _shows(result, note, keys)
            if shown is not None and bool(shown.any()):
                record.note_line(Counter.SHOWN_LINE)
        if by_factor and bool(_raises(result, sides, weights=weights).any()):
            record.of_kernel["raised_line"] = record.where.line
        return note

    def _made_at(self, event: events.Computed) -> int:
        """Return the line that computes the condition of a mask, 0 if it is unknown."""
        maker = event.makers[0]
        if maker is None or maker.name not in ELEMENTWISE or event.types[0].element != "i1":
            return 0
        return self._record.where.line_of(maker)


def products(event: events.Computed, operations: Iterable[Operation]) -> int:
    """Return how many products some operations may make, each on all elements of a tile."""
    parts = sum(
        _FOR_A_PRODUCT * (op.name in _PRODUCTS) + (op.name in _ADDITIONS) for op in operations
    )
    return parts * event.types[0].numel * len(event.programs) // _FOR_A_PRODUCT


def _of_programs(condition: Tensor, one: Any, other: Any) -> Any:
    """Return what is known where each program chooses one tile or the other, as in a branch."""
    if bool(condition.all()) or not bool(condition.any()):
        return one if bool(condition[0]) else other
    yes, no = condition.nonzero()[:, 0], (~condition).nonzero()[:, 0]
    place = torch.cat([yes, no]).argsort()
    return together([one and one[yes], other and other[no]], [len(yes), len(no)], place)


def _sums_up(event: events.Computed, known: list[Note]) -> bool:
    """Whether an operation adds numbers of rows to others that a block's argument holds."""
    held = {rows.operand for note in known for rows in note.axes if rows is not None}
    return event.op.name in _SUMS and None in event.makers and held == {STATISTIC}


def merged(known: list[Note]) -> tuple[Rows | None, ...]:
    """Return the rows along the axes of an elementwise result.

    The first operand whose axis is known decides; inputs go before tensors that the call made.
    """
    axes: list[Rows | None] = list(known[0].axes) if known else []
    for note in known[1:]:
        for axis, rows in enumerate(note.axes):
            held = axes[axis]
            made = held is not None and held.operand in trace.MADE
            if rows is not None and (held is None or made):
                axes[axis] = rows
    return tuple(axes)


def _follow(
    name: str, result: Tensor, sides: Sequence[Side], keys: int, *, weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Return which pairs of a result are hidden, and its mask as in `trace.Trace`.

    `keys` is the axis of the keys; `weights` says whether the result comes from an exponential.
    """
    known = [side.note for side in sides if side.note is not None]
    # After the exponential a large negative number is no masked score: it may be dS.
    far = torch.zeros((1,) * result.dim(), dtype=torch.bool) if weights else result <= _HIDDEN
    before = [note.hidden for note in known if note.hidden is not None]
    masks = [note.mask for note in known if note.mask is not None]
    if name == _CHOICE:  # a pair is hidden as in the tile of scores that is chosen
        chosen = list(zip(sides[1:], (sides[0].data, ~sides[0].data), strict=True))
        held = [(s.note.hidden, there) for s, there in chosen if s.is_of_pairs]
        before = [hidden & there for hidden, there in held if hidden is not None]
        hidden = functools.reduce(torch.logical_or, before, far)
        for data, there in ((s.data, there) for s, there in chosen if not s.is_of_pairs):
            if weights:
                hidden = hidden | (there & ~_any_pair(data != 0))
            masks.append(_marked(there & ~hidden))
        return hidden, functools.reduce(torch.maximum, masks) if masks else None
    hidden = functools.reduce(torch.logical_or, before, far)
    if name == _PRODUCT:
        for zero in (side.data == 0 for side in sides if not side.is_of_pairs):
            if weights:
                hidden = hidden | zero
            elif bool(zero.any()) and not bool(zero.all()):  # a mask as a factor
                mixed = _any_pair(zero) & _any_pair(~zero)
                masks.append(_marked(zero & ~hidden) * mixed)
    elif name in _SUMS and not weights:
        added = _added(name, sides, keys)
        if added is not None:
            masks.append(_marked(added & ~hidden))
        elif bool(far.any()):
            drowned = far & _of_rows(sides, keys)
            drowned = functools.reduce(torch.logical_and, (~tile for tile in before), drowned)
            masks.append(cast(drowned, torch.uint8) * trace.DROWNED)
    return hidden, functools.reduce(torch.maximum, masks) if masks else None


def _added(name: str, sides: Sequence[Side], keys: int) -> Tensor | None:
    """Return where an added tile, 0 elsewhere, hides scores; None if no operand is such a tile."""
    for number, side in enumerate(sides):
        data = side.data
        if side.is_of_pairs or data.shape[keys] == 1:  # one number for each query: a maximum
            continue
        down = data >= -_HIDDEN if number and name == _DIFFERENCE else data <= _HIDDEN
        if bool(down.any()) and bool((down | (data == 0)).all()):
            return down
    return None


def _of_rows(sides: Sequence[Side], keys: int) -> Tensor:
    """Return in which programs an operand is a number for each query, the same for all keys."""
    found = torch.zeros((1,) * sides[0].data.dim(), dtype=torch.bool)
    for data in (side.data for side in sides if not side.is_of_pairs):
        first = data.narrow(keys, 0, 1)
        found = found | ~_any_pair(~((data == first) | data.isnan()))
    return found


def _raises(result: Tensor, sides: Sequence[Side], *, weights: bool) -> Tensor:
    """Return where a factor has made masked scores as large as others, NaN or 0."""
    raised = result >= -_HIDDEN
    if not weights:  # a factor below 0, and one of 0
        raised = raised | result.isnan() | (result == 0)
    masked = torch.zeros((1,) * result.dim(), dtype=torch.bool)
    for data in (side.data for side in sides if side.is_of_pairs):
        masked = masked | (data <= _HIDDEN)
    return raised & masked


def _shows(result: Tensor, note: Note, keys: int) -> Tensor | None:
    """Return for which queries weights of masked pairs count beside those of other pairs."""
    hidden = note.hidden
    if hidden is None or not bool(hidden.any()):
        return None
    rows, columns = note.axes
    assert rows is not None and columns is not None
    exist = (rows.ids >= 0).unsqueeze(2) & (columns.ids >= 0).unsqueeze(1)
    masked = torch.where(hidden & exist, result, 0.0).amax(keys)
    others = torch.where(~hidden & exist, result, 0.0).amax(keys)
    return (others > 0.0) & (masked > _COUNTS * others)


class Nans:
    """Counts the kinds of operations that make NaN of operands without NaN; notes divisions by 0.

    Lanes of a last tile past the last query do not count: nothing stores their results, and correct
    kernels have NaN in them.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._kinds: set[int] = set()

    def look(self, event: events.Computed, axes: tuple[Rows | None, ...]) -> None:
        """Check an operation's result for new NaN; `axes` are those of the result."""
        (result,), (*types, type) = event.results, event.types
        if not type.is_float:
            return
        found = result.isnan()
        by_zero = event.operands[1] == 0 if event.op.name == _QUOTIENT else None
        if not bool(found.any()) and (by_zero is None or not bool(by_zero.any())):
            return
        someone = torch.ones((1,) * (len(type.shape) + 1), dtype=torch.bool)
        for axis, rows in enumerate(axes):
            if rows is not None and rows.of_queries:
                sizes = [1] * len(type.shape)
                sizes[axis] = rows.ids.shape[1]
                someone = someone & (rows.ids != -1).reshape(-1, *sizes)
        if by_zero is not None and bool((by_zero & someone).any()):
            self._record.note_line(Counter.ZERO_LINE)
        found = found & someone
        born = _any(found)
        for value, own in zip(event.operands, types, strict=True):
            if own.is_float:
                there = value.isnan()
                born = born & ~_any(there & someone if own.shape == type.shape else there)
        if not bool(born.any()):
            return
        name, counters = event.op.name, self._record.counters
        kind = trace.NAN_MAKERS.index(name) + 1 if name in trace.NAN_MAKERS else 0
        if not self._kinds:
            self._record.note_line(Counter.NAN_LINE)
            counters[Counter.NAN_OPERATION] = kind
            if name == _DIFFERENCE:
                first = int(born.nonzero()[0, 0])
                taken, lanes = torch.broadcast_tensors(event.operands[0], found)
                counters[Counter.NAN_SIGN] = _sign(taken[first][lanes[first]])
        self._kinds.add(kind)
        counters[Counter.NAN_KINDS] = len(self._kinds)


def _any(flags: Tensor) -> Tensor:
    """Return in which programs any lane is true."""
    return flags.flatten(1).any(1) if flags.dim() > 1 else flags


def _any_pair(flags: Tensor) -> Tensor:
    """Return the result of `_any` with two more axes, as a tile of pairs has."""
    return _any(flags)[:, None, None]


def _marked(there: Tensor) -> Tensor:
    """Return a mask that replaces scores `there` by numbers that hide nothing, and keeps others."""
    return cast(torch.where(there, 2, 1), torch.uint8)


def _sign(numbers: torch.Tensor) -> int:
    """Return MINUS if all of some numbers are -inf, PLUS if all are +inf, else 0."""
    if not bool(numbers.isinf().all()):
        return 0
    return trace.MINUS * bool((numbers < 0).all()) + trace.PLUS * bool((numbers > 0).all())
