"""Holes made in the judge's defences, one at a time; `python -m tests.planted` runs their tests.

A copy of the repository gets one fault, and the tests named beside it must fail there. Mutants of
the code that decides points and causes are made by mutmut (pyproject.toml); these are edits that a
submission would profit from, many of them in processes that mutmut does not reach.
"""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

import argparse
import concurrent.futures
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 900.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """One text edit of a file below grader/, and the test files of which one must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def fault(name: str, file: str, old: str, new: str, *tests: str) -> Fault:
    return Fault(name, file, old, new, tuple(f"tests/test_{t}.py" for t in tests))


FAULTS = (
    fault("a jail has a network", "grader/isolate/jail.py", '"--unshare-net", ', "", "jail"),
    fault('a jail shows folders of the checkout', 'grader/isolate/jail.py', 'or within or', 'or', 'jail'),
    fault("a jail's folders have no limit", 'grader/isolate/jail.py', 'walls += ["--size", str(FOLDER_BYTES), "--tmpfs", str(folder)]', 'walls += ["--tmpfs", str(folder)]', 'jail'),
    fault('the collector runs in timed calls', 'grader/isolate/serving.py', '            results = returned.of_call(self.entry, tensors, request)\n', '            results = self.evaluate(tensors, request)\n', 'measure'),
    fault("nobody counts a jail's memory", 'grader/isolate/warden.py', '        memory = _memory_bytes(pids)\n', '        memory = 0\n', 'jail'),
    fault('a jail with holes is good enough', 'grader/isolate/inspection.py', '    if holes:\n', '    if not holes:\n', 'jail'),
    fault('inputs of timed calls lie in the order of the calls', 'grader/isolate/apart.py', '_drawn.shuffle(order)', 'pass', 'apart'),
    fault('an input reaches what lies beside it', 'grader/isolate/apart.py', 'own = _own(memory, start, len(block))', 'own = memory[start : start + len(block)]', 'apart'),
    fault('files in memory are not counted', 'grader/isolate/warden.py', 'found += counts.f_files - counts.f_ffree', 'pass', 'jail'),
    fault('a control group is made without a limit', 'grader/isolate/cgroup.py', '_write(self._folder / "memory.max", memory_bytes)', 'pass', 'cgroup'),
    fault('a control group is not tried out', 'grader/isolate/inspection.py', '            _expect_group(folder)', '            pass', 'cgroup'),
    fault('products beside dots are not counted', 'grader/checks/work.py', 'return done + beside if beside > most else done', 'return done', 'work_hidden'),
    fault('official mode looks at no jail', 'grader/judge/surroundings.py', '            inspection.inspect(gpu=environment.device_uuid)', '            pass', 'jail'),
    fault('the test process jails nobody', 'grader/judge/pytest_plugin.py', 'jailed=run.request.jailed, gpu', 'jailed=False, gpu', 'hostile', 'jail'),
    fault('every record is official', 'grader/api.py', '"official" if self.request.official else "local"', '"official"', 'cli', 'render_terminal', 'jail'),
    fault('no timed call is looked at', 'grader/timing/speed.py', 'secrets.randbelow(goes)', '-1', 'measure'),
    fault('broken guards of allocations are not reported', 'grader/isolate/allocations.py', '                if changed:\n', '                if False:\n', 'allocations', 'bad_input'),
    fault('fresh allocations are not poisoned', 'grader/isolate/allocations.py', '0xFF, dtype=torch.uint8, device=plain.device', '0, dtype=torch.uint8, device=plain.device', 'allocations', 'bad_input'),
    fault('the shared memory is not poisoned', 'grader/isolate/session.py', 'arena.memory.fill_(POISON)', 'arena.memory.fill_(0)', 'allocations', 'bad_input'),
    fault('accesses on the machine are not checked', 'grader/kernel/machine/memory.py', '        if not is_lenient and (memory is None or bool(outside.any())):\n', '        if not is_lenient and memory is None:\n', 'bad_input', 'machine'),
    fault('written inputs are not noticed', 'grader/isolate/session.py', '        if its_own.any():\n', '        if False:\n', 'bad_input', 'wrong_kernels'),
    fault('draws do not depend on the seed', 'grader/spec/problem.py', 'place = f"{seed}/{self.id}/{check.id}/{len(cases)}"', 'place = f"{self.id}/{check.id}/{len(cases)}"', 'manifest', 'cases'),
    fault('timed outputs are always right', 'grader/checks/performance.py', '    tensors = inputs.tensors\n    if case.rows is not None:\n', '    return 0.0\n    tensors = inputs.tensors\n    if case.rows is not None:\n', 'measure', 'performance'),
    fault('of timed calls nothing is verified', 'grader/timing/share.py', 'max(math.ceil(count / _PARTS), min(_FEWEST, calls))', '0', 'performance'),
    fault('a held worker imports its file before its turn', 'grader/isolate/serving.py', 'if self.settings.get("held"):', 'if False:', 'held'),
    fault('wrong timed outputs do not matter', 'grader/judge/measurement.py', 'if margin is None or not margin <= 1.0:', 'if margin is None:', 'measure'),
    fault('processes that the submission starts are not counted', 'grader/isolate/usage.py', 'found = [self.pid, *descendants(self.pid)]', 'found = [self.pid]', 'usage'),
    fault("a daemon's time and memory are not counted", 'grader/isolate/usage.py', 'orphans = [pid for pid in children(self.adopter) if pid not in known]', 'orphans: list[int] = []', 'usage'),
    fault('a link is followed', 'grader/base/regular_file.py', '_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW', '_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC', 'source'),
    fault('a link to a folder is followed', 'grader/base/regular_file.py', 'FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW', 'FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC', 'source'),
    fault('a coding cookie is believed', 'grader/source/reading.py', 'if cookie and coding not in (b"utf-8", b"utf8") and not coding.startswith(b"utf-8-"):', 'if False:', 'source'),
    fault('the policy is not asked', 'grader/source/submission.py', 'broken = violations(problem, tree) if policy else ()', 'broken = ()', 'policy'),
    fault('policy: other names of modules are not followed', 'grader/source/policy/names.py', 'new = (self.paths(value) & self._tracked) - known', 'new = set()', 'policy'),
    fault('policy: what a function calls is thought never to run', 'grader/base/functions.py', 'waiting += [n for n in self.named_by[name] if n in self.named_by]', 'waiting += []', 'policy'),
    fault('policy: a bridge lets all compute', 'grader/source/policy/reach.py', 'shared = of_bridge & reach.closure(named)', 'shared = set()', 'policy'),
    fault('kernels run where they are to do nothing', 'grader/kernel/launches.py', 'skips = launches.idle and', 'skips = False and', 'idle'),
    fault("a class of the submission's own computes unseen", 'grader/isolate/operators.py', '        if any(kind not in _PLAIN for kind in types):\n', '        if False:\n', 'operators'),
    fault('attributes of anything may be set', 'grader/isolate/walls.py', '        if not is_own(value):', '        if False:', 'walls'),
    fault('Python runs kernels', 'grader/isolate/walls.py', 'unread |= dict', 'unread | dict', 'walls'),
    fault('Triton compiles what the policy has not read', 'grader/kernel/lines.py', 'written.lineno not in known', 'False', 'walls'),
    fault('how deep Python recurses tells who looks', 'grader/isolate/serving.py', '        sys.setrecursionlimit(_DEPTH)\n', '', 'measure'),
    fault('a fault that a submission brought about costs nothing', 'grader/judge/testrun.py', 'if finding.after_calls and finding.message is not None:', 'if False:', 'testrun'),
    fault('an answer to another request counts', 'grader/isolate/sandbox.py', 'if reply is not None and reply.nonce == nonce:', 'if reply is not None:', 'sandbox', 'worker'),
    fault("the report may hold commands of GitHub's", 'grader/commands/grade/command.py', 'annotations.without_commands(text, os.urandom(16).hex())', 'text', 'cli_files'),
    fault('what a submission says is markup on the page', 'grader/report/html/page.py', 'autoescape=True', 'autoescape=False', 'render_html'),
)


def plant(found: Fault, folder: Path) -> None:
    """Put the fault into a copy of the repository."""
    path = folder / found.file
    text = path.read_text(encoding="utf-8")
    if text.count(found.old) != 1:
        raise ValueError(f"{found.name}: got {text.count(found.old)} times {found.old!r}, not 1")
    path.write_text(text.replace(found.old, found.new), encoding="utf-8")


def copy_repository(folder: Path) -> None:
    """Copy what git tracks or would track; links stay links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def caught_by(found: Fault) -> tuple[str | None, float]:
    """Return the first test that fails with the fault, None when all pass; and the seconds."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name) / "repository"
        copy_repository(folder)
        plant(found, folder)
        tests = [test for test in found.tests if (folder / test).exists()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | {"SHARE": "all"},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "the tests run into their time limit", time.monotonic() - start
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    found_by = lines[0].split(" - ")[0].removeprefix("FAILED ") if lines else None
    return found_by if done.returncode == 1 else None, time.monotonic() - start


def main() -> int:
    """Plant all faults, or those whose names contain a word; exit 1 if a test misses one."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument(
        "words", nargs="*", help="plant the faults whose names contain one of these"
    )
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    wanted = [f for f in FAULTS if not options.words or any(w in f.name for w in options.words)]
    console = Console()
    missed = []
    with (
        Progress(console=console, transient=True) as progress,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        task = progress.add_task("planted", total=len(wanted))
        for found, (test, seconds) in zip(wanted, pool.map(caught_by, wanted), strict=True):
            progress.advance(task)
            missed += [] if test else [found.name]
            console.print(f"{seconds:5.0f} s  {found.name}: {test or 'NOT CAUGHT'}", markup=False)
    console.print(f"{len(wanted) - len(missed)} of {len(wanted)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
