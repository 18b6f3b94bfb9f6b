"""Near-identical submissions, listed for a person to look at: no points depend on the list.

Code is compared by runs of tokens, found with copydetect (Schleimer, Wilkerson, Aiken: Winnowing,
SIGMOD 2003). Left out are comments, layout, and every run that is in the stub or in what it may
import of `given`. Measured on the wrong kernels of tests/mutants, which are copies of a model
answer with one edit or a few, and on right answers that were written apart from each other
(tests/unusual, tests/written_apart.py):

- NEAR_SHARE of either file's own tokens are in the other: so are 90 % (p04) to 100 % of the copies
  with edits. Of answers written apart none share more than 0.49, p02's aside.
- RENAMED_SHARE is that of files in which other names count as the same. A copy with nothing but
  names changed shares all; of answers written apart none share more than 0.84, p02's aside.
- MIN_LINES: where there is less to write, identical files alone are looked for. Answers to p02 (8
  lines) that were written apart share up to 0.84: names and order are those of the stub.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import io
import itertools
import keyword
import operator
import tokenize
from collections.abc import Iterable, Mapping, Sequence, Set

from grader.spec.problem import GIVEN, ROOT, Problem

RUN = 16  # tokens that have to agree in a row, about a line and a half
MAX_TOKENS = 20_000  # five times the longest model answer; memory grows with the square
_LEFT_OUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
_ENOUGH = 0.4  # of 80 % of the tokens as many runs are common, but for an edit every 27 tokens
_MASK = (1 << RUN) - 1


def text_of(data: bytes) -> str:
    """Return a file as text whose lines end as Python counts them."""
    return data.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")


def tokens_of(data: bytes) -> list[tuple[str, int]] | None:
    """Return the tokens of a file, comments and layout left out, each with its line.

    A string is no more than a string. None where the file is no Python, or too long.
    """
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text_of(data)).readline):
            if token.type not in _LEFT_OUT:
                text = '""' if token.type == tokenize.STRING else token.string
                found.append((text, token.start[0]))
    except (tokenize.TokenError, SyntaxError):
        return None
    return found if len(found) <= MAX_TOKENS else None


def without_names(tokens: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return tokens in which a name is no more than a name, but for keywords and attributes."""
    found: list[tuple[str, int]] = []
    before = ""
    for text, line in tokens:
        named = text.isidentifier() and not keyword.iskeyword(text) and before != "."
        found.append(("name", line) if named else (text, line))
        before = text
    return found


class Fingerprints:
    """The runs of a file's tokens that are not among those `known`; `size` tokens are in one."""

    def __init__(
        self,
        tokens: Sequence[tuple[str, int]],
        codes: dict[str, int],
        known: Set[int] = frozenset(),
    ) -> None:
        # Imported here: it loads matplotlib, which no other command of the grader needs.
        from copydetect.utils import get_document_fingerprints

        # A number stands for a token, the same in every file: the hash of a text differs from one
        # process to the next, and the list would.
        numbers = tuple(codes.setdefault(text, len(codes)) for text, _ in tokens)
        # All runs, a window of 1. Not with its parameter `boilerplate`, which takes a run that the
        # file has twice for a known one.
        _, places = get_document_fingerprints(numbers, RUN, 1)
        self._token_lines = [line for _, line in tokens]
        # By run a bit for each token that is in it: what two files share is found by "or".
        self._bits = {
            int(run): functools.reduce(operator.or_, (_MASK << int(place) for place in where))
            for run, where in places.items()
            if run not in known
        }
        self.runs = frozenset(self._bits)
        self.size = self._union(self._bits).bit_count()

    def _union(self, runs: Iterable[int]) -> int:
        bits = 0
        for run in runs:
            bits |= self._bits[run]
        return bits

    def shares(self, other: Fingerprints) -> tuple[float, float]:
        """Return the share of each file's own tokens that are in runs of the other.

        Files that have less than `_ENOUGH` of their runs in common share nothing: that is most
        pairs of a class, and soon found out.
        """
        common = self.runs & other.runs
        if not common or len(common) < _ENOUGH * max(len(self.runs), len(other.runs)):
            return 0.0, 0.0
        mine, theirs = self._union(common), other._union(common)
        return mine.bit_count() / self.size, theirs.bit_count() / other.size

    def lines(self, other: Fingerprints) -> set[int]:
        """Return the lines of this file that lie in runs of the other."""
        bits = self._union(self.runs & other.runs)
        return {line for at, line in enumerate(self._token_lines) if bits >> at & 1}


NEAR_SHARE = 0.8
RENAMED_SHARE = 0.95
MIN_LINES = 12


class Likeness(enum.StrEnum):
    """In which way two files are alike."""

    NEAR = "nearly identical"
    RENAMED = "the same under other names"


@dataclasses.dataclass(frozen=True)
class Copy:
    """One file and who handed it in; `is_model` is the model answer, which may be nobody's."""

    sha256: str
    students: tuple[str, ...]
    data: bytes
    is_model: bool = False


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a file, and whether the other file shares it."""

    number: int
    text: str
    is_shared: bool


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two files that are alike; `shares` of each one's own tokens are in the other."""

    likeness: Likeness
    copies: tuple[Copy, Copy]
    shares: tuple[float, float]
    prints: tuple[Fingerprints, Fingerprints]

    def lines(self) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
        """Return of each file the lines that the other shares, and one around them."""
        (one, other), (a, b) = self.copies, self.prints
        return _shown(one, a.lines(b)), _shown(other, b.lines(a))


@dataclasses.dataclass(frozen=True)
class Found:
    """What is alike among the files of a problem, counted in students.

    `identical` files have several owners. `empty` is who has no code of their own, `unread` whose
    file is no Python or too long. `is_short` says that only identical files were looked for.
    """

    problem: str
    compared: int
    identical: tuple[Copy, ...]
    pairs: tuple[Pair, ...]
    empty: int
    unread: int
    is_short: bool


@dataclasses.dataclass(frozen=True)
class _Read:
    """A file with its fingerprints, names kept and names left out."""

    copy: Copy
    views: tuple[Fingerprints, ...]


def find(problem: Problem, owners: Mapping[str, Sequence[str]], data: Mapping[str, bytes]) -> Found:
    """Return what is alike among files: `owners` and `data` by SHA-256.

    Identical files are found first, and count as one from there on.
    """
    copies = _with_model(
        problem, [Copy(sha, tuple(students), data[sha]) for sha, students in owners.items()]
    )
    read = _read(problem, copies)
    own = [file for file in read if file.views[0].size]
    is_short = sum(step.lines for step in problem.steps) < MIN_LINES
    couples = itertools.combinations(() if is_short else own, 2)
    pairs = [pair for one, other in couples if (pair := _pair(one, other))]
    return Found(
        problem=problem.id,
        compared=_count(file.copy for file in own),
        identical=tuple(f.copy for f in own if len(f.copy.students) + f.copy.is_model > 1),
        pairs=tuple(sorted(pairs, key=lambda pair: -min(pair.shares))),
        empty=_count(file.copy for file in read) - _count(file.copy for file in own),
        unread=_count(copies) - _count(file.copy for file in read),
        is_short=is_short,
    )


def _count(copies: Iterable[Copy]) -> int:
    return sum(len(copy.students) for copy in copies)


def _with_model(problem: Problem, copies: list[Copy]) -> list[Copy]:
    """Add the model answer, where it is in this checkout."""
    path = ROOT / "solutions" / problem.id / problem.file
    if not path.is_file():
        return copies
    data = path.read_bytes()
    model = Copy(hashlib.sha256(data).hexdigest(), (), data, is_model=True)
    same = next((copy for copy in copies if copy.sha256 == model.sha256), model)
    others = [copy for copy in copies if copy is not same]
    return [dataclasses.replace(same, is_model=True), *others]


def _read(problem: Problem, copies: Sequence[Copy]) -> list[_Read]:
    """Return the files that are Python, without the runs that the stub and `given` have."""
    given = [problem.folder / problem.file, *(GIVEN / f"{name}.py" for name in problem.given)]
    known = [tokens_of(path.read_bytes()) or [] for path in given]
    tokens = {copy.sha256: t for copy in copies if (t := tokens_of(copy.data)) is not None}
    codes: dict[str, int] = {}
    views: list[dict[str, Fingerprints]] = []
    for form in (list, without_names):
        everyone = frozenset[int]().union(*(Fingerprints(form(t), codes).runs for t in known))
        views.append({sha: Fingerprints(form(t), codes, everyone) for sha, t in tokens.items()})
    read = (copy for copy in copies if copy.sha256 in tokens)
    return [_Read(copy, tuple(view[copy.sha256] for view in views)) for copy in read]


def _pair(one: _Read, other: _Read) -> Pair | None:
    kinds = (Likeness.NEAR, NEAR_SHARE), (Likeness.RENAMED, RENAMED_SHARE)
    for (likeness, least), a, b in zip(kinds, one.views, other.views, strict=True):
        shares = a.shares(b)
        if min(shares) >= least:
            return Pair(likeness, (one.copy, other.copy), shares, (a, b))
    return None


def _shown(copy: Copy, shared: set[int]) -> tuple[Line, ...]:
    around = {number + step for number in shared for step in (-1, 0, 1)}
    rows = enumerate(text_of(copy.data).split("\n"), start=1)
    return tuple(Line(n, text, n in shared) for n, text in rows if n in around)
