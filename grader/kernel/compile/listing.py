"""Reads NVIDIA's machine code: blocks, loops, and what an instruction of each kind asks of a chip.

Which unit executes what: the table "Throughput of Native Arithmetic Instructions" of NVIDIA's CUDA
C++ Programming Guide 13.0, and the names of instructions in its "CUDA Binary Utilities".
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import os
import re
import zlib
from pathlib import Path

from grader.base.atomic_write import write_whole_bytes
from grader.kernel.compile.machine_code import inspected

_MOST_TEXT = 64 * 2**20
_FILE = re.compile(r'//## File "(.*?)", line (\d+)')
_LABEL = re.compile(r"(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+ +)?([A-Z][\w.]*)\s*(.*?) ?;")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_WGMMA = re.compile(r"HGMMA\.64x(\d+)x(\d+)")
_MMA = re.compile(r"HMMA\.16(8)(8|16)\b")
_BYTES = re.compile(r"\.(?:[US])?(8|16|32|64|128)\b")
_MATRICES = re.compile(r"\.M(?:T)?\d+(?:\.(\d))?")
_REGISTER = re.compile(r"\bR(\d+)\b")
_LANES = 32
# On the special-function units, at a quarter of the rate.
_SPECIAL = ("MUFU", "I2F", "F2I", "F2F", "POPC", "FLO", "FRND")
_FUSED = ("FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2")
_UNCOUNTED = ("NOP", "BSSY", "BSYNC", "EXIT", "WARPSYNC")
_WAITS = ("BAR", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "MEMBAR", "FENCE", "SYNCS")
_SHARED = ("LDS", "STS", "LDSM", "STSM", "ATOMS")
_GLOBAL = ("LDG", "STG", "LDGSTS", "LD", "ST")
# Counted as issued only; the model lacks the costs of the atomics and spills among them.
_ISSUED_ALONE = ("BRA", "S2R", "LDC", "R2UR", "RED", "ATOM", "ATOMG", "REDG", "LDL", "STL")


@dataclasses.dataclass
class Mix:
    """What instructions of a warp ask for.

    `macs`: products on tensor cores; `special`: results of special functions (exp2 among them), in
    warps; `fused`: multiplications and additions in fp32; `other`: the rest of arithmetic;
    `issued`: instructions in all; `shared_bytes`: to and from shared memory, lanes that exchange
    values included; `global_bytes`, without atomics and spills, and of these `narrow_bytes`, read
    or written with less than four bytes a lane; `waits`: barriers; `fetches`: loads into registers,
    in a block the number of times that a warp waits for some.
    """

    macs: float = 0.0
    special: float = 0.0
    fused: float = 0.0
    other: float = 0.0
    issued: float = 0.0
    shared_bytes: float = 0.0
    global_bytes: float = 0.0
    narrow_bytes: float = 0.0
    waits: float = 0.0
    fetches: float = 0.0

    def __iadd__(self, more: Mix) -> Mix:
        for name, value in vars(more).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def __mul__(self, factor: float) -> Mix:
        return Mix(**{name: factor * value for name, value in vars(self).items()})


@dataclasses.dataclass
class Straight:
    """Instructions that run in order, by the source lines that they come from."""

    first: int  # number of its first instruction
    fetches: int = 0  # how often it waits for its loads
    lines: collections.Counter[tuple[str, int]] = dataclasses.field(
        default_factory=collections.Counter
    )
    mixes: dict[tuple[str, int], Mix] = dataclasses.field(default_factory=dict)
    widths: collections.Counter[tuple[tuple[str, int], str, int]] = dataclasses.field(
        default_factory=collections.Counter
    )  # of a line: loads and stores of global memory by the bytes that a lane moves

    @property
    def mix(self) -> Mix:
        """What all of its instructions ask for."""
        total = Mix()
        for mix in self.mixes.values():
            total += mix
        total.fetches = float(self.fetches)
        return total


@dataclasses.dataclass(frozen=True)
class Listing:
    """A kernel: its blocks in order, and each loop as numbers of its first block and the last."""

    blocks: tuple[Straight, ...]
    loops: tuple[tuple[int, int], ...]


def listing(cubin: bytes, kernel: str, folder: Path) -> Listing | None:
    """Return the code of `kernel`; None where it cannot be disassembled.

    `folder` caches the disassembly of these bytes.
    """
    text = _disassembled(cubin, folder / f"{hashlib.sha256(cubin).hexdigest()}.sass")
    section = text.partition(f".section\t.text.{kernel},")[2]
    return read(section.partition("\n\t.section\t")[0]) if section else None


def _disassembled(cubin: bytes, kept: Path) -> str:
    """Return the disassembly of a cubin, which the file `kept` caches; "" if it fails."""
    with contextlib.suppress(OSError, ValueError, zlib.error):
        reading = zlib.decompressobj()
        text = reading.decompress(kept.read_bytes(), _MOST_TEXT).decode()
        os.utime(kept)
        if reading.eof:
            return text
    done = inspected("nvdisasm", "-g", "-c", cubin=cubin)
    if done is None:
        return ""
    text = done.stdout[:_MOST_TEXT]
    with contextlib.suppress(OSError):
        if done.returncode == 0:
            write_whole_bytes(kept, zlib.compress(text.encode(), 1))
    return text


def read(text: str) -> Listing:
    """Return the blocks and loops of one function's disassembly."""
    blocks = [Straight(0)]
    starts: dict[str, int] = {}
    jumps: list[tuple[int, str]] = []
    line, count, ends = ("", 0), 0, False
    loading: set[int] = set()  # registers that loads under way will write
    for row in text.splitlines():
        if match := _FILE.search(row):
            line = match[1], int(match[2])
            continue
        label = _LABEL.match(row)
        if (label or ends) and blocks[-1].lines:
            blocks[-1].fetches += bool(loading)
            blocks.append(Straight(count))
            loading = set()
        ends = False
        if label:
            starts[label[1]] = len(blocks) - 1
        elif match := _INSTRUCTION.search(row):
            count += 1
            name, operands = match[2], match[3]
            block = blocks[-1]
            block.lines[line] += 1
            mix = block.mixes.setdefault(line, Mix())
            more = asked(name, operands)
            mix += more
            if more.global_bytes:
                access = "store" if name.startswith("ST") else "load"
                block.widths[line, access, int(more.global_bytes) // _LANES] += 1
            used = {int(number) for number in _REGISTER.findall(operands)}
            if loading & used:  # loads under way together arrive together
                block.fetches += 1
                loading = set()
            if more.fetches and (match := _REGISTER.match(operands)):
                words = max(1, int(more.global_bytes) // (4 * _LANES))
                loading |= set(range(int(match[1]), int(match[1]) + words))
            if name.split(".")[0] in ("BRA", "BRX", "EXIT", "RET"):
                ends = True
                if target := _TARGET.search(operands):
                    jumps.append((len(blocks) - 1, target[1]))
    blocks[-1].fetches += bool(loading)
    back = {(starts[to], at) for at, to in jumps if starts.get(to, at + 1) <= at}
    trap = {(first, last) for first, last in back if not _counts(blocks[first : last + 1])}
    return Listing(tuple(blocks), tuple(sorted(_merged(back - trap))))


def _counts(blocks: list[Straight]) -> bool:
    """Whether blocks do anything, unlike the branch to itself at the end of code."""
    return any(block.mix.issued > 1 for block in blocks)


def _merged(loops: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return loops with one end for each beginning: `continue` jumps back as well."""
    ends: dict[int, int] = {}
    for first, last in loops:
        ends[first] = max(last, ends.get(first, last))
    return set(ends.items())


def asked(name: str, operands: str = "") -> Mix:
    """Return what one instruction of a warp asks for."""
    kind = name.split(".")[0]
    if kind in _UNCOUNTED:
        return Mix()
    mix = Mix(issued=1.0)
    size = _LANES * (int(match[1]) // 8 if (match := _BYTES.search(name)) else 4)
    if match := _WGMMA.search(name):
        mix.macs = 16.0 * int(match[1]) * int(match[2])  # four warps share 64 rows
    elif match := _MMA.search(name):
        mix.macs = 16.0 * int(match[1]) * int(match[2])
    elif kind in _SPECIAL:
        mix.special = 1.0
    elif kind in _FUSED:
        mix.fused = 1.0
    elif kind in _WAITS:
        mix.waits = 1.0
    elif kind == "SHFL":
        mix.shared_bytes = 4.0 * _LANES
    elif kind in _SHARED:
        matrices = _MATRICES.search(name)
        mix.shared_bytes = 128.0 * int(matrices[1] or 1) if matrices else float(size)
        if operands.startswith("RZ, [RZ]"):
            mix.shared_bytes = 0.0
    elif kind in _GLOBAL:
        mix.global_bytes = float(size)
        mix.narrow_bytes = mix.global_bytes if size < 4 * _LANES else 0.0
        mix.fetches = float(kind in ("LDG", "LD"))
        if kind == "LDGSTS":
            mix.shared_bytes = float(size)
    elif not kind.startswith("U") and kind not in _ISSUED_ALONE:
        mix.other = 1.0
    return mix
