"""Text that is safe on a terminal, wrapped and cut to a width, and numbers with units."""

import math

import pytest
from rich.cells import cell_len

from grader.base.text import byte_size, clean, clean_lines, fit, milliseconds, plural, points, wrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\r\nc\u2028d", "a b c d"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title", ""),
        ("\x1bcreset", "reset"),
        ("a\u202eb\u2066c\u200bd\ufeff", "abcd"),
        ("\ud800x\x00\x7f\x85y", "x y"),
        ("a\tb\u00a0c", "a b c"),
        ("漢字 é", "漢字 é"),
        (None, ""),
        (12, "12"),
    ],
)
def test_clean_leaves_nothing_that_a_terminal_interprets(text, expected):
    assert clean(text) == expected


def test_clean_limits_length():
    assert len(clean("x" * 10**6)) == 300
    assert clean("x" * 301).endswith(" [...]")
    assert clean("x" * 300) == "x" * 300
    assert clean("e" + "\u0301" * 100) == "e" + "\u0301" * 2
    assert clean("\x1b[31m" * 10**6 + "x") in ("", " [...]", "[...]")


def test_clean_lines_keeps_the_end():
    tail = clean_lines("\n".join(f"line {i}" for i in range(100)) + "\n\n")
    assert tail == [f"line {i}" for i in range(90, 100)]
    assert clean_lines("\n\n\x1b[31m \n") == []
    assert clean_lines("a\n\nb", lines=2) == ["b"]
    assert max(map(len, clean_lines("y" * 10**6 + "\n" + "z" * 400))) == 160


@pytest.mark.parametrize("text", ["", "a b   c", "x" * 500, "漢" * 200, "a " * 200, " lead"])
def test_wrap_fits_and_keeps_every_character(text):
    lines = wrap(text, 40, "  where   ")
    assert all(cell_len(line) <= 40 for line in lines)
    assert lines[0].startswith("  where   ".rstrip())
    joined = "".join(line[10:] for line in lines)
    assert joined.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", "abc  "),
        ("abcde", "abcde"),
        ("abcdef", "abc.."),
        ("漢字漢字", "漢.. "),
        ("", "     "),
    ],
)
def test_fit_is_exactly_as_wide_as_asked(text, expected):
    assert fit(text, 5) == expected
    assert cell_len(fit(text, 5)) == 5


def test_units_and_digits():
    sizes = [byte_size(n) for n in (0, 1023, 1024, 1_258_291, 11_059_658_752, 2**45, math.nan)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.2 MiB", "10.3 GiB", "32.0 TiB", None]
    times = [milliseconds(n) for n in (0.3574, 14.72, 999, 1000, 61_234, math.inf, None)]
    assert times == ["0.357 ms", "14.7 ms", "999 ms", "1 s", "61.2 s", None, None]
    assert [points(n) for n in (6, 2.5, 0.1 + 0.2, 0, math.nan)] == [*("6", "2.5", "0.3", "0", "?")]
    assert [plural(n, "check") for n in (0, 1, 2)] == ["0 checks", "1 check", "2 checks"]
    assert len(byte_size(1e300)) < 16 and len(milliseconds(1e300)) < 16
