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
    return Fault(name, f"grader/{file}", old, new, tuple(f"tests/test_{t}.py" for t in tests))


CORRECTNESS, PERFORMANCE = "checks/correctness.py", "checks/performance.py"
FAULTS = (
    # -- why it is wrong ----------------------------------------------------------------------
    fault(
        "an error of a rule leaves a case without a verdict",
        "judge.py",
        "        except Exception as error:  # of the judge's own",
        "        except ZeroDivisionError as error:  # of the judge's own",
        "explaining",
    ),
    fault(
        "a NaN of no query is told",
        "running/nans.py",
        "        born &= someone\n",
        "",
        "nans",
    ),
    fault(
        "a maximum that is too large is a mask",
        "running/lineage.py",
        "    if operation in (np.subtract, np.add) and far.any():\n",
        "    if operation is None:\n",
        "wrong_answers",
    ),
    fault(
        "few cases tell though the plain case failed",
        "diagnose.py",
        "        return plain_failed and _FEW",
        "        return not self._failed and _FEW",
        "diagnose",
    ),
    # -- the jail -----------------------------------------------------------------------------
    fault("a jail has a network", "running/jail.py", '"--unshare-net", ', "", "jail"),
    fault("a jail shows folders of the checkout", "running/jail.py", "or within or", "or", "jail"),
    fault(
        "a jail's folders have no limit",
        "running/jail.py",
        'walls += ["--size", str(FOLDER_BYTES), "--tmpfs", str(folder)]',
        'walls += ["--tmpfs", str(folder)]',
        "jail",
    ),
    fault(
        "a jailed worker names its GPU by a number",
        "running/jail.py",
        '"CUDA_VISIBLE_DEVICES": f"GPU-{uuid}"',
        '"CUDA_VISIBLE_DEVICES": "1"',
        "jail",
    ),
    fault(
        "the collector runs in timed calls",
        "running/worker.py",
        "            results = returned.of_call(self.entry, tensors, request)\n",
        "            results = self._evaluate(tensors, request)\n",
        "measure",
    ),
    fault(
        "cycles are left for timed calls to end",
        "running/stopwatch.py",
        '            timed.ask("settle")\n',
        "",
        "measure",
    ),
    fault(
        "workers are started when the GPU is had",
        "measure.py",
        '    if not (request.jailed and request.device == "cuda" and request.sources):',
        "    if request:",
        "held",
    ),
    fault(
        "workers of a class name their GPU by its number",
        "course/engine.py",
        'print(f"GPU-{torch.cuda.get_device_properties(number).uuid}")',
        "print(number)",
        "class_engine",
    ),
    fault(
        "nobody counts a jail's memory",
        "running/warden.py",
        "        memory = _memory_bytes(pids)\n",
        "        memory = 0\n",
        "jail",
    ),
    fault(
        "a jail with holes is good enough",
        "running/inspection.py",
        "    if holes:\n",
        "    if not holes:\n",
        "jail",
    ),
    fault(
        "official mode looks at no jail",
        "surroundings.py",
        "            inspection.inspect(gpu=environment.device_uuid)",
        "            pass",
        "jail",
    ),
    fault(
        "the test process jails nobody",
        "pytest_plugin.py",
        "jailed=run.request.jailed, gpu",
        "jailed=False, gpu",
        "hostile",
        "jail",
    ),
    fault(
        "a jailed submission is blamed for the judge's end",
        "testrun.py",
        "None if self.interrupted or self._jailed else",
        "None if self.interrupted else",
        "testrun",
    ),
    fault(
        "every record is official",
        "grade.py",
        '"official" if self.request.official else "local"',
        '"official"',
        "cli",
        "render_terminal",
        "jail",
    ),
    fault(
        "no timed call is looked at",
        "running/speed.py",
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
        "running/allocations.py",
        "                if changed:\n",
        "                if False:\n",
        "allocations",
        "bad_input",
    ),
    fault(
        "fresh allocations are not poisoned",
        "running/allocations.py",
        "0xFF, dtype=torch.uint8, device=plain.device",
        "0, dtype=torch.uint8, device=plain.device",
        "allocations",
        "bad_input",
    ),
    fault(
        "the shared memory is not poisoned",
        "running/arena.py",
        "ctypes.memset(self.memory.data_ptr(), POISON, self.memory.numel())",
        "ctypes.memset(self.memory.data_ptr(), 0, self.memory.numel())",
        "allocations",
        "bad_input",
    ),
    fault(
        "accesses in the interpreter are not checked",
        "running/access.py",
        "        if active.size == 0:\n            return\n",
        "        if active.size >= 0:\n            return\n",
        "bad_input",
        "wrong_kernels",
    ),
    fault(
        "written inputs are not noticed",
        "running/session.py",
        "        if its_own.any():\n",
        "        if False:\n",
        "bad_input",
        "wrong_kernels",
    ),
    fault(
        "never written and computed as NaN are one",
        "running/arena.py",
        "return (raw >= above + marks[0]) & (raw <= above + marks[-1])",
        "return values.isnan()",
        "worker",
        "render_terminal",
    ),
    fault(
        "what was made from memory that nobody wrote was not written",
        "running/allocations.py",
        "raw[marked(values, range(mark, mark + 1)).view(-1), 0]",
        "raw[marked(values, MARKS).view(-1), 0]",
        "worker",
    ),
    fault(
        "what is added to memory that nobody wrote is not written",
        "running/access.py",
        "        elif what == _ATOMIC or number in self._read:\n",
        "        elif False:\n",
        "worker",
    ),
    fault(
        "programs that store over each other in a gradient are not seen",
        "running/overwrites.py",
        "        if over.any() and found.clash is None",
        "        if False and found.clash is None",
        "sightings",
    ),
    fault(
        "equal numbers of two programs are a race",
        "running/overwrites.py",
        " & (found.bits[ids] != bits)",
        "",
        "sightings",
    ),
    fault(
        "a call that was stopped has the step of its line",
        "told_case.py",
        "source.step_of_loops_at(line) if looping else source.step_at(line)",
        "source.step_at(line)",
        "session",
    ),
    fault(
        "what the assembler printed is the headline",
        "running/faults.py",
        "        text = assembler.sentence(text)\n",
        "",
        "faults",
    ),
    fault(
        "the dtype of an output is not looked at",
        "running/returned.py",
        "        if value.dtype != wanted:\n",
        "        if False:\n",
        "bad_input",
    ),
    fault(
        "outputs need not be dense",
        "running/returned.py",
        'if view.name in ("out", "lse", "y") and not value.is_contiguous():',
        'if view.name in ("none",) and not value.is_contiguous():',
        "wrong_kernels",
        "bad_input",
    ),
    fault(
        "every call counts as one with a kernel",
        "judge.py",
        "return evidence.result.launches if isinstance(evidence.result, Reply) else 0",
        "return 1",
        "wrong_kernels",
        "bad_input",
    ),
    fault(
        "no case is called a second time",
        "judge.py",
        "for call in range(2 if self.index == 0 else 1):",
        "for call in range(1):",
        "wrong_kernels",
    ),
    fault(
        "the second call has the values of the first",
        "answers.py",
        "*([call] if call else [])",
        "*([])",
        "wrong_kernels",
    ),
    fault(
        "draws do not depend on the seed",
        "manifest.py",
        'place = f"{seed}/{self.id}/{check.id}/{next(index)}"',
        'place = f"{self.id}/{check.id}/{next(index)}"',
        "manifest",
        "cases",
    ),
    fault(
        "a check may depart from the plain case in anything",
        "manifest.py",
        "                _departs_only_in(check, table)\n",
        "                pass\n",
        "manifest",
        "cases",
    ),
    fault(
        "any ValueError that names the argument somewhere is a refusal",
        "judge.py",
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
        "measurement.py",
        "if margin is None or not margin <= 1.0:",
        "if margin is None:",
        "measure",
    ),
    fault(
        "wrong outputs do not matter when memory is measured",
        "measurement.py",
        "    if not margin <= 1.0:\n",
        "    if False:\n",
        "measure",
    ),
    fault(
        "the overhead is taken off twice",
        "running/speed.py",
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
        "calibration/implied.py",
        "full = min(rounded_down(full), problem.speed.full, recorded.full)",
        "full = rounded_down(full)",
        "implied",
    ),
    fault(
        "what an answer may lose on another GPU is not allowed for",
        "calibration/implied.py",
        "_KEPT_DOTS, _KEPT_BYTES = 0.5, 0.8",
        "_KEPT_DOTS, _KEPT_BYTES = 1.0, 1.0",
        "implied",
    ),
    fault(
        "a calibration of another GPU is used",
        "calibration/file.py",
        "    if (found.device, found.device_name) != expected:\n",
        "    if False:\n",
        "calibration",
    ),
    fault(
        "a calibrated target may lie above what the answer reached",
        "calibration/file.py",
        "rounded_down(min(SHARE * median, lowest))",
        "rounded_down(SHARE * median)",
        "calibration",
    ),
    fault(
        "a machine that has become slower goes unseen",
        "calibration/file.py",
        "known.naive_median_ms * (1 + usual)",
        "known.naive_median_ms * (2 + usual)",
        "calibration",
    ),
    fault(
        "a grading in which speed was not measured counts as one that lost its points",
        "stability/spread.py",
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
        "running/usage.py",
        "found = [self.pid, *descendants(self.pid)]",
        "found = [self.pid]",
        "usage",
    ),
    fault(
        "a daemon's time and memory are not counted",
        "running/usage.py",
        "orphans = [pid for pid in children(self.adopter) if pid not in known]",
        "orphans: list[int] = []",
        "usage",
    ),
    fault(
        "peak memory is what is left at the end",
        "running/usage.py",
        "        while not self._stop.wait(_SAMPLE_S):\n            self._look()\n",
        "        self._stop.wait()\n",
        "usage",
    ),
    # -- points -------------------------------------------------------------------------------
    fault(
        "speed counts for a wrong kernel",
        "scoring.py",
        "    if hold(rests_on):\n        return component\n",
        "    return component\n",
        "scoring",
    ),
    fault(
        "a check with one wrong gradient of three holds whole",
        "scoring.py",
        "held = worth * check.share if measured else 0.0",
        "held = worth if measured else 0.0",
        "scoring",
    ),
    fault(
        "failed checks cost more than their share",
        "scoring.py",
        "return math.ceil(10.0 * points - ROUNDING_SLACK) / 10.0",
        "return math.floor(points)",
        "scoring",
    ),
    fault(
        "memory may grow at one of the two lengths",
        "scoring.py",
        "    if all(within):\n",
        "    if any(within):\n",
        "scoring",
    ),
    fault(
        "speed is scored on a linear scale",
        "scoring.py",
        "return (math.log(ratio) - math.log(low)) / (math.log(high) - math.log(low))",
        "return (ratio - low) / (high - low)",
        "scoring",
    ),
    fault(
        "bonus points count as required ones",
        "scoring.py",
        "        if problem.bonus:\n",
        "        if False:\n",
        "scoring",
    ),
    fault(
        "a fault of the judge exits with 0",
        "scoring.py",
        "        return EXIT_JUDGE_FAULT\n",
        "        return EXIT_FULL_MARKS\n",
        "scoring",
        "cli",
    ),
    fault(
        "argument checks count without a kernel that works",
        "testrun.py",
        "needed = results.get(check.needs) if check.needs else None",
        "needed = None",
        "check_results",
        "wrong_kernels",
    ),
    # -- sources ------------------------------------------------------------------------------
    fault(
        "a link is followed",
        "regular_file.py",
        "_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW",
        "_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        "source",
    ),
    fault(
        "a link to a folder is followed",
        "regular_file.py",
        "FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW",
        "FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC",
        "source",
    ),
    fault(
        "a coding cookie is believed",
        "source.py",
        'if cookie and not _is_utf8(cookie[1].lower().replace(b"_", b"-")):',
        "if False:",
        "source",
    ),
    fault(
        "a stub counts as an answer",
        "source.py",
        "    if raised is not None:\n",
        "    if raised is None and False:\n",
        "source",
        "set",
    ),
    # -- source policy ------------------------------------------------------------------------
    fault(
        "the policy is not asked",
        "source.py",
        "broken = violations(problem, tree) if policy else ()",
        "broken = ()",
        "policy",
    ),
    fault(
        "policy: other names of modules are not followed",
        "policy/names.py",
        "new = (self.paths(value) & self._tracked) - known",
        "new = set()",
        "policy",
    ),
    fault(
        "policy: what a function calls is thought never to run",
        "policy/reach.py",
        "waiting += [n for n in named_by[name] if n in named_by]",
        "waiting += []",
        "policy",
    ),
    fault(
        "policy: the else of a main block is skipped",
        "policy/names.py",
        "children = [Place(n, node, place.scope, place.zone) for n in node.orelse]",
        "children = []",
        "policy",
    ),
    fault(
        "policy: a bridge lets all compute",
        "policy/reach.py",
        "zone = shared if name in bridge else main",
        "zone = alone if name in bridge else main",
        "policy",
    ),
    fault(
        "kernels run where they are to do nothing",
        "running/access.py",
        "return None if self.idle else launch(this, *args, **kwargs)",
        "return launch(this, *args, **kwargs)",
        "idle",
    ),
    fault(
        "what was right before counts as computed elsewhere",
        "checks/idle.py",
        "and not is_right(name, earlier.truth[name])",
        "",
        "idle",
    ),
    fault(
        "no worker is told to look at operators",
        "running/session.py",
        "operators=opened(self.problem) if self.source.policy else None",
        "operators=None",
        "elsewhere",
    ),
    fault(
        "operators are looked at though the policy is left out",
        "pytest_run.py",
        "self.request.source.data, policy=self.request.policy)",
        "self.request.source.data)",
        "elsewhere",
    ),
    fault(
        "threads are not looked at",
        "running/operators.py",
        "setattr(module, name, self._following(getattr(module, name)))",
        "pass",
        "elsewhere",
    ),
    fault(
        "a class of the submission's own computes unseen",
        "running/operators.py",
        "        if any(kind not in _PLAIN for kind in types):\n",
        "        if False:\n",
        "operators",
    ),
    fault(
        "the text of a tensor tells its values",
        "running/readings.py",
        "torch.Tensor.__repr__ = _without_values(torch.Tensor.__repr__)",
        "pass",
        "operators",
    ),
    fault(
        "an operator that fails tells nothing",
        "running/operators.py",
        'self._record.reads(1, f"the error of {_name(func)}")',
        "pass",
        "operators",
    ),
    fault(
        "methods may be called on anything",
        "running/own_objects.py",
        "if not own and not isinstance(",
        "if False and not isinstance(",
        "own_objects",
    ),
    fault(
        "a kernel's value has a text",
        "running/constants.py",
        'for name in ("__repr__", "__str__"):',
        "for name in ():",
        "own_objects",
    ),
    fault(
        "a kernel has the file's own objects",
        "running/own_kernels.py",
        "return self.taken(name, self.of_all()[name])",
        "return self.of_all()[name]",
        "own_kernels",
    ),
    fault(
        "a kernel runs from the text that Triton finds",
        "running/own_kernels.py",
        "own = kernels.owns(function)",
        "own = False",
        "own_kernels",
    ),
    fault(
        "a kernel imports what it likes",
        "running/own_kernels.py",
        '{"__import__": kernels.imported}',
        "{}",
        "own_kernels",
    ),
    fault(
        "memory is read outside of kernels",
        "running/constants.py",
        'if not getattr(inside, "runs", False):',
        "if False:",
        "own_kernels",
    ),
    fault(
        "a kernel that fails tells nothing",
        "running/constants.py",
        'readings.tell(1, "the error of a kernel")',
        "pass",
        "own_kernels",
    ),
    fault(
        "the error of a kernel has its text",
        "running/constants.py",
        'raise known("a kernel failed") from error',
        "raise",
        "own_kernels",
    ),
    fault(
        "conversions are free",
        "running/operators.py",
        "if kind == CONVERTS and _changes_type(args, result):",
        "if False:",
        "operators",
    ),
    fault(
        "how deep Python recurses tells who looks",
        "running/worker.py",
        "        sys.setrecursionlimit(_DEPTH)\n",
        "",
        "measure",
    ),
    fault(
        "attributes of a kernel are set",
        "policy/rules.py",
        "isinstance(n, _FUNCTIONS) and not n.decorator_list)",
        "isinstance(n, _FUNCTIONS))",
        "policy",
    ),
    fault(
        "a lock is one whoever shares it",
        "running/races.py",
        "other &= known <= found.when[ids]",
        "other[:] = False",
        "own_kernels",
    ),
    fault(
        "a flag may be a sum",
        "running/access.py",
        "waits = waits and ptrs.get_element_ty().is_int()",
        "waits = bool(waits)",
        "own_kernels",
    ),
    fault(
        "a class answers where modes are off",
        "running/asking.py",
        "if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):",
        "if False:",
        "own_objects",
    ),
    fault(
        "a launch runs what it is given",
        "running/own_kernels.py",
        "if id(body) not in bodies:",
        "if False:",
        "own_kernels",
    ),
    fault(
        "a kernel may be another one where it is compiled",
        "compile_run.py",
        "if finding is None and line not in lines_compiled(more):",
        "if False:",
        "launched",
    ),
    fault(
        "a kernel may be another one on a GPU",
        "compile_run.py",
        "            if answer.differences:",
        "            if False:",
        "launched",
    ),
    fault(
        "a template names attributes",
        "policy/bindings.py",
        'return any("." in field or',
        'return any("<" in field or',
        "policy",
    ),
    fault(
        "a base is any value",
        "policy/rules.py",
        "if not self.bindings.names_class(base):",
        "if False:",
        "policy",
    ),
    fault(
        "programs may race",
        "judge.py",
        "            if race is not None:\n",
        "            if False:\n",
        "own_kernels",
    ),
    # -- verdicts, budgets, evidence ----------------------------------------------------------
    fault(
        "time is never used up",
        "running/session.py",
        "if self.lost_s >= self._limits.lost_s:",
        "if False:",
        "session",
    ),
    fault(
        "patience does not shrink after a timeout",
        "running/session.py",
        "        if self.lost_s:\n",
        "        if False:\n",
        "session",
    ),
    fault(
        "a timeout is a crash",
        "checks/outcome.py",
        "        verdict = Verdict.TIMEOUT\n",
        "        verdict = Verdict.CRASH\n",
        "bad_input",
    ),
    fault(
        "a worker that never started is the submission's",
        "checks/outcome.py",
        "    if not ended.started:\n",
        "    if False:\n",
        "measure",
        "bad_input",
    ),
    fault(
        "a killed test process is the judge's fault",
        "testrun.py",
        "return Finding(verdict=Verdict.CRASH, message=message)",
        "return Finding(verdict=Verdict.INTERNAL, message=message)",
        "testrun",
    ),
    fault(
        "a fault that a submission brought about costs nothing",
        "testrun.py",
        "if finding.after_calls and finding.message is not None:",
        "if False:",
        "testrun",
    ),
    fault(
        "a stopped process is waited for without end",
        "running/processes.py",
        "ending.silent = now - heard >= SILENCE_S",
        "ending.silent = False",
        "processes",
    ),
    fault(
        "an answer to another request counts",
        "running/sandbox.py",
        "if reply is not None and reply.nonce == nonce:",
        "if reply is not None:",
        "sandbox",
        "worker",
    ),
    fault(
        "a cause is named that a right case contradicts",
        "known_mistakes.py",
        "candidates = self._not_contradicted_by_right(candidates)",
        "candidates = list(candidates)",
        "diagnose",
    ),
    fault(
        "a mistake that was put off is compared no more",
        "known_mistakes.py",
        "                if since.get(id, len(late)) <= number:",
        "                if since.get(id, 0) > number:",
        "diagnose",
    ),
    fault(
        "a kernel whose code has changed is not compiled again",
        "running/kept_code.py",
        'code = f"{given}\\n{module.str_nodebug()}"',
        "code = given",
        "kept_kernels",
    ),
    fault(
        "what a refused kernel left behind another call is believed",
        "trial.py",
        "return parts if good or last else run([call])",
        "return parts",
        "remembered",
    ),
    fault(
        "one of two causes that fit alike is named",
        "known_mistakes.py",
        "if not places - explained or rivals",
        "if not places - explained",
        "diagnose",
    ),
    fault(
        "the report is printed before the record is written",
        "cli.py",
        "        exports.write_all(files, record, os.environ, sources)\n    finally:\n",
        "        _print_report(record, options)\n    finally:\n"
        "        exports.write_all(files, record, os.environ, sources)\n",
        "cli",
    ),
    # -- files for other tools ----------------------------------------------------------------
    fault(
        "a file that cannot be written keeps the others from being written",
        "exports.py",
        "                failed.append(",
        "                raise EnvironmentFault(",
        "cli",
    ),
    fault(
        "a rounded part may be more than is available in it",
        "render/wholes.py",
        "if missing > 0 and whole[i] < limits[i]:",
        "if missing > 0:",
        "render_classroom",
    ),
    fault(
        "a line of a log is a command of GitHub's",
        "render/classroom.py",
        '    return _COMMAND.sub(lambda found: (found[1] or "") + found[0].strip() + " ", text)',
        "    return text",
        "render_classroom",
    ),
    fault(
        "an archive that is an upload is not looked into",
        "package/upload.py",
        "contents = archives.read(_inner(upload))",
        "contents = archives.read(upload)",
        "package",
    ),
    fault(
        "Gradescope shows nothing before the first problem is graded",
        "package/templates/run_autograder",
        'tell "The autograder did not come to its first result. $again"\n',
        "",
        "package",
    ),
    fault(
        "the judge is not told to stop before Gradescope stops it",
        "package/templates/run_autograder",
        'timeout --foreground --signal=TERM --kill-after=30 "$((minutes * 60 - 60))" \\\n',
        "",
        "package",
    ),
    fault(
        "the limits of a container are not seen",
        "running/capacity.py",
        "    return min(found)\n\n\ndef _number",
        "    return max(found)\n\n\ndef _number",
        "capacity",
    ),
    fault(
        "memory that a container has not got is measured in",
        "measurement.py",
        "            if needed > capacity.free_bytes():\n",
        "            if needed < 0:\n",
        "measure",
    ),
    fault(
        "a measured worker keeps the memory of every call",
        "running/worker.py",
        "            shared.close()  #",
        "            #",
        "measure",
    ),
    fault(
        "two options may have one file",
        "asked.py",
        "        if other != name:\n",
        "        if other is None:\n",
        "cli",
    ),
    fault(
        "the report may hold commands of GitHub's",
        "cli.py",
        "annotations.without_commands(text, os.urandom(16).hex())",
        "text",
        "cli",
    ),
    fault(
        "the token that ends the report is known",
        "cli.py",
        "annotations.without_commands(text, os.urandom(16).hex())",
        'annotations.without_commands(text, "0" * 32)',
        "cli",
    ),
    fault(
        "a comma ends the title of an annotation",
        "render/annotations.py",
        '{":": "%3A", ",": "%2C"}',
        '{":": "%3A"}',
        "render_annotations",
    ),
    fault(
        "a fence has three backticks, whatever is in it",
        "render/markdown.py",
        "max(3, *(_longest_run(line) + 1 for line in lines))",
        "3",
        "render_markdown",
    ),
    fault(
        "HTML in a summary is HTML",
        "render/markdown.py",
        "_ENTITIES.get(char, char)",
        "char",
        "render_markdown",
    ),
    fault(
        "a rejected file is green in JUnit",
        "render/junit.py",
        '    Verdict.REJECTED: "failure",',
        '    Verdict.REJECTED: "skipped",',
        "render_junit",
    ),
    fault(
        "Gradescope gets no bonus points",
        "render/gradescope.py",
        "score = record.totals + record.bonus",
        "score = record.totals",
        "render_gradescope",
    ),
    fault(
        "students see what a fault of the judge says to instructors",
        "render/gradescope.py",
        '"visibility": "hidden",\n    }',
        '"visibility": "visible",\n    }',
        "render_gradescope",
    ),
    fault(
        "what a submission says is markup on the page",
        "render/html/page.py",
        "autoescape=True",
        "autoescape=False",
        "render_html",
    ),
    fault(
        "text that turns other text around gets into the page",
        "render/html/page.py",
        "        finalize=_plain,\n",
        "",
        "render_html",
    ),
    fault(
        "the page shows another source than the one that was graded",
        "render/html/problem.py",
        "hashlib.sha256(data).hexdigest() == problem.source_sha256",
        "True",
        "render_html",
    ),
    fault(
        "a huge source fills the page",
        "render/html/source.py",
        "        if room < 0:\n",
        "        if room is None:\n",
        "render_html",
    ),
    fault(
        "the history is sorted by the clock",
        "history.py",
        "    return tuple(run for run in runs if",
        "    runs = sorted(filter(None, runs), key=lambda run: run.time)\n"
        "    return tuple(run for run in runs if",
        "history",
    ),
    fault(
        "a report that cannot be written ends the grading",
        "report.py",
        "    except Exception as error:  # whatever",
        "    except ZeroDivisionError as error:  # whatever",
        "report",
    ),
    fault(
        "the map of errors is of another head",
        "checks/correctness.py",
        "    head = by_element[heads]\n",
        "    head = by_element[tuple(0 for _ in heads)]\n",
        "correctness",
    ),
    # -- the quiz -----------------------------------------------------------------------------
    fault(
        "the quiz takes a number at twice its tolerance",
        "quiz/answers.py",
        "<= question.tolerance",
        "<= 2 * question.tolerance",
        "quiz",
    ),
    fault(
        "the quiz forgets what was answered",
        "quiz/progress.py",
        "        self.outcomes[question_id] = outcome\n        self._write()\n",
        "        self.outcomes[question_id] = outcome\n",
        "quiz_asking",
    ),
    fault(
        "a damaged state of the quiz is overwritten",
        "state_file.py",
        "            os.replace(path, damaged)\n",
        "            pass\n",
        "quiz_asking",
        "hint",
    ),
    fault(
        "the quiz repeats whatever was typed, however long",
        "quiz/asking.py",
        'self.terminal.text(f"{clean(error)} (',
        'self.terminal.text(f"{error} (',
        "quiz_asking",
    ),
    fault(
        "Ctrl-C in the quiz ends with 0",
        "quiz/asking.py",
        "            whole = False\n",
        "            pass\n",
        "quiz_asking",
    ),
    # -- the desk: doctor, hint, explain ------------------------------------------------------
    fault(
        "a warning of doctor is an error",
        "desk/doctor_command.py",
        "line.level == ERROR for",
        "line.level != 'ok' for",
        "doctor",
    ),
    fault(
        "doctor ends with what goes wrong while it looks",
        "desk/doctor.py",
        "        except Exception as error:\n",
        "        except ZeroDivisionError as error:\n",
        "doctor",
    ),
    fault(
        "a hint is shown again and again",
        "desk/hint_command.py",
        "        shown.add(problem.id, step)\n",
        "",
        "hint",
    ),
    fault(
        "a file that cannot be read costs a hint",
        "desk/hint_command.py",
        "    if where.step is None:\n",
        "    if False:\n",
        "hint",
    ),
    fault(
        "explain shows commands of a problem that has no such cause",
        "desk/explain_command.py",
        "    if problem in among:\n",
        "    if problem is not None:\n",
        "errors",
    ),
    fault(
        "explain forgets which problem failed last",
        "history.py",
        "        for problem, found in run.causes.items():\n",
        "        for problem, found in ():\n",
        "errors",
    ),
    fault(
        "explain reads any file",
        "desk/explain_command.py",
        "    if name in known:\n",
        '    if (folder / f"{name}.md").exists():\n',
        "errors",
    ),
    fault(
        "messages speak of options that nobody typed",
        "options.py",
        "        super().error(in_words_of_make(message, command))\n",
        "        super().error(message)\n",
        "forgiving",
    ),
    # -- one program in the report --------------------------------------------------------------
    fault(
        "a program is told of though it is not known where it goes wrong",
        "following/program.py",
        "Told(record, told and end.is_known, ",
        "Told(record, True, ",
        "told_trace",
    ),
    fault(
        "a message leaves out the last tile",
        "following/program.py",
        "at_an_end = tile in (rounds[0], rounds[-1])",
        "at_an_end = tile is rounds[0]",
        "told_trace",
    ),
    fault(
        "nobody says why a program tells nothing",
        "looking.py",
        "trimmed(untold(told)) if told.why_not else None",
        "None",
        "told_trace",
    ),
    # -- the words of a report -----------------------------------------------------------------
    fault(
        "the next step is the command that was just run",
        "next_step.py",
        'return f"make explain ID={broken.diagnosis.id}"',
        'return f"make grade P={problem.id}"',
        "render_terminal",
    ),
    fault(
        "after full marks there is no next problem",
        "render/score.py",
        "    return _problem_after(problems[-1].id) if problems else None\n",
        "    return None\n",
        "render_terminal",
    ),
    fault(
        "bonus problems alone have 0 of 0 required points",
        "render/score.py",
        " for label, part in parts.items() if part.possible]",
        " for label, part in parts.items()]",
        "render_terminal",
    ),
    fault(
        "dk and dv are told of as if they were sums over keys",
        "checks/walk.py",
        '        return self.product in ("dk", "dv")\n',
        "        return False\n",
        "tiles",
        "sightings",
    ),
    fault(
        "an example is of another row than the numbers",
        "sightings/look.py",
        "near = result.place if name == names[0] else None",
        "near = None",
        "sightings",
    ),
    fault(
        "the other lanes of a heat have no time",
        "desk/racing.py",
        'f"{1000.0 * seconds:.3g} ms in a heat, " if seconds > 0 else ""',
        '""',
        "race",
    ),
    fault(
        "a heat is as short as one call",
        "desk/racing.py",
        "calls = speed.calls_of_go(self._bench, layout, one_s)",
        "calls = 1",
        "race",
    ),
    fault(
        "a race that the judge lost is the machine's fault",
        "desk/race_command.py",
        "    if raced.internal:\n",
        "    if False:\n",
        "race",
    ),
    fault(
        "the report's roof of a T4 is not that of a race",
        "render/html/roofline.py",
        "    dots, bytes_per_s = known\n",
        "    dots, bytes_per_s = known[0] / 32, known[1]\n",
        "render_html",
    ),
    # -- the student's desk ----------------------------------------------------------------------
    fault(
        "a watch goes on with the file before",
        "desk/watch/loop.py",
        "        if self._run is not None:\n            self._run.stop()\n        self._due",
        "        self._due",
        "watch",
    ),
    fault(
        "a watch overlooks a file of the same length",
        "desk/watch/saves.py",
        "found.st_size, *times\n",
        "found.st_size\n",
        "watch",
    ),
    fault(
        "what failed does not go first",
        "pytest_plugin.py",
        "    if run.request is not None and run.request.first:\n",
        "    if False:\n",
        "watch",
    ),
    fault(
        "a watch keeps the terminal",
        "desk/watch/terminal.py",
        "            signal.signal(number, handler)\n        self._give_back()\n",
        "            signal.signal(number, handler)\n",
        "watch",
    ),
    fault(
        "a wrong answer takes part in a race",
        "desk/racing.py",
        "        if not block.margin <= 1.0:\n",
        "        if False:\n",
        "race",
    ),
    fault(
        "the roof is the shorter time",
        "desk/roofline.py",
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
