"""Files that are hard to read, to parse or to import, and things that are no files."""

import os
import socket
from dataclasses import replace
from pathlib import Path

from grader.spec.problem import ROOT
from tests.hostile.entry import Hostile, answer, instead

_DEF = "def ENTRY(*tensors, **options):\n"
_RETURN = f"{_DEF}    return tensors\n"
_CRASH = ("crash",)
_LATE = ("error", "not-implemented", "rejected")
_LONG = "7" * 5000
_UTF7 = "# coding: utf-7\n" + _RETURN + "+AAo-import os+AAo-os._exit(0)\n"


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _dangling(path: Path) -> None:
    path.symlink_to(path.name)


def _linked_folder(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to(ROOT / "solutions" / path.parent.name)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_RDONLY)  # the name of a socket has room for 107 bytes
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def _in_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_bytes(b"")


def _forever(path: Path) -> None:
    path.symlink_to("/dev/zero")


PLACES = (
    Hostile("no file", make=lambda path: None),
    Hostile("a folder", make=Path.mkdir),
    Hostile("a pipe", make=os.mkfifo),
    Hostile("a socket", make=_socket),
    Hostile("a link to a file", make=_link),
    Hostile("a link to itself", make=_dangling),
    Hostile("a link to a device", make=_forever),
    Hostile("a folder that is a link to the model answer", make=_linked_folder),
    Hostile("a file of 1 TB", make=_sparse),
    Hostile("a file in a file", make=_in_a_file),
)


def _deep(prefix: str, times: int, core: str = "1", suffix: str = "") -> str:
    return f"{_RETURN}x = {prefix * times}{core}{suffix * times}\n"


_MARKS = "\u0300\u0316"  # above a letter and below it, which the parser sorts
_ALIASES = "".join(f"import a{n} as x\n" for n in range(3000))


def _slow(name: str, text: str) -> Hostile:
    """What took the parser or the policy longer than linear time."""
    return Hostile(name, text, ("rejected",), policy=True)


# Refused for their text, nearly all: nothing of them runs.
UNREADABLE = (
    Hostile("a cookie for UTF-7", _UTF7),
    Hostile("a cookie for Latin-1", "\n# vim: set fileencoding=latin-1 :\n" + _RETURN),
    Hostile("an unknown cookie", "# -*- coding: \x1b[31mx -*-\n" + _RETURN),
    Hostile("an unknown cookie of 5,000 letters", f"# coding: {'x' * 5000}\n" + _RETURN),
    Hostile("UTF-16", _RETURN.encode("utf-16")),
    Hostile("Latin-1 without a cookie", (_RETURN + "# é\n").encode("latin-1")),
    Hostile("a lone surrogate", "# \ud800\n" + _RETURN),
    Hostile("NUL", _RETURN + "\0"),
    Hostile("only NUL", bytes(1000)),
    Hostile("only blanks", " \t\f\n" * 1000),
    Hostile("one byte too long", _RETURN + "#" * (128 * 1024)),
    Hostile("a huge f-string", f'{_RETURN}x = f"{"{x}" * 40_000}"\n', _LATE),
    _slow("a package above 120,000 others", f"from {'.' * 120_000}a import b\n{_RETURN}    b\n"),
    _slow("a module in 60,000 others", f"import a{'.a' * 60_000} as b\n{_RETURN}    b\n"),
    _slow("a name of 30,000 marks in disorder", f"a{_MARKS * 15_000} = eval\n{_RETURN}"),
    _slow("a name for 3,000 modules", f"{_ALIASES}{_RETURN}" + "    x.b\n" * 8_000),
    Hostile("brackets in brackets", _deep("(", 60_000, suffix=")")),
    Hostile("minus minus", _deep("-", 120_000)),
    Hostile("a sum of a sum", _deep("1+", 60_000)),
    Hostile("a chain of attributes", _RETURN + "x = " + "a." * 60_000 + "a\n"),
    Hostile("a chain of elif", f"{_RETURN}if 0: 0\n" + "elif 0: 0\n" * 12_000),
    Hostile("100 blocks in blocks", _RETURN + "".join(" " * n + "if 1:\n" for n in range(120))),
    Hostile("a number of 5,000 digits", f"{_RETURN}x = {_LONG}\n"),
    Hostile(
        "a step of 5,000 digits",
        f"# >>> step {_LONG}: x\n# <<< step {_LONG}\n{_DEF}    raise NotImplementedError\n",
        ("not-implemented",),
    ),
    Hostile(
        "a step that nobody has",
        f"# >>> step 999: x\n# <<< step 999\n{_DEF}    raise NotImplementedError('x')\n",
        ("not-implemented",),
    ),
    Hostile(
        "not implemented, at length",
        f"{_DEF}    raise NotImplementedError('\u202e \\x1b[31m<b>[red]\\n{'x' * 100_000}')\n",
        ("not-implemented",),
    ),
    Hostile("10,000 other functions", "".join(f"def f{n}(): 0\n" for n in range(8_000))),
    Hostile("an async function", "async " + _RETURN),
    Hostile("positional only", "def ENTRY(q, k, /): 0\n"),
    Hostile("a name in look-alike letters", _RETURN.replace("ENTRY", "\u0435ntry")),
)

# Found out when the file is imported, or when it is called for the first time.
UNUSABLE = (
    Hostile("a syntax error for the compiler alone", f"{_RETURN}return 1\n"),
    Hostile("parsed but not compiled", _RETURN + "x = [" + "[0 for x in " * 19 + "[]" + "]" * 20),
    Hostile("an entry that is deleted", f"{_RETURN}del ENTRY\n"),
    Hostile("an entry that is a number", f"{_RETURN}ENTRY = 5\n"),
    Hostile("an entry of no class", "class ENTRY:\n    def __init__(*a, **k): pass\n", slow=True),
    Hostile("a generator", instead("yield tensors")),
    Hostile(
        "a partial of itself",
        "import functools\nENTRY = functools.partial(print, 'x')\n",
        slow=True,
    ),
    Hostile("imports everything from nothing", f"from nothing import *\n{_RETURN}", slow=True),
    Hostile("exits at import", f"import sys\nsys.exit(0)\n{_RETURN}"),
    Hostile("_exit(0) at import", f"import os\nos._exit(0)\n{_RETURN}", ("crash",)),
    Hostile("kills itself at import", f"import os\nos.kill(os.getpid(), 9)\n{_RETURN}", _CRASH),
    Hostile(
        "not implemented at import",
        f"raise NotImplementedError('x')\n{_RETURN}",
        ("not-implemented",),
    ),
    Hostile(
        "no modules any more", f"import sys\nsys.modules.clear()\n{_RETURN}", ("error", "crash")
    ),
    Hostile(
        "a module that replaces itself",
        f"import sys\nsys.modules[__name__] = 5\n{_RETURN}",
        slow=True,
    ),
    Hostile(
        "deletes the worker",
        "import sys\nmain = sys.modules['__main__']\n"
        f"sys.modules.get('grader.isolate.serving', main).__dict__.clear()\n{_RETURN}",
        ("error", "crash"),
    ),
)

_P01 = answer("p01")
READABLE = (
    Hostile(
        "BOM, CRLF, a cookie for UTF-8 and names in wide letters",
        ("# coding: UTF-8\n" + _P01.replace("def flash_attention", "def ｆlash_ａttention"))
        .replace("\n", "\r\n")
        .encode("utf-8-sig"),
        ("pass",),
        problem="p01",
        points=12.0,
        slow=True,
    ),
    Hostile(
        "CR as the end of a line",
        answer("p02").replace("\n", "\r"),
        ("pass", "error"),
        problem="p02",
        points=7.0,
    ),
)

# One room refuses them all. In `make test` tests/test_source.py reads each, and a few are graded.
_GRADED = ("an unknown cookie", "NUL", "a huge f-string", "brackets in brackets")
REFUSED = tuple(replace(e, slow=True) for e in UNREADABLE if e.name not in _GRADED)
ENTRIES = (
    *PLACES,
    *(entry for entry in UNREADABLE if entry.name in _GRADED),
    *REFUSED,
    *UNUSABLE,
    *READABLE,
)
