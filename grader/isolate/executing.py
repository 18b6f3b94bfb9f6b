"""Carries out plans on the data of a call: nothing of the submission's runs here. In a worker.

Kernels run on the tile machine, watched; operators of PyTorch are audited. The plan comes from the
submission's process and is not trusted: an operator that is not open is not run, a tensor has to
lie in its storage, and the machine refuses an address that leads elsewhere.
"""

from __future__ import annotations

import base64
import dataclasses
import gc
import json
import math
import mmap
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from grader.isolate import allocations, arena, far, operators, plan, serving
from grader.isolate.watching import Engine, Watching
from grader.kernel import readings
from grader.kernel.machine import capture
from grader.kernel.machine.engine import raise_at, unseen
from grader.kernel.machine.tensors import extent
from grader.kernel.machine.ttir import BadText, NotMeasured
from grader.spec.protocol import Reply, Status

_ELEMENTS = {n: kind for n, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
_MOST_TEXT = 8 * 2**20  # of a kernel
_MOST_ANSWER = 1800  # characters, of which a reply holds 1900


class Refused(Exception):
    """A plan has an operator that is not open; the audit has found it."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A storage of a plan: `size` bytes from byte `base` of memory; `address` is the plan's.

    An input's storage keeps its bounds; another may grow, as `out=` lets it.
    """

    memory: torch.UntypedStorage
    base: int
    size: int
    address: int
    is_input: bool


class Replay:
    """Carries out plans of one submission, each of which may use storages of earlier plans."""

    def __init__(self, engine: Engine, audit: operators.OperatorAudit | None) -> None:
        self._engine = engine
        self._audit = audit
        self._stored: dict[int, Stored] = {}
        self._kernels: dict[str, tuple[capture.Kernel, int]] = {}  # by number, with their lines
        self._plan: dict[str, Any] = {}
        self._lines: list[int] = []  # of the file, which led to the step that runs
        self.answer: Any = None

    def run(self, given: dict[str, Any], inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Carry out a plan on `inputs`; return its outputs, and set `answer` if it asks.

        Raises:
            BadText: it is no plan.
            Refused: an operator of it is not open.
            Exception: what the machine says of a kernel, or PyTorch of an operator.
        """
        self._plan, self.answer = given, None
        if given["inputs"].keys() != inputs.keys():
            raise BadText("a plan for other inputs")
        # What an earlier plan said of an input's storage does not let this one reach past its end.
        alive = set(map(int, given["alive"])) - {number for number, *_ in given["inputs"].values()}
        self._stored = {n: stored for n, stored in self._stored.items() if n in alive}
        for name, code in given["inputs"].items():
            self._bind(code, inputs[name], is_input=True)
        self._kernels |= {n: self._kernel(*kernel) for n, kernel in given["kernels"].items()}
        for kind, lines, *step in given["steps"]:
            self._lines = [int(line) for line in lines]
            if self._engine.exact and lines:
                self._engine.exact.line = self._lines[-1]
            getattr(self, "_do_" + kind)(*step)
        return {name: self._tensor(code) for name, code in given.get("outputs", {}).items()}

    # -- steps ------------------------------------------------------------------------------------

    def _do_op(self, name: str, overload: str, args: list, kwargs: dict, results: list) -> None:
        namespace, _, base = name.partition("::")
        if namespace != "aten" or base.startswith("__"):
            raise BadText(f"an operator of a plan: got {name}, expected one of aten's")
        func = getattr(getattr(torch.ops.aten, base), overload or "default")
        given = [self._value(code) for code in args]
        named = {key: self._value(code) for key, code in kwargs.items()}
        if self._audit and self._audit.kind(func) in operators.CLOSED:
            self._audit.runs(func, self._audit.kind(func), given, named)
            raise Refused
        try:
            found = func(*given, **named)
        except Exception as error:
            raise_at(error, self._engine.path, self._lines)
        made, taken = tree_leaves(found), tree_leaves([given, named])
        self._engine.operated(taken, made or taken, self._lines[-1] if self._lines else 0)
        if operators.tells(func, given):
            tensors = [x for x in made if isinstance(x, torch.Tensor)]
            described = [
                [[*x.shape], [*x.stride()], str(x.dtype).removeprefix("torch.")] for x in tensors
            ]
            self.answer = described if tensors else found
        for code, tensor in zip(results, made, strict=False):
            known = self._stored.get(code[0]) if code is not None else None
            if code is not None and not (known and known.is_input):
                self._bind(code, tensor)

    def _do_constant(self, number: int, values: str) -> None:
        memory = torch.frombuffer(bytearray(base64.b64decode(values) or b"\0"), dtype=torch.uint8)
        self._bind([number, 0, [memory.numel()], [1], "uint8"], memory)

    def _do_launch(self, number: int, grid: list, arguments: list) -> None:
        kernel, line = self._kernels[str(number)]
        named = tuple((str(name), self._value(code)) for name, code in arguments)
        codes = [code["tensor"] for _, code in arguments if isinstance(code, dict)]
        real = {self._tensor(code).data_ptr(): self._address(code) for code in codes}
        x, y, z = map(int, grid)
        launch = capture.Launch(kernel, (x, y, z), named, real)
        self._engine.launch(launch, line, self._lines)

    def _do_print(self, parts: list, separator: str | None, end: str | None) -> None:
        with unseen():
            shown = [x if isinstance(x, str) else readings.text_of(self._value(x)) for x in parts]
        print(*shown, sep=separator, end=end)

    def _do_values(self, code: list) -> None:
        with unseen():
            self.answer = self._tensor(code).flatten().tolist()

    def _kernel(self, name: str, text: str, by_blocks: bool, line: int) -> tuple[Any, int]:
        if not isinstance(text, str) or len(text) > _MOST_TEXT:
            raise BadText("a kernel of a plan is no text, or one of more than 8 MiB")
        text = text.replace(plan.FILE, self._engine.path)
        return capture.Kernel(None, str(name), text, {}, bool(by_blocks)), int(line)

    # -- values -----------------------------------------------------------------------------------

    def _value(self, code: Any) -> Any:
        if isinstance(code, list):
            return [self._value(part) for part in code]
        if isinstance(code, dict) and "tensor" in code:
            return self._tensor(code["tensor"])
        return plan.value_of(code)

    def _bind(self, code: list, tensor: torch.Tensor, *, is_input: bool = False) -> None:
        """Let the storage in `code`, of a tensor of the plan, be that of the real `tensor`.

        An input's storage has the bytes of the tensor alone, another all bytes of the real one.
        """
        _expect_alike(code, tensor)
        number, offset, sizes, strides, _ = code
        address, planned = self._plan["storages"].get(str(number), (0, 0))
        memory, known = torch.Tensor.untyped_storage(tensor), self._stored.get(number)
        base = (tensor.storage_offset() - offset) * tensor.element_size()
        size = (offset + extent(sizes, strides)) * tensor.element_size()
        if is_input:
            size = max(size, known.size if known else 0)  # far ones lie in one storage
        elif base >= 0:
            size = min(int(planned), memory.nbytes() - base)
        self._stored[number] = Stored(memory, base, size, int(address), is_input)

    def _tensor(self, code: list) -> torch.Tensor:
        number, offset, sizes, strides, dtype = code
        stored, kind = self._stored.get(number), _ELEMENTS[dtype]
        if stored is None:
            raise BadText("a tensor of a plan that no step makes")
        start, count = offset * kind.itemsize, extent(sizes, strides)
        past = count and start + count * kind.itemsize > stored.size  # what is empty lies anywhere
        if min([offset, *sizes, *strides, 0]) < 0 or past:
            raise BadText("a tensor of a plan reaches past its storage")
        place = (stored.base + start) // kind.itemsize
        with unseen():
            return torch.empty(0, dtype=kind).set_(stored.memory, place, sizes, strides)

    def _address(self, code: list) -> int:
        number, offset, _, _, dtype = code
        return self._stored[number].address + offset * _ELEMENTS[dtype].itemsize


def _expect_alike(code: list, tensor: Any) -> None:
    """Check that a tensor of a plan has the type, sizes and strides of the real one."""
    _, offset, sizes, strides, dtype = code
    if not isinstance(tensor, torch.Tensor) or _ELEMENTS[dtype] is not tensor.dtype or offset < 0:
        raise BadText(f"a tensor of a plan: got one of {dtype}")
    real = tuple(tensor.shape), tensor.stride()
    if math.prod(sizes) and real != (tuple(sizes), tuple(strides)):
        raise BadText(f"a tensor of a plan: got {sizes}, {strides}, expected {tensor.shape}")


class Executor(serving.Worker):
    """Serves requests to carry out plans."""

    def load(self, nonce: int) -> Reply:
        """Make ready; the submission is read, and not run."""
        with open(self.path, "rb") as file:
            self.source = file.read()
        self.launches = self.engine = Engine(self.path)
        self.far = far.reserve()
        if self.settings["operators"]:
            self.record = operators.OperatorAudit(self.settings["operators"], self.path)
        self.replay = Replay(self.engine, self.record)
        self.limit()
        return Reply(nonce, Status.OK)

    def _do_carry_out(self, request: dict, fds: list[int]) -> Reply:
        """Carry out a plan, which lies in the second of the memories of the call."""
        layout = arena.Layout.of(request)
        shared = arena.attached(fds[0], layout.total_bytes)
        memory = self.inputs_of(shared, layout)
        tensors = {view.name: view.of(memory) for view in layout.inputs}
        if request["far"]:
            tensors = far.spread(self.far, tensors)
        given = plan.read(mmap.mmap(fds[1], plan.MAX_BYTES))
        with Watching(self.engine, request, fds[2:], self.source, tensors) as watching:
            if "outputs" in given:
                self.given = given
                return self.call(shared, memory, tensors, layout, request, watching)
            with allocations.Guarded(), self.noting(layout, request):
                self.replay.run(given, tensors)
        answer = json.dumps(self.replay.answer)
        if len(answer) > _MOST_ANSWER:
            raise NotMeasured("the answer to what the host code asks for is too long")
        return Reply(request["nonce"], Status.OK, text=answer)

    def evaluate(self, tensors: dict, request: dict) -> dict:
        results = self.replay.run(self.given, tensors)
        if self.engine.has_translated:
            self.engine.has_translated = False
            gc.freeze()  # translated kernels stay
        return results
