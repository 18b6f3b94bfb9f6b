"""Compiles launch configurations in parallel processes into Triton's shared cache.

Triton compiles at a launch, one kernel after another, and GPU time is scarcer than CPU cores. A
worker here compiles without launching; the process that times kernels then only loads them.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

Overrides = dict[str, int]
_MAX_RESTARTS = 20


def chooser(module: ModuleType) -> str:
    """Return the name of a solution's function that chooses tiles: its own, or one of `given`.

    Raises:
        ValueError: the solution has no such function, or more than one.
    """
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and (
            name == "_launch_config"
            or (name.endswith("_tiles") and value.__module__.startswith("given."))
        )
    ]
    if len(names) != 1:
        raise ValueError(f"the solution chooses tiles by {names}, expected one function")
    return names[0]


@contextlib.contextmanager
def patched(module: ModuleType, kernel: str | None, overrides: Overrides) -> Iterator[None]:
    """Make the module's `chooser` apply `overrides` to its own choice within the block.

    Args: kernel: the key of the part to change, if it returns one dict per kernel; else None.
    """
    name = chooser(module)
    original = getattr(module, name)

    def config(*args: Any, **kwargs: Any) -> dict[str, Any]:
        chosen = copy.deepcopy(original(*args, **kwargs))
        (chosen if kernel is None else chosen[kernel]).update(overrides)
        return chosen

    setattr(module, name, config)
    try:
        yield
    finally:
        setattr(module, name, original)


def compile_all(
    problem: str,
    shape: Any,
    which: str,
    kernel: str | None,
    variants: list[Overrides],
    workers: int,
    timeout_s: float,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Compile the variants; return for each {"error": text or None, "kernels": {name: resources}}.

    If a worker dies, its current variant fails and another worker replaces it. Variants not reached
    before `timeout_s` have no error: they compile when they are launched.
    """
    context = multiprocessing.get_context("spawn")
    results: list[dict[str, Any]] = [{"error": None, "kernels": {}} for _ in variants]
    messages = context.Queue()
    workers = max(1, min(workers, len(variants)))
    shares = [list(range(start, len(variants), workers)) for start in range(workers)]
    at: dict[int, int | None] = dict.fromkeys(range(workers))
    processes = {}

    def start(worker: int) -> None:
        jobs = [(number, variants[number]) for number in shares[worker]]
        processes[worker] = context.Process(
            target=_work, args=(worker, problem, shape, which, kernel, jobs, messages), daemon=True
        )
        processes[worker].start()

    def take(message: tuple[int, str, int, Any]) -> None:
        worker, kind, number, found = message
        if kind == "start":
            at[worker] = number
            return
        at[worker] = None
        if kind == "done":
            results[number] = found
            shares[worker].remove(number)
        else:
            say(f"  compile worker {worker}: {found}")
            shares[worker].clear()

    def drain(wait_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                take(messages.get(timeout=wait_s))
                wait_s = 0.05

    for worker in range(workers):
        start(worker)
    deadline = time.monotonic() + timeout_s
    restarts = 0
    while any(shares) and time.monotonic() < deadline:
        drain(0.3)
        for worker, process in list(processes.items()):
            if process.is_alive() or not shares[worker]:
                continue
            process.join()
            drain(0.3)
            if not shares[worker]:
                continue
            # The worker may have died before it sent the number of its variant.
            number = at[worker] if at[worker] in shares[worker] else shares[worker][0]
            at[worker] = None
            results[number]["error"] = f"the compiler died (exit code {process.exitcode})"
            shares[worker].remove(number)
            restarts += 1
            if shares[worker] and restarts <= _MAX_RESTARTS:
                start(worker)
            else:
                shares[worker].clear()
    for process in processes.values():
        process.join(timeout=0.1 if any(shares) else 5.0)
        if process.is_alive():
            process.kill()
            process.join()
    return results


def _work(
    worker: int,
    problem: str,
    shape: Any,
    which: str,
    kernel: str | None,
    jobs: list[tuple[int, Overrides]],
    messages: Any,
) -> None:
    try:
        from benchmarks.contenders import build
        from benchmarks.inputs import load_solution, make_inputs
        from benchmarks.run import Runner

        kernels = _compile_only()
        module = load_solution(problem)[0]
        inputs = [make_inputs(problem, shape, 0, "cuda")]
        contender = build(problem, shape, "cuda", wanted=frozenset())[0]
    except Exception as error:
        messages.put((worker, "broken", -1, f"{type(error).__name__}: {error}"[:300]))
        return
    for number, overrides in jobs:
        messages.put((worker, "start", number, None))
        kernels.clear()
        found: dict[str, Any] = {"error": None, "kernels": {}}
        try:
            with patched(module, kernel, overrides):
                Runner(problem, contender, inputs, which)(0)
        except Exception as error:
            found["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        found["kernels"] = dict(kernels)
        messages.put((worker, "done", number, found))


def _compile_only() -> dict[str, dict[str, Any]]:
    """Make every launch in this process compile only; return the dict that gets their resources."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run
    resources: dict[str, dict[str, Any]] = {}

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        if compiled is None:
            return None
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        # Load the kernel, which raises if shared memory is too small, and reads the registers.
        compiled._init_handles()
        resources[self.fn.__name__] = {
            "registers": compiled.n_regs,
            "spills": compiled.n_spills,
            "shared_bytes": compiled.metadata.shared,
        }
        return compiled

    JITFunction.run = compile_instead
    return resources
