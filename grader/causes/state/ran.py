"""The lines of a submission that made a round of a program, and what each of them did."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from grader.kernel.observers.rounds import Rounds
from grader.kernel.observers.trace import OPERANDS
from grader.source.loops import LOOPS, nodes_of
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.trace_record import SourceLine

_MOST_LINES = 4
_LONGEST_LINE = 400
_BYTES = {"fp32": 4}  # of an element; others have 2


def what_ran(
    case: Case, source: Source, rounds: Rounds, r: int, state: list[str]
) -> Iterator[SourceLine]:
    """Yield the lines that made a round: loads, products, the mask, stores, what sets `state`."""
    exist = (rounds.queries >= 0)[:, None] & (rounds.keys[r] >= 0)
    hidden, pairs = int((exist & ~rounds.taken[r]).sum()), int(exist.sum())
    lines = {name: int(rounds.column(name)[r]) for name in ("line", "mask_line", "product_line")}
    loads = [(OPERANDS[load["operand"] - 1], load) for load in rounds.loads[r]]
    ran = [(load["line"], _load(case, name, load)) for name, load in loads if name != "v"]
    ran.append((lines["line"], "multiplies queries with keys"))
    if rounds.column("masked")[r]:
        ran.append((lines["mask_line"], f"masks {hidden:,} of {pairs:,} pairs"))
    loop = int(rounds.column("loop")[r])
    sets = [
        (n, f"sets {name}")
        for name in state
        for n in _setting(source.tree, loop, name.partition("[")[0])
    ]
    ran += [(n, text) for n, text in sets if n != lines["product_line"]]
    ran += [(load["line"], _load(case, name, load)) for name, load in loads if name == "v"]
    ran.append((lines["product_line"], "multiplies the weights with V"))
    stored = [int(rounds.column(name)[r]) for name in ("stored", "stored_too")]
    ran += [(line, "stores the result") for line in stored]
    yield from (SourceLine(line=line, text=text) for line, text in ran if line)


def _load(case: Case, name: str, load: dict[str, int]) -> str:
    """Describe a load: its rows, columns and head, and what is odd about it."""
    heads, length = case.num_kv_heads, case.seqlen_k
    if name == "q":
        heads, length = case.num_q_heads, case.seqlen_q
    (plane, first), (end, last) = (divmod(load[row], length) for row in ("first", "last"))
    batch = f", batch entry {plane // heads}" * (case.batch > 1)
    rows = f"rows {first}-{last}" if first < last else f"row {first}"
    if plane != end:
        rows = f"rows {first} to {last} of the head {end - plane} further on"
    elif load["rows"] != last - first + 1:
        rows = f"{load['rows']} rows from {first} to {last}"
    facts = [f"loads {name} of head {plane % heads}{batch}: {rows}"]
    facts.append(f"columns {load['column']}-{load['last_column']}")
    facts += [f"{load[n]:,} elements {n}" for n in ("masked", "outside") if load[n]]
    if load["apart"] > _BYTES.get(case.dtype, 2):
        facts.append(f"neighbouring elements {load['apart']} bytes apart")
    return ", ".join(facts)


def source_lines(source: Source, numbers: list[int]) -> tuple[SourceLine, ...]:
    """Return those lines that exist in the submission, each once."""
    texts = source.data.decode("utf-8-sig", "replace").split("\n")
    wanted = [n for n in dict.fromkeys(numbers) if 1 <= n <= len(texts)]
    return tuple(
        SourceLine(line=n, text=texts[n - 1].partition("  # ")[0].strip()[:_LONGEST_LINE])
        for n in wanted[:_MOST_LINES]
    )


@functools.lru_cache(maxsize=64)
def _setting(tree: ast.Module | None, loop: int, name: str) -> list[int]:
    """Return the lines that set a name in a loop; where these call functions, the lines in them."""
    nodes, lines = nodes_of(tree) if tree else (), assignments(tree, loop, {name})
    calls = [n.func for n in nodes if isinstance(n, ast.Call) and n.lineno in lines]
    called = {f.id for f in calls if isinstance(f, ast.Name)}
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name in called]
    names = [n for f in functions for n in nodes_of(f, ast.Name) if n.id == name]
    return (sorted({n.lineno for n in names if isinstance(n.ctx, ast.Store)}) or lines)[
        :_MOST_LINES
    ]


def assignments(tree: ast.Module | None, loop: int, names: set[str]) -> list[int]:
    """Return the lines that assign some of `names`, inside the loop that begins at line `loop`.

    Where a name is a plain copy, as in running_max = new_max, the lines that assign the other one.
    """
    loops = nodes_of(tree, *LOOPS) if tree else ()
    inside = [n for node in loops if node.lineno == loop for n in nodes_of(node)]
    copies = dict(pair for n in inside if isinstance(n, ast.Assign) for pair in _copies(n))
    names = names | {made.id for name, made in copies.items() if name.id in names}
    stores = [n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return sorted({n.lineno for n in stores if n.id in names and n not in copies})


def _copies(node: ast.Assign) -> Iterator[tuple[ast.Name, ast.Name]]:
    """Yield each name that a statement makes a plain copy of another name, with the other."""
    for target in node.targets:
        sides = target, node.value
        are_tuples = all(isinstance(side, ast.Tuple) for side in sides)
        for pair in zip(*(s.elts for s in sides), strict=False) if are_tuples else [sides]:
            if all(isinstance(side, ast.Name) for side in pair):
                yield pair
