"""`python -m grader explain ID`: what it may be asked for."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the argument of `explain`."""
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="such as P06-WINDOW-SHIFTED (default: list all)"
    )
    parser.add_argument(
        "--only",
        metavar="p04,p05",
        help="list the causes of these problems only; with an ID, the problem of the commands",
    )
