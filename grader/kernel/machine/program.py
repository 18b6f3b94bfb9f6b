"""A kernel that the machine can launch: its TTIR, translated into steps over all programs.

Pure operations on constants are computed once, when a kernel is translated. A launch runs as many
programs at once as its limits allow, but only one where programs wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from grader.kernel.machine import control, elementwise, events, flow, kinds, memory, notes, tiles
from grader.kernel.machine.arrays import Tensor, arange, cast, filled, numbers, shown
from grader.kernel.machine.exact import Site, sites, widen
from grader.kernel.machine.steps import (
    Asserted,
    Body,
    Env,
    Limits,
    Run,
    State,
    Translation,
    check_grid,
)
from grader.kernel.machine.tensors import SHIFT, Memories, place_in
from grader.kernel.machine.ttir import Block, Module, Operation, operations

_IGNORED = {
    *("llvm.intr.assume", "gpu.barrier", "ttg.barrier", "ttg.local_barrier", "nvvm.barrier0"),
}
_INTEGERS = ("arith.addi", "arith.subi", "arith.muli", "arith.shli")
# Operations whose results are functions of their operands.
_FUNCTIONS = dict.fromkeys(elementwise.NAMES, elementwise.function_of)
_FUNCTIONS |= dict.fromkeys(tiles.FUNCTIONS, tiles.function_of)
_PLACES = {"tt.get_program_id", "tt.get_num_programs"}
_WAITING = ("tt.atomic_rmw", "tt.atomic_cas", "tt.load")
_MOST_PRINTED = 1000  # lines of a launch


class Program(Translation):
    """One kernel, ready to be launched any number of times."""

    pure = _FUNCTIONS.keys() | _PLACES

    def __init__(
        self,
        module: Module,
        *,
        overflow: bool = False,
        noted: bool = False,
        path: str = "",
    ) -> None:
        """Translate a module; with `overflow` a launch notes offsets of 32 bits that wrap around.

        With `noted` observers see what each operation computes, and may keep notes of it. With
        `path`, that of the submission, the program is for exact mode.

        Raises:
            Unmodelled: the module has an operation whose meaning is unknown.
        """
        super().__init__(module)
        if path:
            self.sites = sites(module, path)
            widen(module)
        self._offsets = flow.offsets(module) if overflow else frozenset()
        self._steps: dict[str, Callable[[Operation, Translation], Run]] = {
            **control.STEPS,
            **memory.STEPS,
            **tiles.STEPS,
            notes.ASKING: notes.translate,
            "tt.get_program_id": self._program_id,
            "tt.get_num_programs": self._num_programs,
            "tt.print": self._print,
            "tt.assert": self._assert,
        }
        self.distance = notes.annotate(module) if noted else 0
        types = [type for type in module.types[1:] if type is not notes.NOTE]
        self._widest = max((type.numel for type in types), default=1)
        self._bytes = sum(type.numel * max(1, type.bits // 8) for type in types)
        self._waits = _waits(module)
        self._stored_to = flow.stored_to(module)
        self._printed = 0
        self._functions = {
            name: control.Function(name, blocks, self) for name, blocks in module.functions.items()
        }

    # -- translation --------------------------------------------------------------------------

    def body(self, block: Block) -> Body:
        """Translate a block."""
        steps: list[tuple[Operation, Run]] = []
        for op in block.operations:
            if op.name in kinds.ENDS:
                return Body(steps, op)
            run = self._step(op)
            if run is not None and op in self.sites and op.name not in ("tt.load", "tt.atomic_rmw"):
                run = self._settling(op, run, self.sites[op])
            if run is not None:
                steps.append((op, run))
        return Body(steps)

    def _step(self, op: Operation) -> Run | None:
        if op.name in _IGNORED:
            return None
        if op.name in self._steps:
            return self._steps[op.name](op, self)
        if op.name not in _FUNCTIONS:
            raise op.unmodelled()
        function = _FUNCTIONS[op.name](op, self.module)
        constants = [self.constants.get(value) for value in op.operands]
        if all(value is not None for value in constants):
            self.constants[op.results[0]] = function(*constants)
            return None
        if op.name in _INTEGERS and op.results[0] in self._offsets:
            return self._checked(op, function)
        operands, (result,) = op.operands, op.results

        def run(env: Env) -> None:
            env[result] = function(*[env[value] for value in operands])

        return run

    def _settling(self, op: Operation, run: Run, site: Site) -> Run:
        (result,) = op.results

        def settling(env: Env) -> None:
            run(env)
            env[result] = self.state.exact.settled(site, env[result])

        return settling

    def _checked(self, op: Operation, function: Callable[..., Tensor]) -> Run:
        """Compute 32-bit integers in 64 bits, and note where some wrap around."""
        a, b = op.operands
        (result,) = op.results

        def run(env: Env) -> None:
            wide = function(cast(env[a], torch.int64), cast(env[b], torch.int64))
            env[result] = cast(wide, torch.int32)
            if not self.state.wraps and not torch.equal(env[result].long(), wide):
                self.state.wraps.append(op.place)

        return run

    def _program_id(self, op: Operation, translation: Translation) -> Run:
        axis, (result,) = "xyz".index(op.words[0]), op.results

        def run(env: Env) -> None:
            env[result] = cast(place_in(self.state.grid, env[0])[axis], torch.int32)

        return run

    def _num_programs(self, op: Operation, translation: Translation) -> Run:
        axis, (result,) = "xyz".index(op.words[0]), op.results
        type = self.module.type(result)

        def run(env: Env) -> None:
            env[result] = filled(type, self.state.grid[axis])

        return run

    def _print(self, op: Operation, translation: Translation) -> Run:
        types = [self.module.type(value) for value in op.operands]
        prefix = op.text.encode().decode("unicode_escape", "replace").strip()
        begin = f"line {op.place.line}, program" if op.place.line else "program"

        def run(env: Env) -> None:
            for row, program in enumerate(numbers(env[0])):
                self._printed += 1
                if self._printed > _MOST_PRINTED:
                    return
                words = [begin, f"{place_in(self.state.grid, program)}:", prefix]
                for value, type in zip(op.operands, types, strict=True):
                    own = env[value][row if env[value].shape[0] > 1 else 0].expand(type.shape)
                    words.append(shown(own))
                print(" ".join(filter(None, words)))

        return run

    def _assert(self, op: Operation, translation: Translation) -> Run:
        (condition,) = op.operands

        def run(env: Env) -> None:
            held = env[condition].flatten(1).all(1) if env[condition].dim() > 1 else env[condition]
            if not bool(held.all()):
                programs = env[0][~held] if held.shape[0] == env[0].shape[0] else env[0]
                text = f"tl.device_assert: {op.text}, in program {int(programs[0])}"
                raise Asserted(text, op.place)

        return run

    # -- a launch -----------------------------------------------------------------------------

    def call(self, function: str, env: Env) -> list[Tensor]:
        return self._functions[function].run(env)

    def launch(
        self,
        grid: tuple[int, int, int],
        arguments: Sequence[tuple[str, Any]],
        *,
        addresses: Mapping[int, int] | None = None,
        limits: Limits = Limits(),
        only: Sequence[int] | None = None,
        **how: Any,
    ) -> None:
        """Run all programs of a grid, or `only` those with these numbers.

        Args:
            grid: how many programs there are along each axis.
            arguments: a name and a value, a tensor or a number, for each parameter.
            addresses: what the kernel takes for the address of a tensor, by its real one.
            limits: those of the launch.
            how: `observe`, `tf32`, `lenient`, `exact` and `wraps`, as in `State`.

        Raises:
            OutOfBounds: an access is outside its tensor.
            Stopped, MemoryError: the launch exceeds a limit.
            BadGrid: no GPU supports so many programs along an axis.
        """
        programs = math.prod(grid)
        check_grid(grid)
        if self._bytes > 4 * limits.value_bytes:
            raise MemoryError(f"the values of one program take {self._bytes >> 20:,} MiB")
        memories = Memories(addresses or {})
        state = self.state = State(grid, memories, limits, **how)
        exact = state.exact
        self._printed = 0
        env = self.fresh()
        parameters = self.module.functions[self.module.entry][0].arguments
        for parameter, (name, value) in zip(parameters, arguments, strict=True):
            env[parameter] = self._argument(parameter, name, value, memories)
        if exact is not None:
            for one in memories:
                one.exact = exact.given(one.flat)
        if state.observe is not None:
            numbers = {name: value for name, value in arguments if isinstance(value, int)}
            state.observe(events.Launched(self.module.entry, grid, tuple(memories), numbers))
        most = min(limits.elements // self._widest, limits.value_bytes // max(1, self._bytes))
        at_once = 1 if self._waits else max(1, most)
        chosen = arange(programs) if only is None else torch.tensor(only)
        for first in range(0, len(chosen), at_once):  # no pass for an empty grid
            state.take(1)
            some = env.copy()
            some[0] = chosen[first : first + at_once]
            self.call(self.module.entry, some)
        for one in memories:
            if exact is not None and one.exact is not None and one.may_change:
                exact.keep(one.flat, one.exact)
        if state.observe is not None:
            read = tuple(one.tensor for one in memories if one.is_read or one.is_updated)
            stored = tuple(one.tensor for one in memories if one.may_change)
            state.observe(events.Flowed(read, stored))

    def _argument(self, parameter: int, name: str, value: Any, memories: Memories) -> Tensor:
        type = self.module.type(parameter)
        if type.pointee:
            if value is not None and not hasattr(value, "data_ptr"):
                return filled(type, int(value))
            pointer = memories.add(name, value)
            memory = memories.get(pointer >> SHIFT)
            if memory is not None:
                memory.may_change |= parameter in self._stored_to
            return filled(type, pointer)
        if type.is_float or type.element == "i1":
            return filled(type, value)
        half = 1 << type.bits - 1
        return filled(type, (int(value) + half) % (2 * half) - half)


def _waits(module: Module) -> bool:
    """Whether programs may wait for each other: a `while` with an atomic or volatile access.

    If all ran each round at once, a program that holds a lock would never release it.
    """
    loops = (op for op in module.operations if op.name == "scf.while")
    return any(
        op.name in _WAITING and (op.name != "tt.load" or "isVolatile" in op.attributes)
        for loop in loops
        for region in loop.regions
        for op in operations(region)
    )
