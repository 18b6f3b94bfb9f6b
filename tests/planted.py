"""Faults planted in the judge, one at a time: `make planted` shows that a test catches each.

A copy of the repository gets one fault, and the tests named beside it must fail there. All of them
are part of `make test`; they are named so that a run takes minutes and not a day. The file is long
because it is a list, with one entry for each fault.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
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


CORRECTNESS, PERFORMANCE = "grader/checks/correctness.py", "grader/checks/performance.py"
FAULTS = (
    # -- why it is wrong ----------------------------------------------------------------------
    fault(
        "an error of a rule leaves a case without a verdict",
        "grader/judge/case_run.py",
        "        except Exception as error:  # of the judge's own",
        "        except ZeroDivisionError as error:  # of the judge's own",
        "explaining",
    ),
    fault(
        "a NaN of no query is told",
        "grader/kernel/observers/nans.py",
        "        born &= someone\n",
        "",
        "nans",
    ),
    fault(
        "a maximum that is too large is a mask",
        "grader/kernel/observers/lineage.py",
        "    if operation in (np.subtract, np.add) and far.any():\n",
        "    if operation is None:\n",
        "wrong_answers",
    ),
    fault(
        "few cases tell though the plain case failed",
        "grader/causes/diagnose.py",
        "        return plain_failed and _FEW",
        "        return not self._failed and _FEW",
        "diagnose",
    ),
    # -- the jail -----------------------------------------------------------------------------
    fault("a jail has a network", "grader/isolate/jail.py", '"--unshare-net", ', "", "jail"),
    fault(
        "a jail shows folders of the checkout",
        "grader/isolate/jail.py",
        "or within or",
        "or",
        "jail",
    ),
    fault(
        "a jail's folders have no limit",
        "grader/isolate/jail.py",
        'walls += ["--size", str(FOLDER_BYTES), "--tmpfs", str(folder)]',
        'walls += ["--tmpfs", str(folder)]',
        "jail",
    ),
    fault(
        "a jailed worker names its GPU by a number",
        "grader/isolate/jail.py",
        '"CUDA_VISIBLE_DEVICES": f"GPU-{uuid}"',
        '"CUDA_VISIBLE_DEVICES": "1"',
        "jail",
    ),
    fault(
        "the collector runs in timed calls",
        "grader/isolate/worker.py",
        "            results = returned.of_call(self.entry, tensors, request)\n",
        "            results = self._evaluate(tensors, request)\n",
        "measure",
    ),
    fault(
        "cycles are left for timed calls to end",
        "grader/timing/stopwatch.py",
        '            timed.ask("settle")\n',
        "",
        "measure",
    ),
    fault(
        "workers are started when the GPU is had",
        "grader/judge/measure.py",
        '    if not (request.jailed and request.device == "cuda" and request.sources):',
        "    if request:",
        "held",
    ),
    fault(
        "workers of a class name their GPU by its number",
        "classroom/engine.py",
        'print(f"GPU-{torch.cuda.get_device_properties(number).uuid}")',
        "print(number)",
        "class_engine",
    ),
    fault(
        "nobody counts a jail's memory",
        "grader/isolate/warden.py",
        "        memory = _memory_bytes(pids)\n",
        "        memory = 0\n",
        "jail",
    ),
    fault(
        "a jail with holes is good enough",
        "grader/isolate/inspection.py",
        "    if holes:\n",
        "    if not holes:\n",
        "jail",
    ),
    fault(
        "official mode looks at no jail",
        "grader/judge/surroundings.py",
        "            inspection.inspect(gpu=environment.device_uuid)",
        "            pass",
        "jail",
    ),
    fault(
        "the test process jails nobody",
        "grader/judge/pytest_plugin.py",
        "jailed=run.request.jailed, gpu",
        "jailed=False, gpu",
        "hostile",
        "jail",
    ),
    fault(
        "a jailed submission is blamed for the judge's end",
        "grader/judge/testrun.py",
        "None if self.interrupted or self._jailed else",
        "None if self.interrupted else",
        "testrun",
    ),
    fault(
        "every record is official",
        "grader/api.py",
        '"official" if self.request.official else "local"',
        '"official"',
        "cli",
        "render_terminal",
        "jail",
    ),
    fault(
        "no timed call is looked at",
        "grader/timing/speed.py",
        "secrets.randbelow(goes)",
        "-1",
        "measure",
    ),
    # -- tolerances ---------------------------------------------------------------------------
    fault(
        "the norm per head is not compared",
        CORRECTNESS,
        " and bool((by_head <= 1.0).all())",
        "",
        "correctness",
    ),
    fault(
        "the honest error counts three times",
        CORRECTNESS,
        "expected.precision, expected.factor\n",
        "expected.precision, 3.0 * expected.factor\n",
        "correctness",
        "wrong_kernels",
    ),
    fault(
        "the floor of an element is ten times as large",
        CORRECTNESS,
        '_ELEMENT_FLOOR = {"fp16": 4.0, "bf16": 4.0, "tf32": 4.0, "fp32": 16.0}',
        '_ELEMENT_FLOOR = {"fp16": 40.0, "bf16": 40.0, "tf32": 40.0, "fp32": 160.0}',
        "correctness",
        "wrong_kernels",
    ),
    fault(
        "NaN and infinity are within the tolerance",
        CORRECTNESS,
        "by_element.masked_fill_(bad | by_element.isnan(), torch.inf)",
        "by_element.masked_fill_(bad | by_element.isnan(), 0.0)",
        "correctness",
        "wrong_kernels",
    ),
    fault(
        "fp32 is never asked for IEEE precision",
        CORRECTNESS,
        'problem.tolerance.fp32 == "tf32" and not case.exact',
        'problem.tolerance.fp32 == "tf32"',
        "correctness",
        "wrong_kernels",
    ),
    fault(
        "TF32 is not let pass anywhere",
        CORRECTNESS,
        'precision = "tf32"\n',
        'precision = "fp32"\n',
        "correctness",
    ),
    fault(
        "a running sum with 1e-6 added is wrong",
        CORRECTNESS,
        "_DENOMINATOR = 1e-6",
        "_DENOMINATOR = 0.0",
        "correctness",
        "unusual_answers",
    ),
    # -- guards and outputs -------------------------------------------------------------------
    fault(
        "broken guards of allocations are not reported",
        "grader/isolate/allocations.py",
        "                if changed:\n",
        "                if False:\n",
        "allocations",
        "bad_input",
    ),
    fault(
        "fresh allocations are not poisoned",
        "grader/isolate/allocations.py",
        "0xFF, dtype=torch.uint8, device=plain.device",
        "0, dtype=torch.uint8, device=plain.device",
        "allocations",
        "bad_input",
    ),
    fault(
        "the shared memory is not poisoned",
        "grader/isolate/arena.py",
        "ctypes.memset(self.memory.data_ptr(), POISON, self.memory.numel())",
        "ctypes.memset(self.memory.data_ptr(), 0, self.memory.numel())",
        "allocations",
        "bad_input",
    ),
    fault(
        "accesses in the interpreter are not checked",
        "grader/kernel/observers/access.py",
        "        if active.size == 0:\n            return\n",
        "        if active.size >= 0:\n            return\n",
        "bad_input",
        "wrong_kernels",
    ),
    fault(
        "written inputs are not noticed",
        "grader/isolate/session.py",
        "        if its_own.any():\n",
        "        if False:\n",
        "bad_input",
        "wrong_kernels",
    ),
    fault(
        "never written and computed as NaN are one",
        "grader/isolate/arena.py",
        "return (raw >= above + marks[0]) & (raw <= above + marks[-1])",
        "return values.isnan()",
        "worker",
        "render_terminal",
    ),
    fault(
        "what was made from memory that nobody wrote was not written",
        "grader/isolate/allocations.py",
        "raw[marked(values, range(mark, mark + 1)).view(-1), 0]",
        "raw[marked(values, MARKS).view(-1), 0]",
        "worker",
    ),
    fault(
        "what is added to memory that nobody wrote is not written",
        "grader/kernel/observers/access.py",
        "        elif what == _ATOMIC or number in self._read:\n",
        "        elif False:\n",
        "worker",
    ),
    fault(
        "programs that store over each other in a gradient are not seen",
        "grader/kernel/observers/overwrites.py",
        "        if over.any() and found.clash is None",
        "        if False and found.clash is None",
        "sightings",
    ),
    fault(
        "equal numbers of two programs are a race",
        "grader/kernel/observers/overwrites.py",
        " & (found.bits[ids] != bits)",
        "",
        "sightings",
    ),
    fault(
        "a call that was stopped has the step of its line",
        "grader/judge/case_report.py",
        "source.step_of_loops_at(line) if looping else source.step_at(line)",
        "source.step_at(line)",
        "session",
    ),
    fault(
        "what the assembler printed is the headline",
        "grader/kernel/compile/faults.py",
        "        text = assembler.sentence(text)\n",
        "",
        "faults",
    ),
    fault(
        "the dtype of an output is not looked at",
        "grader/isolate/returned.py",
        "        if value.dtype != wanted:\n",
        "        if False:\n",
        "bad_input",
    ),
    fault(
        "outputs need not be dense",
        "grader/isolate/returned.py",
        'if view.name in ("out", "lse", "y") and not value.is_contiguous():',
        'if view.name in ("none",) and not value.is_contiguous():',
        "wrong_kernels",
        "bad_input",
    ),
    fault(
        "every call counts as one with a kernel",
        "grader/judge/case_run.py",
        "return evidence.result.launches if isinstance(evidence.result, Reply) else 0",
        "return 1",
        "wrong_kernels",
        "bad_input",
    ),
    fault(
        "no case is called a second time",
        "grader/judge/case_run.py",
        "for call in range(2 if self.index == 0 else 1):",
        "for call in range(1):",
        "wrong_kernels",
    ),
    fault(
        "the second call has the values of the first",
        "grader/judge/answers.py",
        "*([call] if call else [])",
        "*([])",
        "wrong_kernels",
    ),
    fault(
        "draws do not depend on the seed",
        "grader/spec/problem.py",
        'place = f"{seed}/{self.id}/{check.id}/{next(index)}"',
        'place = f"{self.id}/{check.id}/{next(index)}"',
        "manifest",
        "cases",
    ),
    fault(
        "a check may depart from the plain case in anything",
        "grader/spec/problem.py",
        "                _departs_only_in(check, table)\n",
        "                pass\n",
        "manifest",
        "cases",
    ),
    fault(
        "any ValueError that names the argument somewhere is a refusal",
        "grader/judge/case_run.py",
        'if named not in (case.invalid, *_ALSO_NAMES.get(case.invalid or "", ())):',
        "if case.invalid not in reply.text:",
        "bad_input",
    ),
    # -- speed and memory ---------------------------------------------------------------------
    fault(
        "timed outputs are always right",
        PERFORMANCE,
        "    tensors = inputs.tensors\n    if case.rows is not None:\n",
        "    return 0.0\n    tensors = inputs.tensors\n    if case.rows is not None:\n",
        "measure",
        "performance",
    ),
    fault(
        "wrong timed outputs do not matter",
        "grader/judge/measurement.py",
        "if margin is None or not margin <= 1.0:",
        "if margin is None:",
        "measure",
    ),
    fault(
        "wrong outputs do not matter when memory is measured",
        "grader/judge/measurement.py",
        "    if not margin <= 1.0:\n",
        "    if False:\n",
        "measure",
    ),
    fault(
        "the overhead is taken off twice",
        "grader/timing/speed.py",
        "1000.0 * (s - overhead_s) / self.sets",
        "1000.0 * (s - 2 * overhead_s) / self.sets",
        "measure",
        "performance",
    ),
    fault(
        "baselines may differ as they like",
        PERFORMANCE,
        "MAX_DRIFT_PERCENT = 10.0",
        "MAX_DRIFT_PERCENT = 1000.0",
        "measure",
        "performance",
    ),
    # -- speed targets ------------------------------------------------------------------------
    fault(
        "an implied target may be harder than one that is stated",
        "grader/timing/implied.py",
        "full = min(rounded_down(full), problem.speed.full, recorded.full)",
        "full = rounded_down(full)",
        "implied",
    ),
    fault(
        "what an answer may lose on another GPU is not allowed for",
        "grader/timing/implied.py",
        "_KEPT_DOTS, _KEPT_BYTES = 0.5, 0.8",
        "_KEPT_DOTS, _KEPT_BYTES = 1.0, 1.0",
        "implied",
    ),
    fault(
        "a calibration of another GPU is used",
        "grader/timing/calibration.py",
        "    if (found.device, found.device_name) != expected:\n",
        "    if False:\n",
        "calibration",
    ),
    fault(
        "a calibrated target may lie above what the answer reached",
        "grader/timing/calibration.py",
        "rounded_down(min(SHARE * median, lowest))",
        "rounded_down(SHARE * median)",
        "calibration",
    ),
    fault(
        "a machine that has become slower goes unseen",
        "grader/timing/calibration.py",
        "known.naive_median_ms * (1 + usual)",
        "known.naive_median_ms * (2 + usual)",
        "calibration",
    ),
    fault(
        "a grading in which speed was not measured counts as one that lost its points",
        "grader/commands/stability/spread.py",
        "p.points.available >= most - _ROUNDING and most > 0",
        "most > 0",
        "stability",
    ),
    fault(
        "memory may be ten times as much",
        PERFORMANCE,
        '{"cuda": 192 * 2**20, "cpu": 32 * 2**20}',
        '{"cuda": 1920 * 2**20, "cpu": 320 * 2**20}',
        "set",
        "handouts",
    ),
    fault(
        "processes that the submission starts are not counted",
        "grader/isolate/usage.py",
        "found = [self.pid, *descendants(self.pid)]",
        "found = [self.pid]",
        "usage",
    ),
    fault(
        "a daemon's time and memory are not counted",
        "grader/isolate/usage.py",
        "orphans = [pid for pid in children(self.adopter) if pid not in known]",
        "orphans: list[int] = []",
        "usage",
    ),
    fault(
        "peak memory is what is left at the end",
        "grader/isolate/usage.py",
        "        while not self._stop.wait(_SAMPLE_S):\n            self._look()\n",
        "        self._stop.wait()\n",
        "usage",
    ),
    # -- points -------------------------------------------------------------------------------
    fault(
        "speed counts for a wrong kernel",
        "grader/judge/scoring.py",
        "    if hold(rests_on):\n        return component\n",
        "    return component\n",
        "scoring",
    ),
    fault(
        "a check with one wrong gradient of three holds whole",
        "grader/judge/scoring.py",
        "held = worth * check.share if measured else 0.0",
        "held = worth if measured else 0.0",
        "scoring",
    ),
    fault(
        "failed checks cost more than their share",
        "grader/judge/scoring.py",
        "return math.ceil(10.0 * points - ROUNDING_SLACK) / 10.0",
        "return math.floor(points)",
        "scoring",
    ),
    fault(
        "memory may grow at one of the two lengths",
        "grader/judge/scoring.py",
        "    if all(within):\n",
        "    if any(within):\n",
        "scoring",
    ),
    fault(
        "speed is scored on a linear scale",
        "grader/judge/scoring.py",
        "return (math.log(ratio) - math.log(low)) / (math.log(high) - math.log(low))",
        "return (ratio - low) / (high - low)",
        "scoring",
    ),
    fault(
        "bonus points count as required ones",
        "grader/judge/scoring.py",
        "        if problem.bonus:\n",
        "        if False:\n",
        "scoring",
    ),
    fault(
        "a fault of the judge exits with 0",
        "grader/judge/scoring.py",
        "        return EXIT_JUDGE_FAULT\n",
        "        return EXIT_FULL_MARKS\n",
        "scoring",
        "cli",
    ),
    fault(
        "argument checks count without a kernel that works",
        "grader/judge/testrun.py",
        "needed = results.get(check.needs) if check.needs else None",
        "needed = None",
        "check_results",
        "wrong_kernels",
    ),
    # -- sources ------------------------------------------------------------------------------
    fault(
        "a link is followed",
        "grader/base/regular_file.py",
        "_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW",
        "_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        "source",
    ),
    fault(
        "a link to a folder is followed",
        "grader/base/regular_file.py",
        "FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW",
        "FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC",
        "source",
    ),
    fault(
        "a coding cookie is believed",
        "grader/source/submission.py",
        'if cookie and not _is_utf8(cookie[1].lower().replace(b"_", b"-")):',
        "if False:",
        "source",
    ),
    fault(
        "a stub counts as an answer",
        "grader/source/submission.py",
        "    if raised is not None:\n",
        "    if raised is None and False:\n",
        "source",
        "set",
    ),
    # -- source policy ------------------------------------------------------------------------
    fault(
        "the policy is not asked",
        "grader/source/submission.py",
        "broken = violations(problem, tree) if policy else ()",
        "broken = ()",
        "policy",
    ),
    fault(
        "policy: other names of modules are not followed",
        "grader/source/policy/names.py",
        "new = (self.paths(value) & self._tracked) - known",
        "new = set()",
        "policy",
    ),
    fault(
        "policy: what a function calls is thought never to run",
        "grader/source/policy/reach.py",
        "waiting += [n for n in named_by[name] if n in named_by]",
        "waiting += []",
        "policy",
    ),
    fault(
        "policy: the else of a main block is skipped",
        "grader/source/policy/names.py",
        "children = [Place(n, node, place.scope, place.zone) for n in node.orelse]",
        "children = []",
        "policy",
    ),
    fault(
        "policy: a bridge lets all compute",
        "grader/source/policy/reach.py",
        "zone = shared if name in bridge and name in plain else main",
        "zone = alone if name in bridge and name in plain else main",
        "policy",
    ),
    fault(
        "kernels run where they are to do nothing",
        "grader/kernel/observers/access.py",
        "return None if self.idle else launch(this, *args, **kwargs)",
        "return launch(this, *args, **kwargs)",
        "idle",
    ),
    fault(
        "what was right before counts as computed elsewhere",
        "grader/checks/idle.py",
        "and not is_right(name, earlier.truth[name])",
        "",
        "idle",
    ),
    fault(
        "no worker is told to look at operators",
        "grader/isolate/session.py",
        "operators=opened(self.problem) if self.source.policy else None",
        "operators=None",
        "elsewhere",
    ),
    fault(
        "operators are looked at though the policy is left out",
        "grader/judge/pytest_run.py",
        "self.request.source.data, policy=self.request.policy)",
        "self.request.source.data)",
        "elsewhere",
    ),
    fault(
        "threads are not looked at",
        "grader/isolate/operators.py",
        "setattr(module, name, self._following(getattr(module, name)))",
        "pass",
        "elsewhere",
    ),
    fault(
        "a class of the submission's own computes unseen",
        "grader/isolate/operators.py",
        "        if any(kind not in _PLAIN for kind in types):\n",
        "        if False:\n",
        "operators",
    ),
    fault(
        "the text of a tensor tells its values",
        "grader/kernel/interpreter/readings.py",
        "torch.Tensor.__repr__ = _without_values(torch.Tensor.__repr__)",
        "pass",
        "operators",
    ),
    fault(
        "an operator that fails tells nothing",
        "grader/isolate/operators.py",
        'self._record.reads(1, f"the error of {_name(func)}")',
        "pass",
        "operators",
    ),
    fault(
        "methods may be called on anything",
        "grader/isolate/own_objects.py",
        "if not own and not isinstance(",
        "if False and not isinstance(",
        "own_objects",
    ),
    fault(
        "a kernel's value has a text",
        "grader/kernel/interpreter/constants.py",
        'for name in ("__repr__", "__str__"):',
        "for name in ():",
        "own_objects",
    ),
    fault(
        "a kernel has the file's own objects",
        "grader/kernel/interpreter/own_kernels.py",
        "return self.taken(name, self.of_all()[name])",
        "return self.of_all()[name]",
        "own_kernels",
    ),
    fault(
        "a kernel runs from the text that Triton finds",
        "grader/kernel/interpreter/own_kernels.py",
        "own = kernels.owns(function)",
        "own = False",
        "own_kernels",
    ),
    fault(
        "a kernel imports what it likes",
        "grader/kernel/interpreter/own_kernels.py",
        '{"__import__": kernels.imported}',
        "{}",
        "own_kernels",
    ),
    fault(
        "memory is read outside of kernels",
        "grader/kernel/interpreter/constants.py",
        'if not getattr(inside, "runs", False):',
        "if False:",
        "own_kernels",
    ),
    fault(
        "a kernel that fails tells nothing",
        "grader/kernel/interpreter/constants.py",
        'readings.tell(1, "the error of a kernel")',
        "pass",
        "own_kernels",
    ),
    fault(
        "the error of a kernel has its text",
        "grader/kernel/interpreter/constants.py",
        'raise known("a kernel failed") from error',
        "raise",
        "own_kernels",
    ),
    fault(
        "conversions are free",
        "grader/isolate/operators.py",
        "if kind == CONVERTS and _changes_type(args, result):",
        "if False:",
        "operators",
    ),
    fault(
        "how deep Python recurses tells who looks",
        "grader/isolate/worker.py",
        "        sys.setrecursionlimit(_DEPTH)\n",
        "",
        "measure",
    ),
    fault(
        "attributes of a kernel are set",
        "grader/source/policy/rules.py",
        "isinstance(n, _FUNCTIONS) and not n.decorator_list)",
        "isinstance(n, _FUNCTIONS))",
        "policy",
    ),
    fault(
        "a lock is one whoever shares it",
        "grader/kernel/observers/races.py",
        "other &= known <= found.when[ids]",
        "other[:] = False",
        "own_kernels",
    ),
    fault(
        "a flag may be a sum",
        "grader/kernel/observers/access.py",
        "waits = waits and ptrs.get_element_ty().is_int()",
        "waits = bool(waits)",
        "own_kernels",
    ),
    fault(
        "a class answers where modes are off",
        "grader/isolate/asking.py",
        "if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):",
        "if False:",
        "own_objects",
    ),
    fault(
        "a launch runs what it is given",
        "grader/kernel/interpreter/own_kernels.py",
        "if id(body) not in bodies:",
        "if False:",
        "own_kernels",
    ),
    fault(
        "a kernel may be another one where it is compiled",
        "grader/judge/compile_run.py",
        "if finding is None and line not in lines_compiled(more):",
        "if False:",
        "launched",
    ),
    fault(
        "a kernel may be another one on a GPU",
        "grader/judge/compile_run.py",
        "            if answer.differences:",
        "            if False:",
        "launched",
    ),
    fault(
        "a template names attributes",
        "grader/source/policy/bindings.py",
        'return any("." in field or',
        'return any("<" in field or',
        "policy",
    ),
    fault(
        "a base is any value",
        "grader/source/policy/rules.py",
        "if not self.bindings.names_class(base):",
        "if False:",
        "policy",
    ),
    fault(
        "programs may race",
        "grader/judge/case_run.py",
        "            if race is not None:\n",
        "            if False:\n",
        "own_kernels",
    ),
    # -- verdicts, budgets, evidence ----------------------------------------------------------
    fault(
        "time is never used up",
        "grader/isolate/session.py",
        "if self.lost_s >= self._limits.lost_s and",
        "if False and",
        "session",
    ),
    fault(
        "patience does not shrink after a timeout",
        "grader/isolate/session.py",
        "        if self.lost_s:\n",
        "        if False:\n",
        "session",
    ),
    fault(
        "a timeout is a crash",
        "grader/checks/outcome.py",
        "        verdict = Verdict.TIMEOUT\n",
        "        verdict = Verdict.CRASH\n",
        "bad_input",
    ),
    fault(
        "a worker that never started is the submission's",
        "grader/checks/outcome.py",
        "    if not ended.started:\n",
        "    if False:\n",
        "measure",
        "bad_input",
    ),
    fault(
        "a killed test process is the judge's fault",
        "grader/judge/testrun.py",
        "return Finding(verdict=Verdict.CRASH, message=message)",
        "return Finding(verdict=Verdict.INTERNAL, message=message)",
        "testrun",
    ),
    fault(
        "a fault that a submission brought about costs nothing",
        "grader/judge/testrun.py",
        "if finding.after_calls and finding.message is not None:",
        "if False:",
        "testrun",
    ),
    fault(
        "a stopped process is waited for without end",
        "grader/isolate/processes.py",
        "ending.silent = now - heard >= SILENCE_S",
        "ending.silent = False",
        "processes",
    ),
    fault(
        "an answer to another request counts",
        "grader/isolate/sandbox.py",
        "if reply is not None and reply.nonce == nonce:",
        "if reply is not None:",
        "sandbox",
        "worker",
    ),
    fault(
        "a cause is named that a right case contradicts",
        "grader/causes/known_mistakes.py",
        "candidates = self._not_contradicted_by_right(candidates)",
        "candidates = list(candidates)",
        "diagnose",
    ),
    fault(
        "a mistake that was put off is compared no more",
        "grader/causes/known_mistakes.py",
        "                if since.get(id, len(late)) <= number:",
        "                if since.get(id, 0) > number:",
        "diagnose",
    ),
    fault(
        "a kernel whose code has changed is not compiled again",
        "grader/kernel/compile/kept_code.py",
        'code = f"{given}\\n{module.str_nodebug()}"',
        "code = given",
        "kept_kernels",
    ),
    fault(
        "what a refused kernel left behind another call is believed",
        "grader/judge/trial.py",
        "return parts if good or last else run([call])",
        "return parts",
        "remembered",
    ),
    fault(
        "one of two causes that fit alike is named",
        "grader/causes/known_mistakes.py",
        "if not places - explained or rivals",
        "if not places - explained",
        "diagnose",
    ),
    fault(
        "the report is printed before the record is written",
        "grader/commands/cli.py",
        "        exports.write_all(files, record, os.environ, sources)\n    finally:\n",
        "        _print_report(record, options)\n    finally:\n"
        "        exports.write_all(files, record, os.environ, sources)\n",
        "cli",
    ),
    # -- files for other tools ----------------------------------------------------------------
    fault(
        "a file that cannot be written keeps the others from being written",
        "grader/report/exports.py",
        "                failed.append(",
        "                raise EnvironmentFault(",
        "cli",
    ),
    fault(
        "a rounded part may be more than is available in it",
        "grader/report/wholes.py",
        "if missing > 0 and whole[i] < limits[i]:",
        "if missing > 0:",
        "render_classroom",
    ),
    fault(
        "an archive that is an upload is not looked into",
        "grader/commands/package/upload.py",
        "contents = archives.read(_inner(upload))",
        "contents = archives.read(upload)",
        "package",
    ),
    fault(
        "Gradescope shows nothing before the first problem is graded",
        "grader/commands/package/templates/run_autograder",
        'tell "The autograder did not come to its first result. $again"\n',
        "",
        "package",
    ),
    fault(
        "the judge is not told to stop before Gradescope stops it",
        "grader/commands/package/templates/run_autograder",
        'timeout --foreground --signal=TERM --kill-after=30 "$((minutes * 60 - 60))" \\\n',
        "",
        "package",
    ),
    fault(
        "the limits of a container are not seen",
        "grader/isolate/capacity.py",
        "    return min(found)\n\n\ndef _number",
        "    return max(found)\n\n\ndef _number",
        "capacity",
    ),
    fault(
        "memory that a container has not got is measured in",
        "grader/judge/measurement.py",
        "            if needed > capacity.free_bytes():\n",
        "            if needed < 0:\n",
        "measure",
    ),
    fault(
        "a measured worker keeps the memory of every call",
        "grader/isolate/worker.py",
        "            shared.close()  #",
        "            #",
        "measure",
    ),
    fault(
        "two options may have one file",
        "grader/commands/arguments.py",
        "        if other != name:\n",
        "        if other is None:\n",
        "cli",
    ),
    fault(
        "the report may hold commands of GitHub's",
        "grader/commands/cli.py",
        "annotations.without_commands(text, os.urandom(16).hex())",
        "text",
        "cli",
    ),
    fault(
        "the token that ends the report is known",
        "grader/commands/cli.py",
        "annotations.without_commands(text, os.urandom(16).hex())",
        'annotations.without_commands(text, "0" * 32)',
        "cli",
    ),
    fault(
        "a comma ends the title of an annotation",
        "grader/report/annotations.py",
        '{":": "%3A", ",": "%2C"}',
        '{":": "%3A"}',
        "render_annotations",
    ),
    fault(
        "a fence has three backticks, whatever is in it",
        "grader/report/markdown.py",
        "max(3, *(_longest_run(line) + 1 for line in lines))",
        "3",
        "render_markdown",
    ),
    fault(
        "HTML in a summary is HTML",
        "grader/report/markdown.py",
        "_ENTITIES.get(char, char)",
        "char",
        "render_markdown",
    ),
    fault(
        "a rejected file is green in JUnit",
        "grader/report/junit.py",
        '    Verdict.REJECTED: "failure",',
        '    Verdict.REJECTED: "skipped",',
        "render_junit",
    ),
    fault(
        "Gradescope gets no bonus points",
        "grader/report/gradescope.py",
        "score = record.totals + record.bonus",
        "score = record.totals",
        "render_gradescope",
    ),
    fault(
        "students see what a fault of the judge says to instructors",
        "grader/report/gradescope.py",
        '"visibility": "hidden",\n    }',
        '"visibility": "visible",\n    }',
        "render_gradescope",
    ),
    fault(
        "what a submission says is markup on the page",
        "grader/report/html/page.py",
        "autoescape=True",
        "autoescape=False",
        "render_html",
    ),
    fault(
        "text that turns other text around gets into the page",
        "grader/report/html/page.py",
        "        finalize=_plain,\n",
        "",
        "render_html",
    ),
    fault(
        "the page shows another source than the one that was graded",
        "grader/report/html/problem.py",
        "hashlib.sha256(data).hexdigest() == problem.source_sha256",
        "True",
        "render_html",
    ),
    fault(
        "a huge source fills the page",
        "grader/report/html/source.py",
        "        if room < 0:\n",
        "        if room is None:\n",
        "render_html",
    ),
    fault(
        "the history is sorted by the clock",
        "grader/report/history.py",
        "    return tuple(run for run in runs if",
        "    runs = sorted(filter(None, runs), key=lambda run: run.time)\n"
        "    return tuple(run for run in runs if",
        "history",
    ),
    fault(
        "a report that cannot be written ends the grading",
        "grader/report/report_page.py",
        "    except Exception as error:  # whatever",
        "    except ZeroDivisionError as error:  # whatever",
        "report",
    ),
    fault(
        "the map of errors is of another head",
        "grader/checks/correctness.py",
        "    head = by_element[heads]\n",
        "    head = by_element[tuple(0 for _ in heads)]\n",
        "correctness",
    ),
    # -- the quiz -----------------------------------------------------------------------------
    fault(
        "the quiz takes a number at twice its tolerance",
        "grader/commands/quiz/answers.py",
        "<= question.tolerance",
        "<= 2 * question.tolerance",
        "quiz",
    ),
    fault(
        "the quiz forgets what was answered",
        "grader/commands/quiz/progress.py",
        "        self.outcomes[question_id] = outcome\n        self._write()\n",
        "        self.outcomes[question_id] = outcome\n",
        "quiz_asking",
    ),
    fault(
        "a damaged state of the quiz is overwritten",
        "grader/base/user_state.py",
        "            os.replace(path, damaged)\n",
        "            pass\n",
        "quiz_asking",
        "hint",
    ),
    fault(
        "the quiz repeats whatever was typed, however long",
        "grader/commands/quiz/asking.py",
        'self.terminal.text(f"{clean(error)} (',
        'self.terminal.text(f"{error} (',
        "quiz_asking",
    ),
    fault(
        "Ctrl-C in the quiz ends with 0",
        "grader/commands/quiz/asking.py",
        "            whole = False\n",
        "            pass\n",
        "quiz_asking",
    ),
    # -- the desk: doctor, hint, explain ------------------------------------------------------
    fault(
        "a warning of doctor is an error",
        "grader/commands/doctor/command.py",
        "line.level == ERROR for",
        "line.level != 'ok' for",
        "doctor",
    ),
    fault(
        "doctor ends with what goes wrong while it looks",
        "grader/commands/doctor/doctor.py",
        "        except Exception as error:\n",
        "        except ZeroDivisionError as error:\n",
        "doctor",
    ),
    fault(
        "a hint is shown again and again",
        "grader/commands/hint/command.py",
        "        shown.add(problem.id, step)\n",
        "",
        "hint",
    ),
    fault(
        "a file that cannot be read costs a hint",
        "grader/commands/hint/command.py",
        "    if where.step is None:\n",
        "    if False:\n",
        "hint",
    ),
    fault(
        "explain shows commands of a problem that has no such cause",
        "grader/report/cause_pages.py",
        "    if problem in entry.problems:\n",
        "    if problem is not None:\n",
        "causes",
    ),
    fault(
        "explain forgets which problem failed last",
        "grader/report/history.py",
        "        for problem, found in run.causes.items():\n",
        "        for problem, found in ():\n",
        "causes",
    ),
    fault(
        "messages speak of options that nobody typed",
        "grader/commands/options.py",
        "        super().error(in_words_of_make(message, command))\n",
        "        super().error(message)\n",
        "forgiving",
    ),
    # -- one program in the report --------------------------------------------------------------
    fault(
        "a program is told of though it is not known where it goes wrong",
        "grader/causes/state/program.py",
        "Told(record, told and end.is_known, ",
        "Told(record, True, ",
        "told_trace",
    ),
    fault(
        "a message leaves out the last tile",
        "grader/causes/state/program.py",
        "at_an_end = tile in (rounds[0], rounds[-1])",
        "at_an_end = tile is rounds[0]",
        "told_trace",
    ),
    fault(
        "nobody says why a program tells nothing",
        "grader/judge/retrace.py",
        "trimmed(untold(told)) if told.why_not else None",
        "None",
        "told_trace",
    ),
    # -- the words of a report -----------------------------------------------------------------
    fault(
        "the next step is the command that was just run",
        "grader/judge/next_step.py",
        'return f"make explain ID={broken.diagnosis.id}"',
        'return f"make grade P={problem.id}"',
        "render_terminal",
    ),
    fault(
        "after full marks there is no next problem",
        "grader/report/score.py",
        "    return _problem_after(problems[-1].id) if problems else None\n",
        "    return None\n",
        "render_terminal",
    ),
    fault(
        "bonus problems alone have 0 of 0 required points",
        "grader/report/score.py",
        " for label, part in parts.items() if part.possible]",
        " for label, part in parts.items()]",
        "render_terminal",
    ),
    fault(
        "dk and dv are told of as if they were sums over keys",
        "grader/checks/walk.py",
        '        return self.product in ("dk", "dv")\n',
        "        return False\n",
        "tiles",
        "sightings",
    ),
    fault(
        "an example is of another row than the numbers",
        "grader/causes/rules/look.py",
        "near = result.place if name == names[0] else None",
        "near = None",
        "sightings",
    ),
    fault(
        "the other lanes of a heat have no time",
        "grader/commands/race/racing.py",
        'f"{1000.0 * seconds:.3g} ms in a heat, " if seconds > 0 else ""',
        '""',
        "race",
    ),
    fault(
        "a heat is as short as one call",
        "grader/commands/race/racing.py",
        "calls = speed.calls_of_go(self._bench, layout, one_s)",
        "calls = 1",
        "race",
    ),
    fault(
        "a race that the judge lost is the machine's fault",
        "grader/commands/race/command.py",
        "    if raced.internal:\n",
        "    if False:\n",
        "race",
    ),
    fault(
        "the report's roof of a T4 is not that of a race",
        "grader/report/html/roofline.py",
        "    dots, bytes_per_s = known\n",
        "    dots, bytes_per_s = known[0] / 32, known[1]\n",
        "render_html",
    ),
    # -- the student's desk ----------------------------------------------------------------------
    fault(
        "a watch goes on with the file before",
        "grader/commands/watch/loop.py",
        "        if self._run is not None:\n            self._run.stop()\n        self._due",
        "        self._due",
        "watch",
    ),
    fault(
        "a watch overlooks a file of the same length",
        "grader/commands/watch/saves.py",
        "found.st_size, *times\n",
        "found.st_size\n",
        "watch",
    ),
    fault(
        "what failed does not go first",
        "grader/judge/pytest_plugin.py",
        "    if run.request is not None and run.request.first:\n",
        "    if False:\n",
        "watch",
    ),
    fault(
        "a watch keeps the terminal",
        "grader/commands/watch/terminal.py",
        "            signal.signal(number, handler)\n        self._give_back()\n",
        "            signal.signal(number, handler)\n",
        "watch",
    ),
    fault(
        "a wrong answer takes part in a race",
        "grader/commands/race/racing.py",
        "        if not block.margin <= 1.0:\n",
        "        if False:\n",
        "race",
    ),
    fault(
        "the roof is the shorter time",
        "grader/spec/roofline.py",
        "1000.0 * max(",
        "1000.0 * min(",
        "race",
    ),
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
                command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
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
