"""Tricks that leave something behind: processes, threads, files. The results are right."""

from tests.hostile.entry import Trick

_RIGHT = "return honest(q, k, v, **options)"
_DAEMON = """\
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
_DEAF = """\
def deaf():
    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    time.sleep(300)
"""
# Each looks for its neighbour, and starts it anew when it is gone.
_CHAIN = """\
end = time.monotonic() + 60
def link(number):
    while time.monotonic() < end:
        open(own(f"link{number}"), "w").write(str(os.getpid()))
        other = (number + 1) % 4
        while time.monotonic() < end:
            try:
                os.kill(int(open(f"link{other}").read() or 0) or os.getpid(), 0)
            except ProcessLookupError:
                if os.fork() == 0:
                    os.setsid()
                    number = other
                    break
            except (OSError, ValueError):
                time.sleep(0.001)
for number in range(4):
    daemon(lambda: link(number))
"""
# A process that is never the same for long.
_RUNNER = """\
def run():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()
daemon(run)
"""
_BOMB = """\
def bomb():
    for _ in range(7):  # 128 processes
        os.fork()
    time.sleep(300)
daemon(bomb)
"""
_NAMESPACE = """\
CLONE_NEWPID = 0x20000000
def inside():
    if ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0 and os.fork() == 0:
        time.sleep(300)
    time.sleep(300)
daemon(inside)
"""
_DEEP = """\
own("d")
here = os.open(".", os.O_RDONLY)
for _ in range(3000):
    os.makedirs("d", exist_ok=True)
    os.chdir("d")
open("file", "w").close()
os.fchdir(here)
"""
_SCRIBBLE = """\
address, size = q.data_ptr(), q.numel() * q.itemsize
def scribble():
    end = time.monotonic() + 300
    while time.monotonic() < end:
        ctypes.memset(address, 0, size)
        time.sleep(0.05)
out, lse = honest(q, k, v, **options)
daemon(scribble)
return out, lse
"""


def _leaves(name: str, lines: str, *verdicts: str, end: str = _RIGHT) -> Trick:
    return Trick(name, f"{_DAEMON}{lines}{end}", verdicts or ("pass",))


TRICKS = (
    _leaves("a daemon", "daemon(lambda: time.sleep(300))\n"),
    _leaves("a daemon that hears no signal", f"{_DEAF}daemon(deaf)\n"),
    _leaves("a daemon that is stopped", "daemon(lambda: os.kill(os.getpid(), signal.SIGSTOP))\n"),
    _leaves("daemons that start each other anew", _CHAIN),
    _leaves("a process that runs away from itself", _RUNNER),
    _leaves("128 processes", _BOMB),
    _leaves("a process in a namespace of its own", _NAMESPACE),
    _leaves("a child that scribbles over the inputs", _SCRIBBLE, "pass", "fail", end=""),
    _leaves("a child that returns as well", "os.fork()\n", "pass", "crash", "timeout", "fail"),
    _leaves(
        "a daemon, and dies",
        "daemon(lambda: time.sleep(300))\n",
        "crash",
        "timeout",
        end="os._exit(1)",
    ),
    _leaves("3,000 folders in folders", _DEEP),
    _leaves(
        "5,000 files",
        "for n in range(5000): open(own(f'{os.environ[\"TMPDIR\"]}/{n}'), 'w').close()\n",
    ),
    _leaves(
        "a folder that nobody may read",
        "if not os.path.exists('locked'):\n"
        "    os.makedirs(own('locked/inner'))\n    open('locked/inner/x', 'w').close()\n"
        "    os.chmod('locked', 0)\n",
    ),
    _leaves(
        "files in its home",
        "for name in '~/.hostile', '~/.cache':\n"
        "    open(own(os.path.expanduser(name)), 'w').close()\n",
    ),
    _leaves(
        "threads that go on",
        "for _ in range(4):\n"
        "    threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**6)], daemon=True)"
        ".start()\n",
    ),
    _leaves(
        "a memory map of a file that is gone",
        "with open(own('gone'), 'w+b') as file:\n    file.truncate(2**20)\n"
        "    sys.held = mmap.mmap(file.fileno(), 2**20)\nos.remove('gone')\n",
    ),
)
