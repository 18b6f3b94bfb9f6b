"""Opens a page in a browser, from a process of its own: `python -I browser.py FILE`.

The judge adopts and kills the orphans of submissions, and would kill a browser too. This process
adopts the browser instead, and runs as long as it does. It prints `opened` or `none`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36


def opens(page: Path, start: Callable[..., Any]) -> bool:
    """Open a page with a process that `start` starts; return False without a graphical browser."""
    keeper = start(
        [sys.executable, "-I", __file__, str(page)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with keeper.stdout:
        return keeper.stdout.read() == b"opened"


def main() -> None:
    """Open the page, print whether that worked, and wait for the browser to end."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    said = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        browser = webbrowser.get()
        # A text browser would take over the terminal that shows the watch.
        texts = type(browser) is webbrowser.GenericBrowser
        opened = not texts and browser.open(Path(sys.argv[1]).absolute().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    os.write(said, b"opened" if opened else b"none")
    os.close(said)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
