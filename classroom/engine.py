"""Runs gradings with Parsl, on this machine or wherever a configuration says.

Source: Parsl 2026.10.26, https://parsl.readthedocs.io (HighThroughputExecutor, providers).
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import parsl
import parsl.launchers
import parsl.providers
import psutil
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.executors.errors import BadStateException
from parsl.executors.high_throughput.executor import (
    DEFAULT_INTERCHANGE_LAUNCH_CMD,
    DEFAULT_LAUNCH_CMD,
)
from parsl.jobs.error_handlers import simple_error_handler, windowed_error_handler

from classroom import pods
from classroom.leash import leash
from classroom.records import CourseError, EngineFault
from grader.base import scratch
from grader.isolate import capacity, reaper, usage
from grader.spec.problem import ROOT

_T = TypeVar("_T")
# Grading the nine model answers on one core peaks at 0.8 GiB; wrong answers use more.
BYTES_PER_WORKER = 2 * 2**30
# The death of a worker is noticed after the first time, of this process or a node after the second.
_HEARTBEAT_S, _LOST_S = 3, 20
_CLEANUP_S, _END_S = 20.0, 30.0
_POOL = "parsl.executors.high_throughput.process_worker_pool"
_INTERCHANGE = "parsl.executors.high_throughput.interchange"
# No session ends the workers together with this process: they poll whether it is alive.
_WORKER_INIT = """export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}
( while kill -0 {pid} 2>/dev/null; do sleep 1; done; kill 0 ) &"""
# GPUs are named by UUID: with more workers than GPUs, Parsl 2026.10.26 takes a number for that of a
# worker and divides it, which would put all workers on the first GPU.
_NAME_GPUS = """
import torch
for number in range(torch.cuda.device_count()):
    print(f"GPU-{torch.cuda.get_device_properties(number).uuid}")
"""
# While one grading measures, the tests of others run on the CPU. Five at a time were enough for an
# H100 with 16 cores never to wait (docs/records/rate-h100-2026-11-28.json).
_CORES_PER_WORKER, _MOST_PER_GPU = 3, 5


class ParslEngine:
    """Runs gradings on Parsl; a function and its argument are pickled and sent to a worker.

    `workers` is how many run at a time, in the order of submission, or None if that is unknown.
    A process can use one engine at a time.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        """Start the engine, which writes into `folder`; `close` removes the folder.

        Raises:
            EngineFault: the engine does not start.
        """
        self._folder = folder
        self.workers = _workers(config)
        self._before = {process.pid for process in psutil.Process().children(recursive=True)}
        config.run_dir = str(folder)
        config.initialize_logging = False
        for executor in config.executors:
            if isinstance(executor, HighThroughputExecutor):
                _start_by_module(executor)
                if isinstance(executor.provider, parsl.providers.KubernetesProvider):
                    pods.fit(executor)
                if executor.block_error_handler is simple_error_handler:  # Parsl's default
                    # It ends the whole run when the first node is lost, even after hours of work.
                    executor.block_error_handler = windowed_error_handler
        reaper.adopt_orphans()  # to end processes that the engine leaves behind
        self._kernel: Any = None
        try:
            with _ctrl_c_blocked():
                self._kernel = parsl.load(config)
        except Exception as error:
            self.close()
            raise EngineFault(f"the engine does not start: {error}") from None
        except BaseException:
            self.close()
            raise

    def submit(self, function: Callable[[Any], _T], argument: Any) -> Future[_T]:
        """Run `function(argument)` on a free worker; an exception of the future is a fault."""
        return parsl.python_app(function, data_flow_kernel=self._kernel)(argument)

    def check(self) -> None:
        """Check that results can still arrive: Parsl does not notice the death of its interchange.

        Raises:
            EngineFault: no more results can arrive.
        """
        for executor in self._kernel.executors.values():
            process = getattr(executor, "interchange_proc", None)
            if process is not None and process.poll() is not None:
                raise EngineFault(f"Parsl's interchange has ended (exit code {process.returncode})")

    def close(self, *, keep_logs: bool = False) -> None:
        """End all processes of the engine, and wait for a limited time.

        Every file is removed, except the logs if `keep_logs`.
        """
        kernel, self._kernel = self._kernel, None
        if kernel is not None:  # without its interchange, Parsl's clean-up never ends
            ending = threading.Thread(target=_clean_up, args=(kernel,), daemon=True)
            ending.start()
            ending.join(_CLEANUP_S)
        parsl.clear()
        self._end_processes()
        if not keep_logs:
            scratch.remove_tree(self._folder)
        scratch.sweep()

    def _end_processes(self) -> None:
        """Ask all new descendants to end, and kill those that are still there after a while."""
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            left = [p for p in usage.descendants(os.getpid()) if p not in self._before]
            for pid in left:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
            if not any(map(psutil.pid_exists, left)):
                return
            late = time.monotonic() > deadline - _END_S / 3
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
            time.sleep(0.3)


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Block SIGINT for the processes and threads that the block starts.

    A terminal sends it to the whole foreground process group, not to this process alone.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _clean_up(kernel: Any) -> None:
    with contextlib.suppress(Exception):  # `_end_processes` ends the rest
        kernel.cleanup()


def _workers(config: Config) -> int | None:
    """Return the number of workers on this machine, None if some may be elsewhere."""
    counts = []
    for executor in config.executors:
        provider = getattr(executor, "provider", None)
        if not isinstance(provider, parsl.providers.LocalProvider):
            return None
        counts.append(executor.max_workers_per_node)
    return sum(counts) if math.isfinite(sum(counts)) else None


def is_broken(error: BaseException) -> bool:
    """Whether an exception of a future means that the engine is dead."""
    return isinstance(error, BadStateException)


def _start_by_module(executor: HighThroughputExecutor) -> None:
    """Have Parsl start its processes with this Python: its scripts may not be on the PATH.

    The interchange is on this machine and ends with this process; workers notice its end.
    """
    if list(executor.interchange_launch_cmd) == DEFAULT_INTERCHANGE_LAUNCH_CMD:
        interchange = [sys.executable, "-P", "-m", _INTERCHANGE]
        executor.interchange_launch_cmd = [*leash(signal.SIGKILL), *interchange]
    local = isinstance(executor.provider, parsl.providers.LocalProvider)
    if local and executor.launch_cmd == DEFAULT_LAUNCH_CMD:
        python = f"{shlex.quote(sys.executable)} -P -m {_POOL}"
        executor.launch_cmd = DEFAULT_LAUNCH_CMD.replace("process_worker_pool.py", python)


def local_config(jobs: int | None, device: str, environment: Mapping[str, str]) -> Config:
    """Return the configuration for this machine, with `jobs` workers or as many as fit.

    A worker needs one core, of which a grading rarely uses more, and 2 GiB. It sees one of the
    GPUs, if there are any, and shares it with others if there are enough cores.
    """
    cores = max(1, int(capacity.cores()))
    gpus = _gpus(device, environment)
    fitting = min(cores, psutil.virtual_memory().available // BYTES_PER_WORKER)
    if gpus:
        by_cores = max(len(gpus), cores // _CORES_PER_WORKER)
        fitting = min(fitting, by_cores, _MOST_PER_GPU * len(gpus))
    workers = jobs or max(1, fitting)
    pinned = [gpus[number % len(gpus)] for number in range(workers)] if gpus else []
    executor = HighThroughputExecutor(
        label="here",
        address="127.0.0.1",
        max_workers_per_node=workers,
        cores_per_worker=1e-6,  # the number of workers is decided here
        cpu_affinity="block" if workers <= cores else "none",
        available_accelerators=pinned,
        heartbeat_period=_HEARTBEAT_S,
        heartbeat_threshold=_LOST_S,
        provider=parsl.providers.LocalProvider(
            init_blocks=1,
            min_blocks=1,
            max_blocks=1,
            worker_init=_WORKER_INIT.format(root=shlex.quote(str(ROOT)), pid=os.getpid()),
        ),
    )
    return Config(executors=[executor], strategy_period=_HEARTBEAT_S, usage_tracking=0)


def _gpus(device: str, environment: Mapping[str, str]) -> list[str]:
    """Return the names of the GPUs that CUDA sees, in the form of CUDA_VISIBLE_DEVICES."""
    if device == "cpu":
        return []
    asked = subprocess.run(
        [sys.executable, "-c", _NAME_GPUS],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = asked.stdout.split() if asked.returncode == 0 else []
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if any(name.startswith("MIG-") for name in visible):  # a part of a GPU, by its own UUID
        return [name.strip() for name in visible][: len(found)]
    return found


def read_config(path: Path) -> Config:
    """Return the configuration in a Python or TOML file.

    A Python file defines `config`. A TOML file has a table [executor] with arguments of Parsl's
    HighThroughputExecutor and a table [executor.provider] with `type`, the name of one of Parsl's
    providers, and its arguments; [executor.provider.launcher] likewise.

    Raises:
        CourseError: the file cannot be read, fails, or defines no configuration.
    """
    if path.suffix not in (".py", ".toml"):
        raise CourseError(f"--engine: got {path}, expected a .py or a .toml file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CourseError(f"--engine: {path} cannot be read: {reason}") from None
    if path.suffix == ".toml":
        return _of_toml(path, text)
    names: dict[str, Any] = {"__file__": str(path), "__name__": "engine"}
    try:
        exec(compile(text, str(path), "exec"), names)
    except Exception as error:
        raise CourseError(f"--engine: {path}: {type(error).__name__}: {error}") from None
    config = names.get("config")
    if not isinstance(config, Config):
        got = type(config).__name__ if config is not None else "nothing"
        raise CourseError(f"--engine: {path}: config: got {got}, expected a parsl.Config")
    return config


def _of_toml(path: Path, text: str) -> Config:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CourseError(f"--engine: {path}: not valid TOML: {error}") from None
    if not isinstance(data.get("executor"), dict) or set(data) != {"executor"}:
        got = ", ".join(data) or "nothing"
        raise CourseError(f"--engine: {path}: got {got}, expected one table [executor]")
    arguments = dict(data["executor"])
    if "provider" not in arguments:
        raise CourseError(f"--engine: {path}: executor.provider: got nothing, expected a table")
    try:
        arguments["provider"] = _made(parsl.providers, arguments["provider"], "executor.provider")
        executor = HighThroughputExecutor(**{"label": "engine"} | arguments)
        return Config(executors=[executor], usage_tracking=0)
    except Exception as error:  # Parsl and its type checks raise various classes
        text = " ".join(str(error).split())
        raise CourseError(f"--engine: {path}: {text[:300]}") from None


def _made(module: Any, table: Any, where: str) -> Any:
    """Make the object that a table describes: `type` and arguments."""
    if not isinstance(table, dict) or "type" not in table:
        raise ValueError(f"{where}: got no type, expected the name of one of {module.__name__}")
    arguments = {key: value for key, value in table.items() if key != "type"}
    if "launcher" in arguments:
        inner = f"{where}.launcher"
        arguments["launcher"] = _made(parsl.launchers, arguments["launcher"], inner)
    known = [name for name in module.__all__ if name[0].isupper()]
    if table["type"] not in known:
        raise ValueError(f"{where}.type: got {table['type']!r}, expected one of {', '.join(known)}")
    return getattr(module, table["type"])(**arguments)
