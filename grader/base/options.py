"""Declares the options of a command, each written as its line of --help begins."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).resolve().parents[2]


class Command(NamedTuple):
    """A subcommand; `run` returns its exit code."""

    help: str
    run: Callable[[argparse.Namespace], int]
    options: Mapping[str, str] = {}


# Types of values, by their placeholders; any other placeholder stands for text.
_TYPES = {"N": int, "S": float, "POINTS": float, "DAYS": float}
_TYPES |= dict.fromkeys(("FILE", "DIR", "CSV", "SOURCE"), Path)


def declare(parser: argparse.ArgumentParser, options: Mapping[str, str]) -> None:
    """Declare options: each key is written as its line of --help begins, its value is the help.

    "--quick" is a switch, "--jobs N=1" has a default, "--course DIR!" must be given, "--choose
    NAME..." may be repeated; "DIR" is an argument, "[DIR]" one that may be left out. The default of
    a DIR lies in this checkout.
    """
    for option, about in options.items():
        names, _, default = option.partition("=")
        *others, name = names.split(", ")
        name, _, value = name.partition(" ")
        how: dict[str, Any] = {"help": about or None}
        if not name.startswith("-"):
            how |= {"nargs": "?"} if name.startswith("[") else {}
            value = name.strip("[]")
            name = value.lower()
        if not value:
            how["action"] = "store_true"
        elif value.startswith("{"):
            how |= {"choices": value[1:-1].split(","), "default": default or None}
        else:
            how |= {"required": True} if value.endswith("!") else {}
            how |= {"action": "append", "default": []} if value.endswith("...") else {}
            kind = value.rstrip("!.")
            how |= {"metavar": kind, "type": _TYPES.get(kind, str)}
            if default:
                how["default"] = os.path.relpath(_ROOT / default) if kind == "DIR" else default
        parser.add_argument(*others, name, **how)
