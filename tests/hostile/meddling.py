"""Files that meddle with the judge's own processes: end, stop, limit them, write into their pipes.

Valid events that claim passes, and writing into the judge's memory, are left to a sandbox.
"""

from tests.hostile.entry import Hostile, Trick, beside, instead

_RIGHT = "return honest(q, k, v, **options)"
_CRASH = ("crash",)
_ANY = ("error", "crash", "timeout", "fail")

# PARENT is the test process, which the judge has forked. `pipe` opens its end of the event pipe,
# the only pipe that it writes to.
HELPERS = """
PARENT = parent()


def arguments_of(pid):
    return open(f"/proc/{pid}/cmdline").read().split("\\0")


def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def option(pid, name):
    arguments = arguments_of(pid)
    if name in arguments:
        return arguments[arguments.index(name) + 1]
    return next(a.partition("=")[2] for a in arguments if a.startswith(name + "="))


def found(pid, name, mode):
    for fd in sorted(map(int, os.listdir(f"/proc/{pid}/fd"))):
        flags = open(f"/proc/{pid}/fdinfo/{fd}").read().partition("flags:")[2].split()[0]
        path = f"/proc/{pid}/fd/{fd}"
        if os.readlink(path).startswith(name) and int(flags, 8) & os.O_ACCMODE == mode:
            return path
    raise FileNotFoundError(name)


def pipe(mode=os.O_WRONLY):
    return os.open(found(PARENT, "pipe:", os.O_WRONLY), mode)


def daemon(work):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            try:
                work()
            finally:
                os._exit(0)
        os._exit(0)
    os.wait()
"""


def _once(lines: str) -> str:
    """The helpers inside of a trick, which is one function."""
    return HELPERS + lines


_GARBAGE_ALIVE = """\
def work():
    while True:
        os.write(garbage, b"alive!\\n" * 100)
        time.sleep(0.1)
garbage = pipe()
daemon(work)
"""
_NO_EVENTS = """\
lines = [
    b"[]", b"{}", b"null", b"\\0", b"\\xff\\xfe", b"9" * 9999, b"[" * 9**5, b'{"event": "end"}',
    b'{"event": "begin", "check": "x" * 9, "index": 0}', b'{"event": "end", "check": "plain"}',
    b'{"event": "end", "check": [1], "index": 1e999, "finding": {"verdict": "perfect"}}',
]
os.write(pipe(), b"\\n".join(lines) + b"\\n")
"""
TRICKS = (
    Trick("kills the test process", _once("os.kill(PARENT, 9)\ntime.sleep(9)"), _CRASH),
    Trick("interrupts the test process", _once("os.kill(PARENT, 2)\ntime.sleep(9)"), _CRASH),
    Trick(
        "garbage before the next event", _once(f"os.write(pipe(), b'garbage')\n{_RIGHT}"), _CRASH
    ),
    Trick(
        "lines of garbage",
        _once(
            f"to = pipe()\nfor _ in range(2000): os.write(to, os.urandom(99) + b'\\n')\n{_RIGHT}"
        ),
        ("pass",),
    ),
    Trick("events that are none", _once(f"{_NO_EVENTS}{_RIGHT}"), ("pass",)),
    Trick(
        "writes into the log",
        _once(
            "for fd in (1, 2):\n    with open(f'/proc/{PARENT}/fd/{fd}', 'wb') as log:\n"
            f"        log.write(b'\\x1b[31m INTERNAL ERROR\\n' * 100_000)\n{_RIGHT}"
        ),
        ("pass",),
    ),
    Trick(
        "a list in place of the report",
        _once(
            "path = found(parent_of(PARENT), '/memfd:report', os.O_RDWR)\n"
            f"open(path, 'w').write('[]')\n{_RIGHT}"
        ),
        ("pass",),
    ),
)
STOPPED = (
    Trick(
        "stops the test process",
        _once("os.kill(PARENT, signal.SIGSTOP)\ntime.sleep(99)"),
        _CRASH,
        seconds=45.0,
    ),
)
STOPPED_AND_GARBAGE = (
    Trick(
        "stops it and writes in its place",
        _once(f"{_GARBAGE_ALIVE}os.kill(PARENT, signal.SIGSTOP)\ntime.sleep(99)"),
        _CRASH,
        seconds=45.0,
    ),
)

_FOLDER = "shutil.rmtree(own(os.path.dirname(os.getcwd())))\n"
_STOP_SERVER = """\
judge = parent_of(PARENT)
for pid in map(int, open(f"/proc/{judge}/task/{judge}/children").read().split()):
    if os.getsid(pid) == os.getsid(judge):
        os.kill(pid, signal.SIGSTOP)
"""
_STEAL = """\
def steal():
    source = pipe(os.O_RDONLY)
    while True:
        os.read(source, 65536)
threading.Thread(target=steal, daemon=True).start()
"""
_FLOOD = """\
def flood():
    to = pipe()
    while True:
        os.write(to, b"x" * 65536)
threading.Thread(target=flood, daemon=True).start()
"""
_LATE_KILL = """\
def work():
    time.sleep(0.5)
    os.kill(PARENT, 9)
daemon(work)
"""
_MINE = """
def mine():
    folder = option(parent_of(PARENT), "--submission")
    file = os.path.basename(__file__)
    places = [os.path.join(folder, problem, file) for problem in os.listdir(folder)]
    return own(next(place for place in places if os.path.exists(place)))
"""


def _limit(name: str, value: str = "0, 0") -> str:
    return f"resource.prlimit(PARENT, resource.{name}, ({value}))\n"


def _at_import(name: str, lines: str, verdicts: tuple[str, ...] = _ANY, **fields) -> Hostile:
    return Hostile(name, instead("return tensors[0]", HELPERS + lines), verdicts, **fields)


LIMITED = (
    _at_import("no descriptors for the test process", _limit("RLIMIT_NOFILE")),
    _at_import(
        "few descriptors for the test process", _limit("RLIMIT_NOFILE", "12, 12"), slow=True
    ),
    _at_import("no files for the test process", _limit("RLIMIT_FSIZE"), slow=True),
    _at_import("no memory for the test process", _limit("RLIMIT_AS", "2**20, 2**20"), slow=True),
    _at_import("no data for the test process", _limit("RLIMIT_DATA", "2**20, 2**20"), slow=True),
    _at_import("no stack for the test process", _limit("RLIMIT_STACK"), slow=True),
    _at_import("no CPU time for the test process", _limit("RLIMIT_CPU", "1, 1"), slow=True),
    _at_import("no processes for the test process", _limit("RLIMIT_NPROC"), slow=True),
)
OTHERS = (
    _at_import(
        "kills the test process at import", "os.kill(PARENT, 9)\ntime.sleep(9)\n", slow=True
    ),
    _at_import("the judge's folder is gone", _FOLDER),
    _at_import(
        "the judge's folder is gone, and so is the worker", f"{_FOLDER}os._exit(1)\n", slow=True
    ),
    _at_import("stops the process that test processes are forked from", _STOP_SERVER),
    _at_import("reads the judge's events", _STEAL),
    _at_import("a flood in the judge's pipe", _FLOOD, slow=True),
)


def _with_answer(problem: str, name: str, lines: str, verdicts: tuple[str, ...]) -> Hostile:
    head = f"{HELPERS}{_MINE}{lines}"
    points = {"p01": 12.0, "p02": 7.0}[problem]
    source = beside(problem, "return honest(*args, **options)", head)
    return Hostile(name, source, verdicts, problem=problem, points=points)


# What was read first is graded and hashed, whatever becomes of the file meanwhile.
WITH_ANSWER = (
    _with_answer(
        "p01", "kills the test process between two cases", _LATE_KILL, ("pass", "crash", "timeout")
    ),
    _with_answer(
        "p02",
        "another file in its place",
        "open(mine(), 'w').write('import no_such_module')\n",
        ("pass",),
    ),
    _at_import("deletes its file", f"{_MINE}os.remove(mine())\n", ("error",)),
    _at_import(
        "a link in its place",
        f"{_MINE}os.remove(mine())\nos.symlink('/dev/zero', mine())\n",
        ("error",),
    ),
)
