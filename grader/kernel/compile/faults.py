"""Turns an exception of the submission into a reply: status, line, and one sentence.

Runs inside the worker; also prints the part of the traceback that lies in the submission's file.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import itertools
import re
import sys
import traceback
from typing import Any

from grader.kernel.compile import assembler, shapes
from grader.kernel.machine.outside import OutOfBounds
from grader.kernel.machine.steps import Stopped
from grader.kernel.machine.ttir import NotMeasured
from grader.spec.protocol import Reply, Status

_OUTPUT_LIMIT = 2000
_OF_SHAPES = (Status.EXCEPTION, Status.COMPILE_FAILED)


class BadReturn(Exception):
    """The entry point returned something that is not what the problem asks for."""


def explain(nonce: int, error: BaseException, path: str, *, importing: bool) -> Reply:
    """Return the reply for `error`, which came out of the submitted file at `path`."""
    if isinstance(error, BadReturn):
        return Reply(nonce, Status.BAD_RETURN, text=_text(error))
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # room for what follows
    chain = _chain(error)
    line = 0
    for cause in chain:  # the innermost cause that passes through the submission's file wins
        line = _read_line(cause, path) or _line_in(cause, path) or line
    # NotMeasured counts even if a file has raised another error from it: its class tells why.
    shown = next((e for e in chain if isinstance(e, NotMeasured)), error)
    text = _text(shown)
    status = _status(error, chain, text, path, importing)
    compiling = _compiling(chain)
    if status is Status.COMPILE_FAILED and compiling:
        shown = compiling[-1]
        # The innermost may lie in Triton's own library, which the submission called.
        for e in compiling:
            with contextlib.suppress(Exception):
                line = _line_of(e.src, e.node, path) or line
        text = _plain(_text(shown.error_message or shown.__cause__ or "").strip())
        if _source_line(path, line).startswith("raise NotImplementedError"):
            status = Status.NOT_IMPLEMENTED  # a step of a stub, which Triton cannot compile
    elif status is Status.EXITED:
        text = f"{_name(error)} raised with {_text(error) or 'no argument'}"
    source = _source_line(path, line)
    if not text and not source.startswith("raise"):
        text = source  # an assertion without a message
    raw = text
    if assembler.is_refusal(text):
        raw, line = assembler.detail(text), assembler.line_of(text, path) or line
        text = assembler.sentence(text)
    _print_traceback(chain, shown, raw, path)
    kind = shown.how if isinstance(shown, OutOfBounds) else _name(shown)
    if isinstance(shown, ValueError) and _raised_in(shown, path):
        kind = "ValueError"  # even if it is a subclass of the submission's
    sizes = shapes.shapes_of(chain, path) if status in _OF_SHAPES else ""
    return Reply(nonce, status, line, error_type=kind, text=text, shapes=sizes)


def unexplained(nonce: int, raised: BaseException) -> Reply:
    """Return the reply for an error that raises another, `raised`, when `explain` reads it.

    `raised` is a MemoryError if the submission has left no memory to read its own error.
    """
    if isinstance(raised, MemoryError):
        return Reply(nonce, Status.OUT_OF_MEMORY, error_type="MemoryError")
    text = "an exception that raises another when it is looked at"
    return Reply(nonce, Status.EXCEPTION, error_type="Exception", text=text)


def _status(
    error: BaseException, chain: list[BaseException], text: str, path: str, importing: bool
) -> Status:
    names = {_name(e) for e in chain}
    if any(isinstance(e, NotMeasured) for e in chain):
        return Status.NOT_MODELLED
    if any(isinstance(e, NotImplementedError) and _raised_in(e, path) for e in chain):
        return Status.NOT_IMPLEMENTED
    if any(isinstance(e, OutOfBounds) for e in chain):
        return Status.OUT_OF_BOUNDS
    if any(isinstance(e, Stopped) for e in chain):
        return Status.STOPPED
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return Status.EXITED
    if "OutOfMemoryError" in names or "can't allocate memory" in text or "bad_alloc" in text:
        return Status.OUT_OF_MEMORY
    if any(isinstance(e, MemoryError) for e in chain):
        return Status.OUT_OF_MEMORY
    if any(isinstance(e, OSError) and e.errno == errno.ENOMEM for e in chain):
        return Status.OUT_OF_MEMORY
    if names & {"OutOfResources", "PTXASError"} or _compiling(chain):
        return Status.COMPILE_FAILED
    if "CUDA error" in text:
        return Status.DEVICE_FAULT
    if importing or isinstance(error, ImportError):
        return Status.IMPORT_FAILED
    return Status.EXCEPTION


def _text(value: Any) -> str:
    try:
        return "".join([str(value)])  # a plain str, even if str() returns a subclass
    except BaseException as error:  # the submission's own __str__
        return f"(its text cannot be read: {_name(error)})"


def _plain(text: str) -> str:
    """Return an error as Python shows it, where Triton gives its repr: NameError('x is ...')."""
    match = re.fullmatch(r"(\w+)\((['\"])(.*?)\2,?\)", text, re.DOTALL)
    return f"{match[1]}: {match[3]}" if match else text


def _name(value: Any) -> str:
    """Return the name of a value's class, whatever its metaclass says."""
    return type.__dict__["__name__"].__get__(type(value))


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and all(cause is not e for e in chain) and len(chain) < 10:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return chain


def _compiling(chain: list[BaseException]) -> list[Any]:
    """Return the errors that Triton raises about code that it compiles."""
    return [e for e in chain if hasattr(e, "node") and hasattr(e, "error_message")]


def _line_in(error: BaseException, path: str) -> int:
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 0
    lines = [n for f, n in traceback.walk_tb(error.__traceback__) if _file(f) == path]
    return lines[-1] if lines else 0


def _raised_in(error: BaseException, path: str) -> bool:
    """Whether the submission itself raised `error`; torch raises NotImplementedError too."""
    frames = [_file(frame) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1] == path


def _file(frame: Any) -> str:
    return frame.f_code.co_filename


def _read_line(error: BaseException, path: str) -> int:
    """Return the line of a kernel that Triton was reading when it raised an error without one."""
    line, source = 0, ""
    with contextlib.suppress(Exception):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            this, node = frame.f_locals.get("self"), frame.f_locals.get("node")
            if frame.f_code.co_name == "cache_key":
                source = this.src if this.fn.__code__.co_filename == path else ""
            elif source and isinstance(node, (ast.expr, ast.stmt)):
                line = _line_of(source, node, path)
    return line


def _line_of(source: str, node: Any, path: str) -> int:
    """Return the file's line of a part of a function, whose own lines count from the function."""
    with open(path, encoding="utf-8-sig") as file:
        text = file.read()
    start = text.find(source.strip().splitlines()[0])
    return text[:start].count("\n") + node.lineno if start >= 0 else 0


def _source_line(path: str, number: int) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8-sig") as file:
        return next(itertools.islice(file, max(number - 1, 0), None), "").strip()
    return ""


def _print_traceback(chain: list[BaseException], shown: Any, text: str, path: str) -> None:
    """Print the submission's own frames of the error, without harness and libraries."""
    with contextlib.suppress(Exception):  # sys.stderr is in the submission's hands
        frames: list[traceback.FrameSummary] = []
        for cause in chain:
            # Without columns: each Python marks a call over several lines in another way.
            frames += [
                traceback.FrameSummary(f.filename, f.lineno, f.name)
                for f in traceback.extract_tb(cause.__traceback__)
                if f.filename == path
            ]
        lines = "".join(traceback.format_list(frames[-8:]))
        last = f"{_name(shown)}: {text[:_OUTPUT_LIMIT]}".removesuffix(": ")
        print(lines + last, file=sys.stderr)
