"""What a compiler made of a kernel, as the grade record holds it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grader.base.record import Record, Text

SECTOR = 32  # bytes in which memory answers a request

_Line = Annotated[int, Field(ge=0, le=2**24)]
_Bytes = Annotated[int, Field(ge=0, le=2**31)]
_Name = Annotated[Text, Field(max_length=200)]
_Sentence = Annotated[Text, Field(max_length=4000)]


class Refusal(Record):
    """What the compiler, or a launch, does not accept, and in which line of the submission."""

    error_type: _Name
    line: _Line
    text: _Sentence


class Dot(Record):
    """The instructions of the dots of one line: for tensor cores (`mma`, `wgmma`) or not."""

    line: _Line
    instruction: Literal["mma", "wgmma", "none"]


class KernelReport(Record):
    """One kernel as it is launched: compiled for a chip, or refused.

    `line` is that of its `def`, 0 where it is not in the submission; `constants` are the arguments
    that are compiled into it, `types` those of the others. Registers and stack are per thread; a
    Triton kernel's stack is what it spills. What is not known of a refused kernel is None.
    """

    kernel: _Name
    line: _Line
    constants: _Sentence = ""
    types: _Sentence = ""
    refusal: Refusal | None = None
    num_warps: int | None = Field(None, ge=1, le=64)
    num_stages: int | None = Field(None, ge=0, le=1000)
    registers: int | None = Field(None, ge=0, le=1024)
    stack_bytes: _Bytes | None = None
    spill_store_bytes: _Bytes | None = None
    spill_load_bytes: _Bytes | None = None
    shared_bytes: _Bytes | None = None
    dots: tuple[Dot, ...] = Field((), max_length=1000)
    compile_ms: float | None = Field(None, ge=0, le=1e7, allow_inf_nan=False)


class Compilation(Record):
    """A kernel on the chip that `chip_name` names.

    `programs` is how many of its programs run on a multiprocessor at a time, 0 for a kernel that
    cannot be launched, None where it is not known; `limit` is what allows no more: registers,
    shared memory, threads or programs.
    """

    capability: int
    kernel: KernelReport
    programs: int | None = None
    limit: str | None = None


class PredictedTime(Record):
    """What a launch takes on a GPU, by a model; `peak` is the share of the peak of 16-bit dots."""

    gpu: _Name
    ms: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    bound: _Name
    peak: float = Field(ge=0, le=1e3, allow_inf_nan=False)


class LineCost(Record):
    """The share of what a launch computes that comes from a line; `file` is "" for the answer's."""

    file: _Name
    line: _Line
    share: float = Field(ge=0, le=1, allow_inf_nan=False)


class Access(Record):
    """How the lanes of a warp ask for global memory in a line; `file` is "" for the answer's.

    Memory answers a request in sectors of 32 bytes. `sectors` is the mean of those that a request
    takes, `least` of those that would do if its bytes lay side by side; a lane asks for
    `lane_bytes` at a time, and most neighbouring lanes are `apart` bytes from each other. Of one
    request, which takes `taken` sectors where `needed` would do, `lanes` has the first byte of each
    lane, counted from the start of the lowest sector, and -1 for a lane that asks for nothing.
    """

    file: _Name
    line: _Line
    kind: Literal["load", "store"]
    sectors: float = Field(gt=0, le=64, allow_inf_nan=False)
    least: float = Field(gt=0, le=64, allow_inf_nan=False)
    lane_bytes: int = Field(ge=1, le=16)
    apart: int = Field(ge=0, le=2**50)
    lanes: tuple[Annotated[int, Field(ge=-1, le=2**50)], ...] = Field(max_length=32)
    taken: int = Field(ge=1, le=64)
    needed: int = Field(ge=1, le=64)


class Prediction(Record):
    """The launches of a kernel that are alike; `unknown` says why no time is predicted of them."""

    kernel: _Name
    line: _Line
    launches: int = Field(ge=1, le=2**24)
    programs: int = Field(ge=0, le=2**60)
    times: tuple[PredictedTime, ...] = Field((), max_length=8)
    costs: tuple[LineCost, ...] = Field((), max_length=8)
    accesses: tuple[Access, ...] = Field((), max_length=8)
    unknown: _Sentence = ""


class PredictedCall(Record):
    """What is predicted of one call of a `shape`, in the order of its launches.

    `unknown` says why there is nothing. It decides nothing, and no points depend on it.
    """

    shape: _Name
    launches: tuple[Prediction, ...] = Field((), max_length=40)
    unknown: _Sentence = ""
