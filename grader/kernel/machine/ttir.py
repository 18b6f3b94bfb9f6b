"""What a kernel is in TTIR: functions of blocks of operations over numbered values.

A value's number, from 1 on, is unique in the module; its printed name is not, because MLIR uses
names again in sibling regions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

ELEMENT_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32}
ELEMENT_BITS |= {"f64": 64, "f8E4M3FN": 8, "f8E5M2": 8, "index": 64}
_TYPE = re.compile(r"(?:tensor<((?:\d+x)*)(.*)>|(.*))")
_POINTER = re.compile(r"!tt\.ptr<(\w+)(?:, \d+)?>")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an operation comes from: a line of a file, and the name that its result has there.

    `callers` are the lines from which the function around it was called, the innermost first.
    """

    file: str = ""
    line: int = 0
    name: str = ""
    callers: tuple[tuple[str, int], ...] = ()

    def line_in(self, path: str) -> int:
        """Return the innermost line that lies in the file at `path`, 0 where none does."""
        places = ((self.file, self.line), *self.callers)
        return next((line for file, line in places if file == path), 0)


class AtPlace(Exception):
    """An error at a place of a kernel's source."""

    def __init__(self, text: str, place: Place | None = None) -> None:
        super().__init__(text)
        self.place = place or Place()


class NotMeasured(Exception):
    """The judge could not run a kernel, which may be right or wrong."""


class Unmodelled(AtPlace, NotMeasured):
    """TTIR has something whose meaning the machine does not know."""

    def __init__(self, what: str, place: Place | None = None) -> None:
        super().__init__(f"this Triton operation is not modelled: {what}", place)
        self.what = what


class BadText(NotMeasured):
    """A text is no TTIR, or too large to be read."""


@dataclasses.dataclass(frozen=True)
class Type:
    """The type of a tile, or of a number if `shape` is empty; `pointee` is what it points to."""

    shape: tuple[int, ...]
    element: str
    pointee: str = ""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        return 64 if self.pointee else ELEMENT_BITS[self.element]

    @property
    def width(self) -> int:
        """How many bytes an element behind a pointer has."""
        return max(1, ELEMENT_BITS[self.pointee] // 8)

    @property
    def is_float(self) -> bool:
        return self.element[0] in "fb"


@functools.lru_cache(4096)
def type_of(text: str) -> Type:
    """Return the type that `text` stands for, as in tensor<64x!tt.ptr<f32>>."""
    match = _TYPE.fullmatch(text.strip())
    assert match is not None
    element = match[3] if match[2] is None else match[2]
    shape = tuple(int(size) for size in (match[1] or "").split("x")[:-1])
    pointer = _POINTER.fullmatch(element)
    if pointer and pointer[1] in ELEMENT_BITS:
        return Type(shape, "ptr", pointer[1])
    if element not in ELEMENT_BITS:
        raise Unmodelled(f"type {text.strip()[:100]}")
    return Type(shape, element)


@dataclasses.dataclass(eq=False)
class Operation:
    """One operation; `words` are the bare words of its text, as `slt` or `acq_rel`.

    `targets` are the labels that a branch goes to, each with the values that it passes.
    """

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    place: Place
    attributes: dict[str, str] = dataclasses.field(default_factory=dict)
    words: tuple[str, ...] = ()
    regions: tuple[list[Block], ...] = ()
    targets: tuple[tuple[str, tuple[int, ...]], ...] = ()
    text: str = ""

    @property
    def uses(self) -> tuple[int, ...]:
        """The operands, and the values that a branch passes to its targets."""
        return self.operands + tuple(value for _, handed in self.targets for value in handed)

    def number(self, name: str) -> int:
        """Return an attribute that is a whole number, as in `axis = 1 : i32`."""
        return int(self.attributes[name].partition(" ")[0])

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of whole numbers, as in `array<i32: 1, 0>`."""
        return tuple(int(n) for n in re.findall(r"-?\d+", self.attributes[name].partition(":")[2]))

    def check(self, known: Iterable[str]) -> None:
        """Raise `Unmodelled` for an attribute that is neither `known` nor the hint of a dialect."""
        unknown = {name for name in self.attributes if "." not in name}.difference(known)
        if unknown:
            raise self.unmodelled(" ".join(sorted(unknown)))

    def unmodelled(self, what: str = "") -> Unmodelled:
        """Return the error that the machine does not model this operation."""
        return Unmodelled(" ".join(filter(None, (self.name, what))), self.place)


@dataclasses.dataclass(eq=False)
class Block:
    """Operations that run in order; a branch or a loop passes values to `arguments`."""

    label: str
    arguments: list[int]
    operations: list[Operation] = dataclasses.field(default_factory=list)

    @property
    def last(self) -> Operation | None:
        return self.operations[-1] if self.operations else None


@dataclasses.dataclass(eq=False)
class Module:
    """All functions, the kernel first, with the type and the student's name of each value."""

    functions: dict[str, list[Block]]
    types: list[Type]
    names: list[str]

    def __post_init__(self) -> None:
        self.written = self.types  # types in the text, before exact mode widens them

    @property
    def entry(self) -> str:
        return next(iter(self.functions))

    @property
    def operations(self) -> Iterator[Operation]:
        return operations(block for blocks in self.functions.values() for block in blocks)

    @property
    def makers(self) -> dict[int, Operation]:
        """The operation that makes each value; arguments of blocks have none."""
        return {value: op for op in self.operations for value in op.results}

    @property
    def used(self) -> set[int]:
        """The values that an operation or a branch uses."""
        return {value for op in self.operations for value in op.uses}

    def type(self, value: int) -> Type:
        return self.types[value]


def operations(blocks: Iterable[Block]) -> Iterator[Operation]:
    for block in blocks:
        for op in block.operations:
            yield op
            for region in op.regions:
                yield from operations(region)


def attribute_list(text: str) -> dict[str, Any]:
    """Return the attributes of `axis = 1 : i32, order = array<i32: 1, 0>` by their names."""
    found: dict[str, Any] = {}
    for part in split(text):
        name, _, value = part.partition("=")
        found[name.strip().strip('"')] = value.strip()
    return found


def split(text: str) -> list[str]:
    """Split `text` at the commas outside brackets."""
    if not any(bracket in text for bracket in "<([{"):
        return [part.strip() for part in text.split(",") if part.strip()]
    parts, depth, start = [], 0, 0
    before = ""
    for index, letter in enumerate(text):
        if letter in "<([{":
            depth += 1
        elif letter in ">)]}" and not (letter == ">" and before == "-"):
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
        before = letter
    parts.append(text[start:].strip())
    return [part for part in parts if part]
