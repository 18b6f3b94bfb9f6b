"""How a command of a class hands its text to the one who prints it."""

from __future__ import annotations

from collections.abc import Callable

# Takes a function of width and color that returns the text.
Show = Callable[[Callable[..., str]], None]
