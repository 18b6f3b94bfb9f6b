"""Loops, branches and calls, for all programs of an environment at once.

Where programs diverge, the environment is split: a loop sorts programs by their number of rounds,
so that those still in it come first, and each side of a branch runs with the programs that take
it. Their results are merged in the programs' order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from grader.kernel.machine import events, notes
from grader.kernel.machine.arrays import Tensor, arange, cast, ends, numbers, whole
from grader.kernel.machine.notes import NOTE
from grader.kernel.machine.steps import Body, Env, Run, Translation, cut, cut_arrays
from grader.kernel.machine.ttir import Block, Operation, Type

Part = tuple[Tensor, list[Tensor]]  # positions of programs in an environment, and their values


def put_together(parts: Sequence[Part], types: Sequence[Type]) -> list[Tensor]:
    """Merge the values of parts that together have all programs of an environment."""
    if len(parts) == 1:
        return parts[0][1]
    order = torch.cat([programs for programs, _ in parts])
    place = torch.empty_like(order)
    place[order] = arange(len(order))
    together = []
    for index, type in enumerate(types):
        if type is NOTE:
            counts = [len(programs) for programs, _ in parts]
            together.append(notes.together([v[index] for _, v in parts], counts, place))
            continue
        arrays = [whole(values[index], type.shape, len(p)) for p, values in parts]
        together.append(torch.cat(arrays)[place])
    return together


def _types(translation: Translation, values: Sequence[int]) -> list[Type]:
    return [translation.module.type(value) for value in values]


def _assign(env: Env, values: Sequence[int], arrays: Sequence[Tensor]) -> None:
    for value, array in zip(values, arrays, strict=True):
        env[value] = array


class _Loop:
    """What for and while have in common: the cost of a round, and the event at its end."""

    def __init__(self, op: Operation, translation: Translation, carried: Sequence[int]) -> None:
        self.op = op
        self._translation = translation
        module = translation.module
        self._names = tuple(filter(None, (module.names[value] for value in carried)))
        self._variables: dict[str, tuple[int, Type]] = {}
        made = (v for part in op.regions[-1][0].operations for v in part.results)
        for value in (*made, *carried):
            if module.names[value].isidentifier() and module.type(value).is_float:
                self._variables[module.names[value]] = value, module.type(value)

    def begin(self, steps: int) -> None:
        """Subtract the steps of a round from the launch's limit."""
        self._translation.state.take(steps + 1, self.op.place)

    def end(self, env: Env) -> None:
        """Report the end of a round, with the variables' values, if an observer keeps notes."""
        state, distance = self._translation.state, self._translation.distance
        if state.observe is not None and distance:
            values = {
                name: (env[value], type, env[value + distance])
                for name, (value, type) in self._variables.items()
            }
            state.observe(events.RoundEnded(self.op, env[0], values, self._names))


def for_loop(op: Operation, translation: Translation) -> Run:
    """Translate an scf.for."""
    low, high, step, *initial = op.operands
    block = _only(op, op.regions[0])
    index, *carried = block.arguments
    live = [value for value in translation.live(*op.regions) if value]
    types = _types(translation, carried)
    before, body = _hoisted(translation, block)
    made = [value for inner, _ in before.steps for value in inner.results]
    kept = [0, *live, *made, low, step]
    loop = _Loop(op, translation, carried)

    def run(env: Env) -> None:
        rounds = _rounds(op, *(env[value] for value in (low, high, step)))
        least, most = ends(rounds)
        values = [env[value] for value in initial]
        if most <= 0:
            _assign(env, op.results, values)
            return
        inner, parts = env.copy(), []
        order, counts = None, []
        if least != most:
            order = torch.argsort(rounds, descending=True, stable=True)
            counts = numbers(rounds[order])
            inner = cut(env, [0, *live, low, step], order)
            values = cut_arrays(values, order)
        before.run(inner)
        _assign(inner, carried, values)
        here = len(counts)
        for number in range(most):
            staying = here
            while staying and counts[staying - 1] <= number:
                staying -= 1
            if order is not None and staying < here:
                leaving = slice(staying, here)
                left = cut_arrays([inner[value] for value in carried], leaving)
                parts.append((order[leaving], left))
                inner = cut(inner, [*kept, *carried], slice(0, staying))
                here = staying
            inner[index] = inner[low] + inner[step] * number
            loop.begin(len(body.steps))
            _assign(inner, carried, body.run(inner))
            loop.end(inner)
        values = [inner[value] for value in carried]
        if order is not None:
            parts.append((order[:here], values))
            values = put_together(parts, types)
        _assign(env, op.results, values)

    return run


def _rounds(op: Operation, low: Tensor, high: Tensor, step: Tensor) -> Tensor:
    """Return how many rounds of a loop each program runs, 0 or less where it runs none."""
    first, last, by = (cast(x, torch.int64) for x in (low, high, step))
    if "unsigned" in op.words:
        first, last, by = (x & 0xFFFFFFFF for x in (first, last, by))
    if bool((by <= 0).any()):
        raise op.unmodelled("with a step that is not positive")
    return torch.div(last - first + by - 1, by, rounding_mode="floor")


def _only(op: Operation, region: list[Block]) -> Block:
    if len(region) != 1:
        raise op.unmodelled("with branches")
    return region[0]


def _hoisted(translation: Translation, block: Block) -> tuple[Body, Body]:
    """Split a loop's body into what all rounds would compute alike, and the rest."""
    body, varying = translation.body(block), {*block.arguments}
    before, rest = Body([]), Body([], body.last)
    for op, run in body.steps:
        if op.name in translation.pure and varying.isdisjoint(op.operands):
            before.steps.append((op, run))
        else:
            rest.steps.append((op, run))
            varying.update(op.results)
    return before, rest


def if_else(op: Operation, translation: Translation) -> Run:
    """Translate an scf.if."""
    (condition,) = op.operands
    sides = [translation.body(_only(op, region)) for region in op.regions]
    used = [translation.live(region) for region in op.regions]
    if len(sides) == 1:
        sides.append(Body([]))
        used.append([0])
    types = _types(translation, op.results)

    def run(env: Env) -> None:
        chosen = env[condition]
        if chosen.shape[0] == 1 or bool(chosen.all()) or not bool(chosen.any()):
            _assign(env, op.results, sides[0 if bool(chosen[0]) else 1].run(env))
            return
        parts: list[Part] = []
        for side, values, who in zip(sides, used, (chosen, ~chosen), strict=True):
            if side.steps or op.results:
                programs = who.nonzero()[:, 0]
                part = cut(env, [*values, *side.yields], programs)
                parts.append((programs, side.run(part)))
        if op.results:
            _assign(env, op.results, put_together(parts, types))

    return run


def while_loop(op: Operation, translation: Translation) -> Run:
    """Translate an scf.while."""
    first, second = (_only(op, region) for region in op.regions)
    before, after = translation.body(first), translation.body(second)
    live = translation.live(*op.regions)
    types = _types(translation, op.results)
    loop = _Loop(op, translation, first.arguments)

    def run(env: Env) -> None:
        inner = env.copy()
        values = [env[value] for value in op.operands]
        programs = arange(env[0].shape[0])
        parts: list[Part] = []
        while True:
            _assign(inner, first.arguments, values)
            loop.begin(len(before.steps) + len(after.steps))
            going, *values = before.run(inner)
            if not bool(going.any()):
                parts.append((programs, values))
                break
            if not bool(going.all()):
                stop, go = (~going).nonzero()[:, 0], going.nonzero()[:, 0]
                parts.append((programs[stop], cut_arrays(values, stop)))
                inner, programs = cut(inner, live, go), programs[go]
                values = cut_arrays(values, go)
            _assign(inner, second.arguments, values)
            values = after.run(inner)
            _assign(inner, first.arguments, values)
            loop.end(inner)
        _assign(env, op.results, put_together(parts, types))

    return run


def call(op: Operation, translation: Translation) -> Run:
    """Translate a tt.call."""
    name = op.text
    if name not in translation.module.functions:
        raise op.unmodelled(name)
    arguments = translation.module.functions[name][0].arguments

    def run(env: Env) -> None:
        inner = translation.fresh()
        inner[0] = env[0]
        _assign(inner, arguments, [env[value] for value in op.operands])
        translation.state.take(1, op.place)
        _assign(env, op.results, translation.call(name, inner))

    return run


class Function:
    """Runs the blocks of a function, from the first one to every return."""

    def __init__(self, name: str, blocks: list[Block], translation: Translation) -> None:
        self._name = name
        self._translation = translation
        self._first = blocks[0].label
        self._bodies = {block.label: translation.body(block) for block in blocks}
        self._arguments = {block.label: block.arguments for block in blocks}
        self._types: list[Type] = []
        for body in self._bodies.values():
            if body.last is None or body.last.name == "tt.return":
                self._types = _types(translation, body.yields)

    def run(self, env: Env) -> list[Tensor]:
        """Run the function for all programs of an environment; return its results."""
        waiting = [(self._first, env, arange(env[0].shape[0]))]
        parts: list[Part] = []
        while waiting:
            label, env, programs = waiting.pop()
            body = self._bodies[label]
            values = body.run(env)
            if body.last is None or body.last.name == "tt.return":
                parts.append((programs, values))
                continue
            self._translation.state.take(len(body.steps) + 1, body.last.place)
            waiting += self._branches(body.last, env, programs)
        return put_together(parts, self._types) if self._types else []

    def _branches(self, op: Operation, env: Env, programs: Tensor) -> list[tuple]:
        if op.name == "cf.br":
            return [self._jump(op.targets[0], env, programs)]
        going = env[op.operands[0]]
        if bool(going.all()) or not bool(going.any()):
            return [self._jump(op.targets[0 if bool(going[0]) else 1], env, programs)]
        found = []
        for target, who in ((op.targets[1], ~going), (op.targets[0], going)):
            some = who.nonzero()[:, 0]
            part = cut(env, range(len(env)), some)
            found.append(self._jump(target, part, programs[some]))
        return found

    def _jump(self, target: tuple[str, tuple[int, ...]], env: Env, programs: Tensor) -> tuple:
        label, handed = target
        if label not in self._bodies:
            raise ValueError(f"a branch to {label}, which is nowhere")
        _assign(env, self._arguments[label], [env[value] for value in handed])
        return label, env, programs


STEPS: dict[str, Callable[[Operation, Translation], Run]] = {
    "scf.for": for_loop,
    "scf.if": if_else,
    "scf.while": while_loop,
    "tt.call": call,
}
