"""Records what a PyTorch function does tile by tile, as the machine does for a kernel. In a worker.

A round begins with the product of a tile of queries and one of keys, recognized by the rows that
they hold, and ends where the loop around it comes back to its first line.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from grader.isolate.operators import is_product
from grader.kernel.dispatch import DispatchMode
from grader.kernel.lines import running_line
from grader.kernel.machine.engine import unseen
from grader.kernel.observers.rounds import Held, RoundsShape, RoundsWriter

_ALIKE = 0.999  # least cosine of two rows that are the same but for a factor and rounding
_LOOPS = (ast.For, ast.While)
_MASKS = ("aten::masked_fill", "aten::masked_fill_", "aten::where")
_MAXIMA = ("aten::amax", "aten::max")
_KEYS = (int, str)  # of a dictionary


class HostRounds(DispatchMode):
    """Follows the queries that a `RoundsShape` asks for through the file at `path`."""

    def __init__(
        self, shape: RoundsShape, memory: np.ndarray, path: str, source: bytes, inputs: Any
    ) -> None:
        super().__init__()
        self._shape, self._path = shape, path
        self._write = RoundsWriter(shape, memory)
        self._tree = ast.parse(source)
        self._loops = [n for n in ast.walk(self._tree) if isinstance(n, _LOOPS)]
        self._planes = inputs["q"].shape[:2].numel()
        self._length = inputs["q"].shape[2]
        self._known = {n: _directions(inputs[n].flatten(0, 2).cpu()) for n in ("q", "k", "v")}
        self._queries = np.array([], int)
        self._keys = np.array([], int)
        self._frame: Any = None  # of the function whose loop is around the product
        self._loop: Any = None
        self._open = self._done = False
        self._mask = 0  # the line that masked the tile, if one did
        self._hidden: np.ndarray | None = None  # where scores of the tile became -inf

    def __enter__(self) -> HostRounds:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> Any:
        sys.settrace(self._before)
        self._end(seen=False)
        return super().__exit__(*raised)

    # -- products --------------------------------------------------------------------------------

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        if is_product(function) and not self._done:
            with unseen():
                self._multiplied(*args[-2:])
        elif self._open:
            name = function.name().partition(".")[0]
            with unseen():
                if name in _MAXIMA:
                    self._reduced(result if isinstance(result, torch.Tensor) else result[0])
                elif isinstance(result, torch.Tensor):
                    self._may_mask(name, result)
        return result

    def _reduced(self, largest: torch.Tensor) -> None:
        """Note the largest scores of the tile, if there is one for each query."""
        rows = self._queries.size
        if largest.numel() in (rows, self._planes * rows):
            self._write.reduce(self._own(largest.reshape(-1, rows, 1)).float().numpy())

    def _may_mask(self, name: str, result: torch.Tensor) -> None:
        """Note where an operator hides pairs of the tile: what makes scores -inf, or fills them."""
        tile = self._queries.size, self._keys.size
        if tuple(result.shape[-2:]) not in (tile, tile[::-1]):
            return
        scores = self._own(result)
        scores = scores if scores.shape == tile else scores.mT
        hidden = scores.isneginf().numpy()
        if hidden.any():
            if self._hidden is None:
                self._mask, self._hidden = running_line(self._path), hidden
            # In a row without any visible key they become NaN when its maximum is subtracted.
            self._hidden = hidden | (self._hidden & scores.isnan().numpy())
        elif name in _MASKS and self._hidden is None:
            self._mask = running_line(self._path)

    def _multiplied(self, left: Any, right: Any) -> None:
        a, b = self._own(left), self._own(right)
        frame, loop = self._around()
        line = frame.f_lineno if frame else 0
        for first, second in ((a, b), (b.mT, a.mT)):
            queries, keys = self._rows("q", first), self._rows("k", second.mT)
            if queries is not None and keys is not None:
                self._begin(queries, keys, line, frame, loop)
                self._write.of_rows = first is a
                return
            if self._open and first.shape == (self._queries.size, self._keys.size):
                values = self._rows("v", second)
                if values is not None:
                    self._took(first, values, line)
                    return

    def _begin(
        self, queries: np.ndarray, keys: np.ndarray, line: int, frame: Any, loop: Any
    ) -> None:
        """Begin a round, if the queries are those that are followed.

        The loop over queries may be the inner one: then they come once for each tile of keys.
        """
        self._end(seen=False)
        row = self._shape.row
        if not np.array_equal(queries, self._queries):
            if not (row in queries or row < 0):
                return
            self._done = row in self._queries
            if self._done:
                return
            self._queries = queries
            self._write.begin(queries)
        self._frame, self._loop = frame, loop
        self._keys = keys
        self._open = self._write.meet(keys, line)
        self._write.row["loop"] = self._loop.lineno if self._loop else 0
        self._mask, self._hidden = 0, None

    def _took(self, weights: torch.Tensor, values: np.ndarray, line: int) -> None:
        if (values != self._keys).any():
            self._write.row["mixed"] = 1 + int(values.min())
        taken = (weights != 0).numpy()
        if self._hidden is not None:
            # A row without any visible key is NaN. The weight of a visible pair may underflow.
            taken = (taken & ~weights.isnan().numpy()) | ~self._hidden
        self._write.take(taken, line, self._mask, masked=self._mask > 0)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the matrix of the head that is followed, if the tensor has one for each head."""
        if tensor.dim() < 3:
            return tensor.detach().cpu()
        flat = tensor.detach().flatten(0, -3).cpu()
        return flat[self._shape.row // self._length if len(flat) == self._planes else 0]

    def _rows(self, name: str, tile: torch.Tensor) -> np.ndarray | None:
        """Return which rows of an input a tile holds, None if it holds anything else."""
        known = self._known[name]
        if tile.shape[1] != known.shape[1]:
            return None
        found = (_directions(tile) @ known.T).max(1)
        return found.indices.numpy() if bool((found.values > _ALIKE).all()) else None

    # -- where the function is -------------------------------------------------------------------

    def _around(self) -> tuple[Any, Any]:
        """Return the innermost loop of the file that is running, and its frame."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                line, first = frame.f_lineno, frame.f_code.co_firstlineno
                around = [n for n in self._loops if first <= n.lineno <= line <= n.end_lineno]
                if around:
                    return frame, max(around, key=lambda loop: loop.lineno)
            frame = frame.f_back
        return None, None

    def _called(self, frame: Any, event: str, argument: Any) -> Any:
        return self._stepped if frame.f_code.co_filename == self._path else None

    def _stepped(self, frame: Any, event: str, argument: Any) -> Any:
        at_its_loop = frame is self._frame and frame.f_lineno == self._loop.lineno
        if self._open and event == "line" and at_its_loop:
            self._end(seen=True)
        return self._stepped

    def _end(self, *, seen: bool) -> None:
        """End the round, and write what the variables of the loop's function hold."""
        if not self._open:
            return
        self._open = False
        with unseen():
            carried = _carried(self._tree, self._loop)
            held = dict(self._held(carried)) if self._frame is not None else {}
        carried = {name for name in held if name.partition("[")[0] in carried}
        self._write.end(held, carried, seen=seen)

    def _held(self, carried: set[str]) -> Iterator[tuple[str, Held]]:
        rows, heads = self._queries.size, (1, self._planes)
        for name, value in _flat(self._frame.f_locals, carried):
            if type(value) is not torch.Tensor or not value.is_floating_point():
                continue
            if value.shape[-1:] == (rows,) and value.shape[:-1].numel() in heads:
                value = value.reshape(-1, rows, 1)
            if rows not in value.shape[-2:] or value.shape[:-2].numel() not in heads:
                continue
            own = self._own(value).float()
            tiles = (own, own.mT)
            if not any(self._rows(n, tile) is not None for n in self._known for tile in tiles):
                yield name, (own.numpy(), False)


def _flat(held: Mapping[str, Any], carried: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield variables; in place of a tuple, list or dictionary that a loop carries, its entries.

    A subclass of these does not count: the submission's methods would run unseen.
    """
    for name, value in held.items():
        if name in carried and type(value) in (tuple, list, dict):
            parts = value.items() if type(value) is dict else enumerate(value)
            yield from ((f"{name}[{key!r}]", part) for key, part in parts if type(key) in _KEYS)
        else:
            yield name, value


def _directions(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows.double(), dim=1)


def _carried(tree: ast.Module, loop: Any) -> set[str]:
    """Return names of a loop that it reads before it writes them, or that are read after it."""
    order = _Order()
    for statement in loop.body if loop else ():
        order.visit(statement)
    around = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and loop in ast.walk(f)]
    names = [n for f in around[-1:] for n in ast.walk(f) if isinstance(n, ast.Name)]
    behind = {n.id for n in names if isinstance(n.ctx, ast.Load) and n.lineno > loop.end_lineno}
    return {name for name, first in order.first.items() if first or name in behind}


class _Order(ast.NodeVisitor):
    """Notes for each name whether it is read before it is written, in Python's order."""

    def __init__(self) -> None:
        self.first: dict[str, bool] = {}

    def visit_Name(self, node: ast.Name) -> None:
        self.first.setdefault(node.id, isinstance(node.ctx, ast.Load))

    def visit_Assign(self, node: ast.Assign) -> None:
        for part in (node.value, *node.targets):
            self.visit(part)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.first.setdefault(node.target.id, True)
        self.visit(node.value)
