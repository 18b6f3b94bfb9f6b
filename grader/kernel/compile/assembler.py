"""Says in one sentence what NVIDIA's assembler (ptxas) refused, and in which line. In the worker.

Triton raises all that ptxas printed, with the command to repeat it. ptxas names lines of PTX, whose
`.loc` directives give the source line of each instruction.
"""

from __future__ import annotations

import os
import re
import stat

WHO = "NVIDIA's assembler"
_MAX_PTX_BYTES = 64 * 2**20
_MAX_TEXT = 200
_ERROR = re.compile(
    r"^ptxas(?:-blackwell)? (?:(.*\.ptx), line (\d+); *)?(?:error|fatal) *: *(.*)", re.MULTILINE
)
_NO_CAUSE = "Ptx assembly aborted"
_ENDED = (
    (r"raised SIGSEGV", "died with SIGSEGV on the kernel"),
    (r"failed with error code (-?\d+)", "failed on the kernel with error code {0}"),
)
_NUMBER = r"(0x[0-9a-fA-F]+|\d+)"
# Messages of ptxas of CUDA 12 and 13, and the text to follow "NVIDIA's assembler ".
_SENTENCES = (
    (
        rf"uses too much (\w+) data \({_NUMBER} bytes.*?, {_NUMBER} max",
        "refuses the kernel: it needs {1} bytes of {0} memory, the chip has {2}",
    ),
    (
        r"Register allocation failed with register count of '(\d+)'",
        "refuses the kernel: {0} registers per thread are not enough for it",
    ),
    (r"Not a name of any known instruction: '(.*?)'", "knows no instruction '{0}'"),
    (
        r"(?:Modifier|Feature|Instruction) '(.*?)'(?: on '.*?')? requires \.target (\w+) or higher",
        "refuses '{0}', which this chip lacks: it needs {1} or higher",
    ),
    (
        r"(?:Feature|Instruction) '(.*?)' not supported on \.target '(.*?)'",
        "refuses '{0}', which this chip ({1}) lacks",
    ),
    (r"Value '(.*?)' is not defined for option 'gpu-name'", "does not know this GPU ({0})"),
    (
        r"Unsupported \.version (\S+); current version is '(.*?)'",
        "is too old for this Triton: it reads PTX {1}, the kernel is PTX {0}",
    ),
)


def is_refusal(text: str) -> bool:
    """Whether a text contains what Triton raises when the assembler fails."""
    return "PTXAS error: " in text or "`ptxas` stderr:" in text


def sentence(text: str) -> str:
    """Return what the assembler refused, in words that need no knowledge of assembly."""
    errors = [match[3].strip() for match in _ERROR.finditer(text)]
    causes = [error for error in errors if not error.startswith(_NO_CAUSE)]
    for cause in causes:
        said = _translated(cause, _SENTENCES)
        if said is not None:
            return f"{WHO} {said}"
    if causes:
        return f"{WHO} refuses the kernel: {_without_folders(causes[0])[:_MAX_TEXT]}"
    return f"{WHO} {_translated(text, _ENDED) or 'refuses the kernel and does not say why'}"


def detail(text: str) -> str:
    """Return the assembler's own words, without the command that would run it again."""
    own = text.partition("`ptxas` stderr:")[2] or text
    lines = own.partition("Repro command:")[0].strip().splitlines()
    return "\n".join(_without_folders(line) for line in lines if line.strip())


def line_of(text: str, path: str) -> int:
    """Return the line of the file at `path` that the refused instruction comes from, 0 if unknown.

    The message names the file in which Triton leaves the refused PTX.
    """
    for match in _ERROR.finditer(text):
        if match[1] is not None and not match[3].startswith(_NO_CAUSE):
            return _source_line(_read(match[1]), int(match[2]), path)
    return 0


def _translated(text: str, sentences: tuple[tuple[str, str], ...]) -> str | None:
    for pattern, said in sentences:
        match = re.search(pattern, text, re.DOTALL)
        if match:
            return said.format(*map(_decimal, match.groups()))[:_MAX_TEXT]
    return None


def _decimal(number: str) -> str:
    return str(int(number, 16)) if re.fullmatch(r"0x[0-9a-fA-F]+", number) else number


def _without_folders(text: str) -> str:
    return re.sub(r"(?<![\w.])/(?:[^\s/,;'\"]+/)+", "", text)


def _read(ptx: str) -> list[str]:
    try:
        descriptor = os.open(ptx, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return []
            return file.read(_MAX_PTX_BYTES).decode("utf-8", "replace").split("\n")
    except (OSError, ValueError):
        return []


def _source_line(rows: list[str], number: int, path: str) -> int:
    """Return the source line of the last `.loc` at or before line `number` of the PTX.

    In an inlined function that is its innermost line, not its caller's, which `inlined_at` has.
    """
    files = {}
    for row in rows:
        if match := re.match(r'\s*\.file\s+(\d+)\s+"(.*?)"', row):
            files[match[1]] = match[2]
    for row in reversed(rows[: max(number, 0)]):
        if match := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", row):
            return int(match[2]) if files.get(match[1]) == path else 0
        if row.lstrip().startswith((".entry", ".visible", ".func")):
            break  # of the function before
    return 0
