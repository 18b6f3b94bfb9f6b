"""Opens a page in a browser, from a process of its own: `python -I browser.py FILE`.

The judge adopts and kills what submissions leave behind, and would take a browser for that. This
process adopts the browser instead, and stays as long as it runs. It prints `opened` or `none`.
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
    """Open a page; False where there is no browser with windows. `start` starts a process."""
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
    """Open the page, say whether that could be done, and wait for what was started."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    said = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    try:
        browser = webbrowser.get()
        # One for text would want the terminal on which the watch is shown.
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
