"""Tricks with how a call ends: exceptions with hostile texts, deaths, floods, bombs."""

from grader.spec.protocol import REPLY
from tests.hostile.entry import Trick

_CRASH = ("crash",)
_TIMEOUT = ("timeout",)
_RIGHT = "return honest(q, k, v, **options)"
_STAY = "time.sleep(99)"


def _raises(name: str, error: str, *verdicts: str, lines: str = "") -> Trick:
    return Trick(name, f"{lines}raise {error}", verdicts or ("error",))


def _class(text: str) -> str:
    return "class Odd(Exception):\n" + "".join(f"    {line}\n" for line in text.splitlines())


_META = """\
class Meta(type):
    __name__ = property(lambda this: 1 / 0)
class Odd(Exception, metaclass=Meta):
    pass
"""
_CIRCLE = "one, two = KeyError(1), KeyError(2)\none.__cause__, two.__cause__ = two, one\n"
_CHAIN = """\
error = KeyError(0)
for number in range(20000):
    later = KeyError(number)
    later.__cause__ = error
    error = later
"""
_COMPILER = _class(
    "node = property(lambda this: 1 / 0)\nsrc = 5\nerror_message = property(lambda this: this)"
)
_LINE = """\
def fail():
    raise KeyError("line")
fail.__code__ = fail.__code__.replace(co_firstlineno=2**31 - 2)
fail()
"""
_DUMP = """\
sys.stdout.flush()
frame = b'  File "flash_attention.py", line 12' + b"9" * 5000
os.write(2, b"Fatal Python error: x\\n" + frame + b" in f\\n" + frame + b"\\n")
os.abort()
"""

RAISED = (
    _raises("escapes", r"KeyError('\x1b[2J\x1b]0;title\x07\r\b\x00')"),
    _raises("a text of 10 MB", "RuntimeError('spam ' * 2_000_000)"),
    _raises("lone surrogates", r"RuntimeError('\ud800 \udfff')"),
    _raises("right to left", r"RuntimeError('\u202eevil\u2066')"),
    _raises("markup", "RuntimeError('[red]</b>[/red]<script>alert(1)</script>|')"),
    _raises("5,000 lines", "RuntimeError('line\\n' * 5000)"),
    _raises("__str__ exits", "Odd", lines=_class("def __str__(this):\n    sys.exit(0)")),
    _raises(
        "__str__ is endless", "Odd", *_TIMEOUT, lines=_class("def __str__(this):\n    while 1: 0")
    ),
    _raises("__str__ gives a number", "Odd", lines=_class("__str__ = lambda this: 5")),
    _raises("a class without a name", "Odd", "error", "crash", lines=_META),
    _raises(
        "a lying __class__",
        "Odd",
        "error",
        "crash",
        lines=_class("__class__ = property(lambda _: 1 / 0)"),
    ),
    _raises(
        "equal to everything", "Odd", lines=_class("__eq__ = lambda a, b: True\n__hash__ = None")
    ),
    _raises("causes in a circle", "one", lines=_CIRCLE),
    _raises("a chain of causes", "error", lines=_CHAIN),
    _raises("a compiler's error", "Odd", "error", "crash", lines=_COMPILER),
    _raises("a group of groups", "ExceptionGroup('one', [ExceptionGroup('two', [KeyError(3)])])"),
    _raises("KeyboardInterrupt", "KeyboardInterrupt"),
    _raises("GeneratorExit", "GeneratorExit"),
    _raises("BaseException", "BaseException('base')"),
    _raises("SystemExit(0)", "SystemExit(0)"),
    _raises("not implemented, in one case", "NotImplementedError('later')", "not-implemented"),
    _raises("MemoryError by hand", "MemoryError", "out-of-memory"),
    _raises("no recursion left", "RecursionError"),
    Trick("a line beyond 2**31", _LINE + _RIGHT),
    Trick("a forged dump with 5,000 digits", _DUMP, _CRASH),
    Trick(
        "no output and no error output",
        "sys.stdout.close()\nsys.stderr = None\nraise KeyError('closed')",
    ),
)

_LATE_DEATH = "out, lse = honest(q, k, v, **options)\n"
_FORGED = f"""\
frame = sys._getframe()
while "request" not in frame.f_locals:
    frame = frame.f_back
nonce = frame.f_locals["request"]["nonce"]
channel = socket.socket(fileno=os.dup(int(sys.argv[1])))
reply = lambda number, status: b"grader2\\0" + number.to_bytes(8, "little") + bytes(
    [status]
) + b"\\xff" * {REPLY.size - 17}
"""
_STACK = """\
sys.setrecursionlimit(10**9)
class Deeper:
    def __getattr__(this, name):
        return getattr(this, name + "r")
Deeper().deeper
"""
_MEMORY = "held = [bytearray(2**26) for _ in range(96)]\n"  # 6 GiB, of 4 that are allowed
_THREADS = """\
for _ in range(2000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
_SIGNALS = """\
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
"""

ENDED = (
    Trick("_exit(0)", "os._exit(0)", _CRASH),
    Trick("_exit(0) after computing", f"{_LATE_DEATH}os._exit(0)", _CRASH),
    Trick("abort", "os.abort()", _CRASH),
    Trick("reads address 0", "ctypes.string_at(0)", _CRASH),
    Trick("kills itself", "os.kill(os.getpid(), 9)", _CRASH),
    Trick("a signal without a name", "os.kill(os.getpid(), 40)", _CRASH),
    Trick("an alarm", f"signal.alarm(1)\n{_STAY}", _CRASH),
    Trick("stops itself", f"os.kill(os.getpid(), signal.SIGSTOP)\n{_RIGHT}", _TIMEOUT),
    Trick("becomes another program", "os.execv('/bin/sleep', ['sleep', '99'])", _TIMEOUT),
    Trick("another program that ends well", "os.execv('/bin/true', ['true'])", _CRASH),
    Trick("sleeps", _STAY, _TIMEOUT),
    Trick("an endless loop", "while True: pass", _TIMEOUT),
    Trick("an endless loop in C", "import re\nre.match('(a+)+b', 'a' * 60)", _TIMEOUT),
    Trick("a lock twice", "lock = threading.Lock()\nlock.acquire()\nlock.acquire()", _TIMEOUT),
    Trick("ignores all signals", f"{_SIGNALS}{_STAY}", _TIMEOUT),
    Trick(
        "no fault handler",
        "import faulthandler\nfaulthandler.disable()\nwhile True: pass",
        _TIMEOUT,
    ),
    Trick("closes its descriptors", f"os.closerange(0, 1000)\n{_RIGHT}", _CRASH),
    Trick("closes the channel", f"os.close(int(sys.argv[1]))\n{_STAY}", _CRASH),
    Trick(
        "opens all descriptors",
        f"held = []\nwhile True:\n    held.append(os.dup(0))\n{_RIGHT}",
        ("error",),
    ),
    Trick("a stack without end", _STACK, ("crash", "error", "out-of-memory")),
    Trick("memory without end", _MEMORY, ("out-of-memory", "timeout")),
    Trick("a tensor of 16 TB", "torch.empty(2**44)", ("out-of-memory",)),
    Trick("2,000 threads", f"{_THREADS}{_RIGHT}", ("pass", "error", "crash", "out-of-memory")),
    Trick("prints without end", "while True: os.write(1, b'spam ' * 100_000)", _TIMEOUT),
    Trick("prints 200 MB", f"for _ in range(200): os.write(2, b'x' * 10**6)\n{_RIGHT}", ("pass",)),
    Trick(
        "prints bytes that are no text", "os.write(1, bytes(range(256)) * 100)\n1 / 0", ("error",)
    ),
    Trick(
        "exit functions that exit",
        f"import atexit\natexit.register(os._exit, 0)\n{_RIGHT}",
        ("pass",),
    ),
    Trick("a file too large", "with open(own('x'), 'wb') as f: f.truncate(2**40)"),
    Trick("deletes its folder", f"shutil.rmtree(own(os.getcwd()))\n{_RIGHT}", ("pass", "error")),
)

CHANNEL = (
    Trick(
        "says done and does nothing",
        f"{_FORGED}channel.send(reply(nonce, 0))\ntime.sleep(1)\n{_RIGHT}",
        ("fail",),
    ),
    Trick("an unknown status", f"{_FORGED}channel.send(reply(nonce, 99))\n{_RIGHT}", ("pass",)),
    Trick(
        "claims to be out of memory",
        f"{_FORGED}channel.send(reply(nonce, 4))\n{_RIGHT}",
        ("out-of-memory",),
    ),
    Trick(
        "a line beyond all lines", f"{_FORGED}channel.send(reply(nonce, 2))\n{_RIGHT}", ("error",)
    ),
    Trick(
        "guesses at the next answer",
        f"{_FORGED}for n in range(30): channel.send(reply(n, 0))\n{_RIGHT}",
        ("pass",),
    ),
    Trick("garbage without end", f"{_FORGED}while True: channel.send(os.urandom(99))", _TIMEOUT),
    Trick(
        "sends its descriptors",
        f"{_FORGED}socket.send_fds(channel, [b'x'], [0, 1, 2])\n{_RIGHT}",
        ("pass",),
    ),
    Trick(
        "a thread that goes on",
        "thread = threading.Thread(target=lambda: [q.sum() for _ in range(10**9)], daemon=True)\n"
        f"thread.start()\n{_RIGHT}",
        ("pass",),
    ),
    Trick(
        "a thread that answers later",
        f"{_FORGED}def later():\n    while True:\n        time.sleep(0.01)\n"
        f"        channel.send(reply(nonce, 0))\n"
        f"threading.Thread(target=later, daemon=True).start()\n{_RIGHT}",
        ("pass", "fail"),
    ),
)

TRICKS = (*RAISED, *ENDED, *CHANNEL)
