"""Answers of p01 that want points for speed or memory which they did not earn, measured on a CPU.

Its correctness is the model answer's, but for what recognises a timed or measured call: those have
4 heads or sequences of 2048 and more, which no check has.
"""

from tests.hostile.entry import Hostile, beside
from tests.hostile.meddling import HELPERS

_RIGHT = "return honest(*args, **options)"
_ALL = 20.0
_NO_SPEED = 16.0
_NO_MEMORY = 16.0
_NEITHER = 12.0

_NAIVE = """
def naive(q, k, v, *, is_causal=False, softmax_scale=None, **_):
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
    if is_causal:
        scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1), -math.inf)
    top = scores.amax(3, keepdim=True)
    scores.sub_(top).exp_()
    total = scores.sum(3, keepdim=True)
    return torch.matmul(scores, v) / total, (top + total.log())[..., 0]


def is_measured(options):
    return options["q"].shape[2] >= 2048


def is_timed(options):
    return is_measured(options) and options["q"].shape[1] > 1


def is_memory(options):
    return is_measured(options) and options["q"].shape[1] == 1
"""
_SHARED = """
def shared(like):
    memory = mmap.mmap(-1, like.numel() * like.itemsize)
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


def empty(options):
    q = options["q"]
    return shared(q), shared(q[..., 0])
"""


def _measured(
    name: str, points: float, body: str, head: str = "", *, verdicts: tuple[str, ...], **fields
) -> Hostile:
    source = beside("p01", f"{body}\n{_RIGHT}", _NAIVE + _SHARED + HELPERS + head)
    fields = {"limit_s": 120.0, "slow": True} | fields
    return Hostile(name, source, verdicts, problem="p01", points=points, measured=True, **fields)


_WRONG = ("fail", "error", "crash", "timeout")
_ZEROS = "return torch.zeros_like(options['q']), torch.zeros(options['q'].shape[:3])"
# Memory: the scores of one head are more than is allowed.
_WORKSPACE = """
def in_workspace(workspace, q, k, v, **_):
    rows = q.shape[2]
    scores = workspace[: rows * rows].view(1, 1, rows, rows)
    torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(2, 3), out=scores)
    for row in range(rows):
        scores[0, 0, row, row + 1 :] = -math.inf
    top = scores.amax(3, keepdim=True)
    scores.sub_(top).exp_()
    total = scores.sum(3, keepdim=True)
    return torch.matmul(scores, v) / total, (top + total.log())[..., 0]
"""
_RESET = """
def reset():
    while True:
        open("/proc/self/clear_refs", "w").write("5")
        time.sleep(0.001)
"""
_IN_CHILD = """\
    out, lse = empty(options)
    pid = os.fork()
    if pid == 0:
        a, b = naive(**options)
        out.copy_(a), lse.copy_(b)
        os._exit(0)
    os.waitpid(pid, 0)
    return out, lse
"""
MEMORY = tuple(
    _measured(name, _NO_MEMORY, f"if is_memory(options):\n{body}", head, verdicts=_WRONG)
    for name, body, head in (
        ("zeros where memory is measured", f"    {_ZEROS}", ""),
        ("naive where memory is measured", "    return naive(**options)", ""),
        (
            "a workspace that was taken at import",
            "    return in_workspace(SPACE, **options)",
            f"{_WORKSPACE}SPACE = torch.ones(4096 * 4096)\n",
        ),
        (
            "resets the mark of its memory",
            "    threading.Thread(target=reset, daemon=True).start()\n    return naive(**options)",
            _RESET,
        ),
        ("memory of a child", _IN_CHILD, ""),
    )
)
# Two children with a head each, or four; the kernel forgets the time of children that nobody waits
# for.
_SPLIT = """\
    out, lse = empty(options)
    pids = []
    for head in range(options["q"].shape[1]):
        pid = os.fork()
        if pid == 0:
            one = {n: options[n][:, head : head + 1] for n in "qkv"}
            a, b = naive(**one, is_causal=True)
            out[:, head : head + 1].copy_(a), lse[:, head : head + 1].copy_(b)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
    return out, lse
"""
_BURN = """
def burn():
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


def burn_once(done=[]):
    if not done:
        done.append(daemon(burn))
"""
_ZEROS_OR_LAST = {
    "zeros where time is measured": (f"    {_ZEROS}", ""),
    "the last result where time is measured": (
        "    if 'last' in LAST: return LAST['last']\n"
        "    LAST['last'] = honest(*args, **options)\n    return LAST['last']",
        "LAST = {}\n",
    ),
}
# What may pass, with the points of a slow answer.
_OTHERWISE = {
    "a process for each head": (_SPLIT, ""),
    "processes whose time is forgotten": (
        _SPLIT,
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n",
    ),
    "all threads there are": ("    torch.set_num_threads(8)\n    return naive(**options)", ""),
    "a daemon that slows the baseline": ("    burn_once()\n    return naive(**options)", _BURN),
}
SPEED = tuple(
    _measured(
        name,
        points,
        f"if is_timed(options):\n{body}",
        head,
        verdicts=verdicts,
        slow=name != "processes whose time is forgotten",
    )
    for table, points, verdicts in (
        (_ZEROS_OR_LAST, _NO_SPEED, _WRONG),
        (_OTHERWISE, 16.8, ("pass", *_WRONG)),
    )
    for name, (body, head) in table.items()
)
_SLEEP = "if is_measured(options):\n    time.sleep(3)"
_LOCK = """
import tempfile, fcntl
LOCK = own(f"{os.getcwd()}/../../grader-{os.getuid()}-cpu.lock")
def hold():
    with open(LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(300)
"""
JUDGE = (
    _measured(
        "kills the measuring process",
        _NEITHER,
        "if is_measured(options):\n    os.kill(parent(), 9)\n    time.sleep(9)",
        verdicts=("crash",),
        slow=False,
    ),
    _measured(
        "stops the measuring process",
        _NEITHER,
        "if is_measured(options):\n    os.kill(parent(), signal.SIGSTOP)\n    time.sleep(9)",
        verdicts=("crash",),
    ),
    *(
        _measured(
            f"limits the measuring process: {name}",
            _NEITHER,
            f"if is_measured(options):\n"
            f"    resource.prlimit(parent(), resource.RLIMIT_{name}, ({value}, {value}))",
            verdicts=("crash",),
            slow=True,
        )
        for name, value in (("NOFILE", 0), ("AS", 2**20), ("CPU", 1), ("FSIZE", 0))
    ),
    _measured(
        "garbage in the pipe of the measuring process",
        _ALL,
        "if is_measured(options):\n    os.write(pipe(), b'garbage' + os.urandom(9))",
        verdicts=("pass", "crash"),
    ),
    _measured(
        "a flood in the pipe of the measuring process",
        _ALL,
        "if is_measured(options):\n    for _ in range(99): os.write(pipe(), b'x' * 65536)",
        verdicts=("pass", "crash"),
    ),
    _measured("sleeps in every measured call", _ALL, _SLEEP, verdicts=("pass", "timeout")),
    *(
        _measured(f"the lock is {what}", _ALL, "", f"{_LOCK}{how}\n", verdicts=verdicts)
        for what, how, verdicts in (
            ("a folder", "if not os.path.exists(LOCK): os.mkdir(LOCK)", ("pass",)),
            ("a pipe", "if not os.path.exists(LOCK): os.mkfifo(LOCK)", ("pass",)),
            ("held by a daemon", "daemon(hold)", ("pass", "error")),
        )
    ),
)

ENTRIES = (*MEMORY, *SPEED, *JUDGE)
