"""Make .venv with the tested versions, and show progress; `make setup` runs this.

The Python that runs it may have no packages and be too old for the course: this file uses the
standard library alone, and syntax that Python 3.6 reads.

torch comes from a separate index, chosen here; every other file must have a hash that
requirements.lock lists. `.ready` is written last, to mark the environment as complete.
"""

import argparse
import contextlib
import errno
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

OLDEST = (3, 11)
LOCK = "requirements.lock"
LOCKS = (LOCK, "requirements-course.lock")  # a release has only the first
GPU_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of Linux, of WSL 2
# torch 2.13.0 for CUDA and its requirements: wheels of 2.7 GB, which unpack to 4.8 GB.
CUDA_SIZE = "about 3 GB to download, 5 GB on disk"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_PER_LINE = {True: 1, False: 15}  # by whether output goes to a terminal
LINES_OF_PIP, WIDTH_OF_PIP = 5, 200
FULL_MB = 20

# By pattern in the output of a failed command, what to do.
REMEDIES = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full: got {free} MB free in {folder}, expected 3 GB, or 9 GB for CUDA;"
        " make room there and in pip's cache (`{python} -m pip cache purge`), then: make setup",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        f"got a file that is not the tested one, expected a hash of {LOCK}: the download was"
        " damaged, or the index serves other files; try again, then ask who runs the index",
    ),
    (
        r"connection broken|Max retries exceeded|timed out|ProxyError|SSLError|NameResolution",
        "no connection to the package index; check the network and the proxy (on a cluster, use"
        " the login node), then: make setup",
    ),
    (
        r"No matching distribution",
        "the package index has no such file for this Python and machine; take another Python, for"
        " example: make setup PYTHON=python3.12",
    ),
)


class SetupError(Exception):
    """The environment cannot be made; the message is one sentence that says what to type."""


class Failed(Exception):
    """A command failed; the message is its output."""


def main(words=None):
    parser = argparse.ArgumentParser(description="Make the environment of the course.")
    parser.add_argument("--folder", default=".venv", type=Path)
    parser.add_argument("--cpu-index", required=True, help="where torch has builds for the CPU")
    parser.add_argument("--yes", action="store_true", help="download gigabytes without asking")
    options = parser.parse_args(words)
    for number in STOPS:
        signal.signal(number, signal.default_int_handler)
    try:
        expect_python(sys.version_info, shutil.which)
        Setup(options.folder, options.cpu_index, options.yes).run()
        return 0
    except (SetupError, Failed, OSError) as error:
        print("setup: " + sentence(error, options.folder), file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        print("\nsetup: stopped; make setup starts over, with what pip has cached", file=sys.stderr)
        return 130


def expect_python(version, which):
    """Raise SetupError unless this Python is new enough and can make environments."""
    number = "{}.{}".format(*version[:2])
    if tuple(version[:2]) < OLDEST:
        names = ("python3." + str(minor) for minor in (13, 12, 11, 14))
        found = next((name for name in names if which(name)), None)
        raise SetupError(
            "got Python {}, expected 3.11 or newer; {}make setup PYTHON={}".format(
                number, "type: " if found else "install one, then: ", found or "python3.12"
            )
        )
    try:
        import ensurepip  # noqa: F401  # Debian has it in a package of its own
        import venv  # noqa: F401
    except ImportError:
        raise SetupError(
            f"this Python {number} cannot make environments; on Debian and Ubuntu type:"
            f" sudo apt-get install python{number}-venv, then: make setup"
        ) from None


def sentence(error, folder):
    """Return a sentence on what happened and what to type, from an error of pip or the system."""
    said = str(error)
    if isinstance(error, SetupError):
        return said
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(str(there)).free // 10**6
    if isinstance(error, Failed) and free < FULL_MB:  # venv does not say why it failed
        said += os.strerror(errno.ENOSPC)
    for pattern, remedy in REMEDIES:
        if re.search(pattern, said):
            return remedy.format(free=free, folder=folder, python=folder / "bin" / "python")
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; fix that, then: make setup"
    return f"that failed: the whole output is in {folder}/pip.log; then: make clean && make setup"


def entry(lock, name):
    """Return the lines of a lock file on one package."""
    return re.search(rf"^{name}==.*(?:\n .*)*\n", lock, re.MULTILINE).group()


def of_cuda(report):
    """Whether the packages of pip's installation report require NVIDIA's packages."""
    asked = [line for i in report["install"] for line in i["metadata"].get("requires_dist", ())]
    return any(re.match(r"(nvidia|cuda)-", line) and "extra ==" not in line for line in asked)


def megabytes(*folders):
    """Return the MB of files below folders; files may come and go meanwhile."""
    total = 0
    for place, _, names in (entry for folder in folders for entry in os.walk(str(folder))):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total // 10**6


class Progress:
    """Shows progress: one line that is rewritten on a terminal, elsewhere a line every 15 s."""

    def __init__(self, folder):
        self.folder = folder
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.started = self.shown = time.monotonic()
        self.downloaded = self.downloading = 0

    def show(self, doing):
        """Show the progress, unless a line was shown just now."""
        # pip downloads into these folders; the copies in its cache are not counted.
        now, folders = time.monotonic(), glob.glob(str(self.folder / "tmp" / "pip-unpack-*"))
        self.downloading = max(self.downloading, megabytes(*folders))
        if now - self.shown < SECONDS_PER_LINE[self.terminal]:
            return
        self.shown, unpacked = now, megabytes(self.folder / "lib")
        line = f"  {now - self.started:.0f} s, {self.downloaded + self.downloading} MB downloaded,"
        line += f" {unpacked} MB unpacked: {doing}"
        room = shutil.get_terminal_size().columns - 1
        self.write("\r\x1b[K" + line[:room] if self.terminal else line + "\n")

    def end(self):
        """Clear the rewritten line, and count the download of the command that has ended."""
        self.downloaded, self.downloading = self.downloaded + self.downloading, 0
        self.write("\r\x1b[K" if self.terminal else "")

    def write(self, text):
        print(text, end="", flush=True)  # at once, also into a pipe


class Setup:
    def __init__(self, folder, cpu_index, yes):
        self.folder, self.cpu_index, self.yes = folder, cpu_index, yes
        self.python = folder / "bin" / "python"
        self.log, self.ready = folder / "pip.log", folder / ".ready"
        self.lock = Path(LOCK).read_text(encoding="utf-8")
        pins = Path("requirements.txt").read_text(encoding="utf-8")
        self.torch = re.search(r"^torch==(\S+)", pins, re.MULTILINE).group(1)
        self.progress = Progress(folder)

    def run(self):
        print(f"Setting up {self.folder}, once")
        self.begin()
        try:
            # Not the Python of an active environment, which may be the folder just emptied.
            python = getattr(sys, "_base_executable", sys.executable)
            self.call("making the environment", python, "-m", "venv", self.folder)
            own = self.folder / "tmp" / "pip.lock"
            own.write_text(entry(self.lock, "pip"), encoding="utf-8")
            self.pip("updating pip", "--require-hashes", "--no-deps", "-r", own)
            torch = self.choose_torch()
            locks = [word for name in LOCKS if Path(name).exists() for word in ("-r", name)]
            self.pip("the packages", "--require-hashes", "--no-deps", *locks)
            self.pip("PyTorch", *torch)
            self.pip("the grader itself", "--no-deps", "--no-build-isolation", "-e", ".")
        except Failed as error:
            lines = [line[:WIDTH_OF_PIP] for line in str(error).splitlines() if line.strip()]
            telling = [line for line in lines if not line.startswith("WARNING: ")] or lines
            for line in telling[-LINES_OF_PIP:]:
                print("  | " + line, file=sys.stderr)
            raise
        finally:
            shutil.rmtree(str(self.folder / "tmp"), ignore_errors=True)
        self.ready.touch()
        size, seconds = megabytes(self.folder), time.monotonic() - self.progress.started
        done = f"{self.progress.downloaded} MB downloaded, {size} MB in {self.folder}"
        print(f"  ready after {seconds:.0f} s: {done}")

    def begin(self):
        """Empty the folder of an environment that is unfinished or of another Python."""
        config = self.folder / "pyvenv.cfg"
        made = config.exists() and re.search(r"^version\w* = (\d+\.\d+)", config.read_text(), re.M)
        other = made and made.group(1) != "{}.{}".format(*sys.version_info[:2])
        if other or (self.log.exists() and not self.ready.exists()):
            for path in self.folder.iterdir():  # the folder itself may be a link to another disk
                real = path.is_dir() and not path.is_symlink()
                shutil.rmtree(str(path)) if real else path.unlink()
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        if self.ready.exists():
            self.ready.unlink()

    def choose_torch(self):
        """Return the options with which pip installs torch: for CUDA where there is an NVIDIA GPU.

        Elsewhere it is the build for the CPU, or if that cannot be reached the default build. That
        may download gigabytes for CUDA, and so a user at a terminal is asked first.
        """
        default = ["torch==" + self.torch]
        if any(os.path.exists(path) for path in GPU_FILES):
            print(f"  PyTorch {self.torch} for CUDA ({CUDA_SIZE})")
            return default
        cpu = ["--extra-index-url", self.cpu_index, "--retries", "1", default[0] + "+cpu"]
        # fast-deps reads a wheel's requirements without downloading the rest.
        peek = ("--dry-run", "--no-deps", "--use-feature=fast-deps")
        try:
            self.pip("looking for PyTorch", *peek, *cpu)
        except Failed:
            pass
        else:
            print(f"  PyTorch {self.torch} for the CPU (about 200 MB; no NVIDIA GPU found)")
            return cpu
        report = self.folder / "tmp" / "report.json"
        self.pip("looking for PyTorch", *peek, "--report", report, *default)
        unreached = "  no build of PyTorch for the CPU can be reached; "
        if not of_cuda(json.loads(report.read_text(encoding="utf-8"))):
            print(unreached + "the default build does not need CUDA")
            return default
        print(unreached + "the default build is for CUDA: " + CUDA_SIZE)
        if self.yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
            print("  going on with it" + ("" if self.yes else ": there is no terminal to ask at"))
            return default
        try:
            answer = input("  Go on? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise SetupError(
                "nothing was downloaded for CUDA; make setup YES=1 takes that build,"
                " make grade PY=python3 an environment of your own"
            )
        return default

    def pip(self, doing, *words):
        options = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")
        self.call(doing, self.python, "-m", "pip", "install", *options, *words)

    def call(self, doing, *command):
        """Run a command with its output in the log; raise Failed with the output if it fails."""
        variables = dict(os.environ, TMPDIR=str((self.folder / "tmp").absolute()))
        begin = self.log.stat().st_size
        # Until the process has ended, a signal only sets a flag: an exception at any instruction
        # could leave the process running, or a lock of subprocess held.
        stops = []
        before = {n: signal.signal(n, lambda number, _: stops.append(number)) for n in STOPS}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=variables,
            )  # fmt: skip
        try:
            while process.poll() is None and not stops:
                self.progress.show(doing)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        finally:
            process.kill()
            process.wait()
            self.progress.end()
            for number, handler in before.items():
                signal.signal(number, handler)
        if stops:
            raise KeyboardInterrupt
        if process.returncode:
            raise Failed(self.log.read_bytes()[begin:].decode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
