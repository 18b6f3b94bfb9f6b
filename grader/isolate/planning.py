"""Runs the host code of a submission on tensors without data, and writes a plan of it. In a worker.

The tensors are PyTorch's own and full of zeros. Operators run on them, so that sizes, types and
strides are right; launches of kernels are noted and do nothing. No value of an input, of a result
or of what a kernel computed is in this process. Where the host code asks for one, the plan so far
is carried out in another worker, and the host code begins again and is given the answer.
"""

from __future__ import annotations

import base64
import functools
import gc
import itertools
import mmap
import sys
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from grader.base.dtypes import TORCH_DTYPES
from grader.isolate import arena, far, operators, plan, returned, serving
from grader.isolate.allocations import EMPTY
from grader.kernel import launches, readings
from grader.kernel.compile import absent_gpu
from grader.kernel.dispatch import DispatchMode
from grader.kernel.lines import kernel_line
from grader.kernel.machine import capture
from grader.kernel.machine.engine import unseen
from grader.kernel.machine.ttir import NotMeasured
from grader.kernel.machine.ttir_cache import TtirCache
from grader.spec.protocol import Reply, Status, failed

_MOST_VALUES = 32  # of one question, whose answer is a reply; operators.py refuses more
_storage = torch.Tensor.untyped_storage


class Asked(BaseException):
    """The host code asks for a value: the plan so far has to be carried out."""


class Recorder(DispatchMode):
    """Writes down what the submission at `path` has PyTorch and Triton do.

    `count`, `lines` and `has_translated` are of its launches, as machine.engine.Engine has them.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.count, self.idle, self.lines = 0, False, set[int]()
        self.has_translated = False
        self.asks = False
        self.path = path
        self._is_open = False
        self._plan: dict[str, Any] = {}
        self._answers: list[Any] = []
        self._kernels: dict[capture.Kernel, int] = {}  # numbers
        # Numbers of storages by address in C++, with what keeps the address from other storages.
        self._known: dict[int, tuple[int, StorageWeakRef]] = {}
        self._next = itertools.count()

    def begin(
        self, answers: list[Any], inputs: dict[str, torch.Tensor], *, carried_out: bool
    ) -> None:
        """Begin a plan, with `answers` to its first questions and `inputs`, which no step makes.

        Unless the plan before was `carried_out`, no other worker has its storages and kernels.
        """
        if not carried_out:
            self._known, self._kernels = {}, {}
        self._known = {at: one for at, one in self._known.items() if not one[1].expired()}
        self._plan = {
            "alive": [number for number, _ in self._known.values()],
            "storages": {},
            "inputs": {},
            "kernels": {},
            "steps": [],
        }
        self._answers, self.asks, self._is_open = list(answers), False, True
        for name, tensor in inputs.items():
            self._plan["inputs"][name] = self._tensor(tensor, made=True)

    def end(self, results: dict[str, Any] | None) -> dict[str, Any]:
        """Return the plan of a call that returned `results`, None if it did not return."""
        self._is_open = False
        self._plan["asks"] = self.asks
        if results is not None and not self.asks:
            tensors = {n: t for n, t in results.items() if isinstance(t, torch.Tensor)}
            self._plan["outputs"] = {name: self._tensor(t) for name, t in tensors.items()}
        return self._plan

    # -- steps ------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._is_open:
            return func(*args, **kwargs)
        if self.asks:
            raise Asked
        if operators.reads_one(func):
            self.reveal(args[0])
            return func(*args, **kwargs)
        if operators.tells(func, args):
            return self._answer(func, args, kwargs)
        if operators.puts_by_mask(func, args):  # not run: no element of the mask is true here
            self._operator(func, self._codes(args, kwargs), args[0])
            return args[0]
        before = _storages((args, tuple(kwargs.values())))
        given = self._codes(args, kwargs) if _writes(func) else None  # as before it writes
        result = func(*args, **kwargs)
        if func in EMPTY:
            result.zero_()  # valid indices, in place of those that a kernel computes
        if given or not _storages((result,)) <= before:  # else it is a view
            self._operator(func, given or self._codes(args, kwargs), result)
        return result

    def launch(self, launch: capture.Launch) -> None:
        """Note a launch.

        Raises:
            NotMeasured: it is not made by a call of the entry point.
        """
        if not self._is_open:
            raise NotMeasured("a kernel is launched before the entry point is called")
        if self.asks:
            raise Asked
        self.count += 1
        self.lines.add(kernel_line(launch.kernel.fn, self.path))
        number = self._kernels.get(launch.kernel)
        if number is None:
            number = self._kernels[launch.kernel] = len(self._kernels)
            self._plan["kernels"][number] = self._text(launch.kernel)
        with unseen():
            arguments = [[name, self._code(value)] for name, value in launch.arguments]
        self._step("launch", number, list(launch.grid), arguments)

    def _step(self, kind: str, *step: Any) -> None:
        if len(self._plan["steps"]) >= plan.MAX_STEPS:
            most = f"at most {plan.MAX_STEPS:,} are carried out"
            raise NotMeasured(
                f"a call that launches kernels and runs operators without end: {most}"
            )
        self._plan["steps"].append([kind, _lines(self.path), *step])

    def _codes(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        named = {key: self._code(value) for key, value in kwargs.items()}
        return [self._code(value) for value in args], named

    def _operator(self, func: Any, given: tuple[list, dict], result: Any) -> None:
        name, overload = func._schema.name, func._schema.overload_name
        made = [self._tensor(x, made=True) if _is_tensor(x) else None for x in tree_leaves(result)]
        self._step("op", name, overload, *given, made)

    def _text(self, kernel: capture.Kernel) -> list[Any]:
        self.has_translated = True
        text = kernel.text.replace(self.path, plan.FILE)
        return [kernel.name, text, kernel.by_blocks, kernel_line(kernel.fn, self.path)]

    # -- questions --------------------------------------------------------------------------------

    def reveal(self, tensor: torch.Tensor) -> None:
        """Give a tensor its values, before the host code reads them."""
        if not self._is_open:
            return
        if tensor.numel() > _MOST_VALUES:
            most = f"{_MOST_VALUES} are given without a GPU"
            raise NotMeasured(f"Python reads {tensor.numel():,} values of a tensor here; {most}")
        with unseen():
            self._step("values", self._tensor(tensor))
            values = torch.tensor(self._asked(), dtype=tensor.dtype)
            tensor.detach().copy_(values.reshape(tensor.shape))

    def print(self, values: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Note a print() that shows the values of a tensor; return whether it is part of a plan."""
        if self._is_open:
            with unseen():
                parts = [self._code(x) if _is_tensor(x) else str(x) for x in values]
            self._step("print", parts, options.get("sep"), options.get("end"))
        return self._is_open

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operator, where that or its size depends on values."""
        self._operator(func, self._codes(args, kwargs), ())
        step = self._plan["steps"][-1]
        answer = self._asked()
        if not isinstance(answer, list):
            return answer
        results = [
            torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype)).zero_()
            for sizes, strides, dtype in answer
        ]
        step[-1].extend(self._tensor(x, made=True) for x in results)
        return results[0] if len(results) == 1 else tuple(results)

    def _asked(self) -> Any:
        if not self._answers:
            self.asks = True
            raise Asked
        return self._answers.pop(0)

    # -- values -----------------------------------------------------------------------------------

    def _code(self, value: Any) -> Any:
        if _is_tensor(value):
            return {"tensor": self._tensor(value)}
        if isinstance(value, (tuple, list)):
            return [self._code(part) for part in value]
        return plan.plain(value)

    def _tensor(self, tensor: torch.Tensor, *, made: bool = False) -> list[Any]:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise NotMeasured("PyTorch is given a tensor here that is no strided one")
        number = self._number(_storage(tensor), made)
        place = [tensor.storage_offset(), list(tensor.shape), list(tensor.stride())]
        return [number, *place, str(tensor.dtype).removeprefix("torch.")]

    def _number(self, storage: torch.UntypedStorage, made: bool) -> int:
        """Return a storage's number; a new one that no step has `made` holds values of Python's.

        A step may make a known storage larger, as `out=` lets it.
        """
        is_new = storage._cdata not in self._known
        if is_new:
            self._known[storage._cdata] = next(self._next), StorageWeakRef(storage)
        number, _ = self._known[storage._cdata]
        if is_new or made:
            self._plan["storages"][number] = [storage.data_ptr(), storage.nbytes()]
        if is_new and not made:
            values = bytes(readings.as_numpy(_bytes(storage)))
            self._step("constant", number, base64.b64encode(values).decode())
        return number


class Planner(serving.Worker):
    """Serves requests for plans."""

    def prepare(self) -> None:
        """Note launches from now on, also those of the import."""
        self.recorder = self.launches = Recorder(self.path)
        folder = self.settings.get("translated")
        cache = TtirCache(Path(folder), self.path) if folder else None
        capture.install(self.recorder.launch, cache=cache)
        launches.skip_while_idle(self.recorder)
        readings.install()
        readings.reveal_by(self.recorder.reveal)
        readings.print_by(self.recorder.print)
        absent_gpu.answer()
        _skip_autotuning()
        self.far = far.reserve()
        self.blank: dict[tuple[str, int], torch.Tensor] = {}

    def evaluate(self, tensors: dict, request: dict) -> dict:
        """Call the entry point; return its outputs by name, without data."""
        try:
            return super().evaluate(tensors, request)
        finally:
            if self.recorder.has_translated:
                self.recorder.has_translated = False
                gc.freeze()  # a kernel stays, and with it what Triton made to read it

    def _do_plan(self, request: dict, fds: list[int]) -> Reply:
        """Write the plan of one call as far as it comes, unless it fails before it launches."""
        layout, nonce = arena.Layout.of(request), request["nonce"]
        recorder = self.recorder
        place = mmap.mmap(fds[0], plan.MAX_BYTES)  # now: after the call there may be no memory
        tensors = self._tensors(layout, spread=request["far"])
        recorder.begin(request["answers"], tensors, carried_out=request["carried_out"])
        results, reply = None, Reply(nonce, Status.OK)
        try:
            with recorder, self.noting(layout, request):
                found = self.evaluate(tensors, request)
                returned.check(found, layout, request["returns"], self.device)
                results = found
        except BaseException as error:
            if not recorder.asks:
                reply = self.explained(nonce, error)
        if self.record and self.record.found:
            return self.record.refusal(nonce)
        given = recorder.end(results)
        if recorder.count or not failed(reply):
            plan.write(place, given)
        return Reply(nonce, Status.ASKS) if recorder.asks else reply

    def _tensors(self, layout: arena.Layout, *, spread: bool) -> dict[str, torch.Tensor]:
        """Return a tensor without data for each input, at the same address in every call."""
        found = {}
        for view in layout.inputs:
            key = view.name, view.extent_bytes
            if key not in self.blank:
                self.blank[key] = torch.empty(view.extent_bytes, dtype=torch.uint8)
            flat = self.blank[key].zero_().view(TORCH_DTYPES[view.dtype])
            found[view.name] = flat.as_strided(view.size, view.stride)
        return far.spread(self.far, found) if spread else found


def _skip_autotuning() -> None:
    """Let @triton.autotune take its first configuration: the machine has nothing to time.

    Triton 3.6 to 3.9 ask a GPU driver for that and fail with "0 active drivers" where none is;
    guarded by tests/test_unusual_answers.py.
    """
    from triton.runtime import autotuner

    autotuner.Autotuner._bench = lambda this, *args, config, **meta: [0.0, 0.0, 0.0]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _storages(values: Any) -> set[int]:
    tensors = operators.tensors(values)
    return {_storage(t)._cdata for t in tensors if t.layout is torch.strided}


@functools.cache
def _writes(func: Any) -> bool:
    """Whether an operator changes one of its arguments."""
    infos = [argument.alias_info for argument in func._schema.arguments]
    return any(info is not None and info.is_write for info in infos)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    with unseen():
        return torch.empty(0, dtype=torch.uint8).set_(storage)


def _lines(path: str) -> list[int]:
    """Return the lines of the file that are running, the outermost first."""
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == path:
            lines.append(frame.f_lineno)
        frame = frame.f_back
    return lines[7::-1]
