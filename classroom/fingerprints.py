"""Fingerprints of code: runs of tokens, without what is given to everyone."""

from __future__ import annotations

import functools
import io
import keyword
import operator
import tokenize
from collections.abc import Iterable, Sequence, Set

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
