"""What judge and worker say to each other.

Judge to worker: one JSON object a packet (trusted). Worker to judge: one packet of exactly
`REPLY.size` bytes, fixed fields, nothing to parse; everything in it but the nonce is a hint for
the student's feedback. Values travel in the shared arena, never in a packet.
"""

from __future__ import annotations

import dataclasses
import enum
import struct

MAGIC = b"grader2\0"
MAX_KERNELS = 32
REPLY = struct.Struct(f"<8sQBIIQ64s2048s{MAX_KERNELS}I")
MAX_REQUEST_BYTES = 64 * 1024
_SHAPES = "\x1f"  # separates a text from shapes
IMPORTED = 1  # nonce of the reply that a worker sends when it has imported torch, unasked
STARTED = 0  # nonce of the reply that a worker sends before it touches the submission


class Status(enum.IntEnum):
    """How a request ended, as the worker sees it."""

    OK = 0
    NOT_IMPLEMENTED = 1
    EXCEPTION = 2  # any exception from the submission
    BAD_RETURN = 3  # wrong return type, shape, dtype or device
    OUT_OF_MEMORY = 4
    OUT_OF_BOUNDS = 5  # the machine saw an access outside a tensor
    IMPORT_FAILED = 6
    COMPILE_FAILED = 7  # Triton refused the kernel
    EXITED = 8  # SystemExit
    NO_ENTRY = 9
    GUARD_CHANGED = 10  # memory around a tensor the submission allocated was written
    DEVICE_FAULT = 11  # a CUDA error: the context is lost
    ROUNDING_DOT = 12  # the machine saw a dot that rounds on a GPU where fp32 was asked for
    TRACE_FAILED = 13  # the call came back; the judge's own tracer, which watched it, did not
    FORBIDDEN_OPERATOR = 14  # PyTorch computed, or gave values away, where it may not
    NOT_MODELLED = 15  # the machine cannot run the kernel: there is no verdict on it
    STOPPED = 16  # the machine stopped a kernel that took too long
    ASKS = 17  # the plan ends at a value that has to be computed first


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer of the worker; `line` is a line of the submission, 0 when unknown.

    `launches` counts the Triton kernels that the request started; `kernels` are their lines, of the
    first `MAX_KERNELS` of the file. `multiply_adds` are those of PyTorch's products of matrices.
    `shapes` are those of an error, as `grader.kernel.compile.shapes` writes them.
    """

    nonce: int
    status: Status
    line: int = 0
    launches: int = 0
    error_type: str = ""
    text: str = ""
    kernels: tuple[int, ...] = ()
    multiply_adds: int = 0
    shapes: str = ""

    def pack(self) -> bytes:
        """Return the packet; text that is too long loses its middle."""
        text = self.text
        if len(text) > 1900:
            text = text[:1200] + " ... " + text[-650:]
        if self.shapes:  # cut off below where there is no room: of little use without a text
            text += _SHAPES + self.shapes
        return REPLY.pack(
            MAGIC,
            self.nonce,
            int(self.status),
            max(0, min(self.line, 2**31)),
            max(0, min(self.launches, 2**31)),
            max(0, min(self.multiply_adds, 2**63)),
            self.error_type.encode("utf-8", "replace")[:64],
            text.encode("utf-8", "replace")[:2048],
            *(*self.kernels, *[0] * MAX_KERNELS)[:MAX_KERNELS],
        )

    @staticmethod
    def unpack(packet: bytes) -> Reply | None:
        """Return the reply in `packet`, or None when it is not one."""
        if len(packet) != REPLY.size:
            return None
        magic, nonce, status, line, launches, adds, error_type, text, *lines = REPLY.unpack(packet)
        kernels = tuple(line for line in lines if line)
        if magic != MAGIC or status not in Status._value2member_map_:
            return None

        def decode(raw: bytes) -> str:
            return raw.rstrip(b"\0").decode("utf-8", "replace")

        said, _, shapes = decode(text).partition(_SHAPES)
        return Reply(
            nonce, Status(status), line, launches, decode(error_type), said, kernels, adds, shapes
        )


@dataclasses.dataclass(frozen=True)
class Ended:
    """Why a worker gave no reply: `timeout`, or it died by `signal_name` or with `exit_code`.

    Both are None when it lives but closed its end of the channel. `started` is False if only the
    judge's own code had run in it. `line` is where the submission was, 0 if unknown; `recursive`,
    whether the stack held such a line many times; `compiling`, whether Triton's compiler was at
    work; `over`, which limit it exceeded, for which the judge ended it. If it was ended because the
    machine had no core for it, `starved_s` is how long it had waited for one.
    """

    timeout: bool = False
    exit_code: int | None = None
    signal_name: str | None = None
    line: int = 0
    waited_s: float = 0.0
    started: bool = True
    recursive: bool = False
    compiling: bool = False
    over: str | None = None
    starved_s: float = 0.0

    def how(self, what: str) -> str:
        """Say how it ended, during `what`."""
        if self.starved_s:
            return (
                f"not measured: the machine is too busy: the {what} had {self.waited_s:.3g} s and"
                f" waited {self.starved_s:.3g} s for a core"
            )
        if self.compiling:
            return f"Triton was still compiling after {self.waited_s:.3g} s: the {what} was stopped"
        if self.timeout:
            return f"no result after {self.waited_s:.3g} s: the {what} was stopped"
        if self.over is not None:
            return f"the judge ended the {what}: {self.over}"
        if self.signal_name:
            return f"the process died with {self.signal_name} during the {what}"
        if self.exit_code is not None:
            return f"the process exited with code {self.exit_code} during the {what}"
        return f"the process closed its connection to the judge during the {what}"


def failed(result: Reply | Ended) -> bool:
    """Whether a worker's answer is anything but success."""
    return isinstance(result, Ended) or result.status != Status.OK
