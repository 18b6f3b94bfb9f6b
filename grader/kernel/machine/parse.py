"""Reads TTIR as Triton 3.6 to 3.9 print it.

The text is the only complete interface: Triton's Python bindings of MLIR (3.7) lack constants,
predicates, locations, targets of branches, and attributes that are no single number. Each operation
is one line, or begins and ends its regions with one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from grader.kernel.machine.kinds import BRANCHES, COMBINING, ENDS
from grader.kernel.machine.ttir import (
    BadText,
    Block,
    Module,
    Operation,
    Place,
    Type,
    Unmodelled,
    attribute_list,
    split,
    type_of,
)

MAX_TEXT = 8 << 20
MAX_LINE = 16 << 10
MAX_LINES = 200_000
MAX_DEPTH = 64
MAX_TILE = 1 << 20  # elements, as in Triton
_MAX_CALLERS = 64

_NAME = r"%[\w.$-]+(?:#\d+)?"
_NAMES = re.compile(_NAME)
_LOCATION = re.compile(r" loc\((#loc\d*|unknown)\)$")
_DEFINED = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_OPERATION = re.compile(
    r'(?:(%[\w.$-]+(?:, %[\w.$-]+)*)(?::(\d+))? = )?"?([a-z_]\w*(?:\.\w+)+)"?(.*)'
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BRACES = re.compile(r"<?\{(.*)\}>?")
_NAMED = re.compile(r"(\w+) = (\w+)")
_FLAGGED = re.compile(r"\b(overflow|fastmath)<([\w, ]+)>")
_SYMBOL = re.compile(r"@([\w.$-]*)")
_WORD = re.compile(r"[a-z]\w*")
_LABEL = re.compile(r"(\^\w+)(?:\((.*)\))?:")
_TARGET = re.compile(r"(\^\w+)(?:\(((?:[^():]|\([^()]*\))*):[^)]*\))?")
_FUNCTION = re.compile(r'tt\.func .*?@(?:"([^"]*)"|([\w.$-]+))\(([^()]*)\).*\{')
_ARGUMENT_LOCATION = re.compile(r" loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_FOR = re.compile(
    rf"(unsigned )?({_NAME}) = ({_NAME}) to ({_NAME}) step ({_NAME})"
    r"(?: iter_args\((.*?)\) -> \((.*?)\))?\s*(?:: (\w+))?\s*\{"
)
_IF = re.compile(rf"({_NAME})(?: -> \((.*)\))? \{{")
_WHILE = re.compile(r"(?:\((.*?)\))?\s*: \((.*?)\) -> (.*) \{")
_PAIR = re.compile(rf"({_NAME}) = ({_NAME})")
_GENERIC = re.compile(r"\((.*?)\) <\{(.*?)\}> \(\{")
_COMPARISONS = ("arith.cmpi", "arith.cmpf")


def parse(text: str) -> Module:
    """Return the module that `text` stands for.

    Raises:
        Unmodelled: the text has an operation or a type whose meaning is unknown.
        BadText: the text is no TTIR, or too long.
    """
    return _Parser(text).module


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise BadText(f"TTIR of {len(text):,} characters, {MAX_TEXT:,} are read")
        self._places = Places(text)
        self._lines = [line.strip() for line in text.split("\n") if line and line[0] != "#"]
        if len(self._lines) > MAX_LINES:
            raise BadText(f"TTIR of {len(self._lines):,} lines, {MAX_LINES:,} are read")
        longest = max(map(len, self._lines), default=0)
        if longest > MAX_LINE:
            raise BadText(f"a line of TTIR with {longest:,} characters, {MAX_LINE:,} are read")
        self._at = 0
        self._closing = ""
        self._scopes: list[dict[str, int]] = [{}]
        self.module = Module({}, [type_of("i64")], [""])
        self._nested: dict[str, Callable[[Operation, str], list[Type]]] = {
            "scf.for": self._for,
            "scf.if": self._if,
            "scf.while": self._while,
            **dict.fromkeys(COMBINING, self._reduce),
        }
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith("tt.func"):
                self._function(line)
        if not self.module.functions:
            raise BadText("a text without a tt.func")

    # -- values and types ---------------------------------------------------------------------

    def _define(self, name: str, type: Type, place: Place | None = None) -> int:
        if type.numel > MAX_TILE:
            raise BadText(f"a tile of {type.numel:,} elements, {MAX_TILE:,} are the most")
        number = len(self.module.types)
        self._scopes[-1][name] = number
        self.module.types.append(type)
        called = place.name if place and place.name else name
        self.module.names.append(re.sub(r"_\d+$", "", called.lstrip("%")))
        return number

    def _value(self, name: str) -> int:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        raise BadText(f"the value {name[:40]} is used and not defined")

    def _values(self, text: str) -> tuple[int, ...]:
        return tuple(self._value(name) for name in _NAMES.findall(text))

    # -- functions and blocks -----------------------------------------------------------------

    def _function(self, line: str) -> None:
        match = _FUNCTION.fullmatch(_ARGUMENT_LOCATION.sub("", line))
        if match is None:
            raise BadText(f"no function: {line[:80]}")
        self.module.functions[match[1] or match[2]] = self._region(self._arguments(match[3]))

    def _arguments(self, text: str) -> list[tuple[str, Type]]:
        text = _ARGUMENT_LOCATION.sub("", text)
        pairs = (re.sub(r" \{.*\}$", "", part).partition(":") for part in split(text))
        return [(name.strip(), type_of(type)) for name, _, type in pairs]

    def _region(self, arguments: Iterable[tuple[str, Type]] = ()) -> list[Block]:
        """Read blocks up to the line that closes the region, and put it into `_closing`."""
        self._scopes.append({})
        if len(self._scopes) > MAX_DEPTH:
            raise BadText(f"regions in each other more than {MAX_DEPTH} deep")
        blocks = [Block("", [self._define(*argument) for argument in arguments])]
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if line[0] == "}":
                self._closing = line
                self._scopes.pop()
                return blocks
            label = _LABEL.match(line) if line[0] == "^" else None
            if label:
                own = [self._define(*part) for part in self._arguments(label[2] or "")]
                if len(blocks) == 1 and not blocks[0].operations and not blocks[0].label:
                    blocks = [Block(label[1], own or blocks[0].arguments)]
                else:
                    blocks.append(Block(label[1], own))
            else:
                op = self._operation(line)
                blocks[-1].operations += [*self._spread(op), op]
        raise BadText("a region is not closed")

    # -- operations ---------------------------------------------------------------------------

    def _operation(self, line: str) -> Operation:
        line, place = self._placed(line)
        match = _OPERATION.fullmatch(line)
        if match is None:
            raise BadText(f"no operation: {line[:80]}")
        results, count, name, rest = match.groups()
        op = Operation(name, (), (), place)
        names = results.split(", ") if results else []
        if count:
            names = [f"{names[0]}#{index}" for index in range(int(count))]
        try:
            types = self._read(op, rest.strip())
            if len(types) != len(names):
                raise op.unmodelled()
        except Unmodelled as error:
            raise Unmodelled(error.what, op.place) from None
        op.results = tuple(self._define(n, t, op.place) for n, t in zip(names, types, strict=True))
        return op

    def _spread(self, op: Operation) -> list[Operation]:
        """Return what makes a tile of the condition of a selection, where one holds for all lanes.

        Triton makes such a selection of a branch that chooses between tiles.
        """
        if op.name != "arith.select":
            return []
        condition, shape = op.operands[0], self.module.type(op.results[0]).shape
        if self.module.type(condition).shape == shape:
            return []
        tile = self._define("", Type(shape, "i1"))
        op.operands = (tile, *op.operands[1:])
        return [Operation("tt.splat", (tile,), (condition,), op.place)]

    def _placed(self, line: str) -> tuple[str, Place]:
        match = _LOCATION.search(line)
        if match is None:
            return line, Place()
        return line[: match.start()], self._places.of(match[1])

    def _read(self, op: Operation, rest: str) -> list[Type]:
        """Read the text behind an operation's name; return the types of its results."""
        if op.name in self._nested:
            return self._nested[op.name](op, rest)
        if rest.endswith("{"):
            raise op.unmodelled()
        if op.name in ENDS and op.name not in BRANCHES:
            op.operands = self._values(rest.partition(" : ")[0])
            return []
        if op.name in BRANCHES:
            op.targets = tuple((t, self._values(a)) for t, a in _TARGET.findall(rest))
            op.operands = self._values(rest.partition(",")[0]) if op.name == "cf.cond_br" else ()
            return []
        if op.name == "arith.constant":
            op.text, _, kind = rest.rpartition(" : ")
            op.text = op.text or kind
            return [type_of(kind if kind != op.text else "i1")]
        strings: list[str] = []
        if '"' in rest:
            rest = _STRING.sub(lambda match: strings.append(match[1]) or "", rest)
        head, colon, kinds = f" {rest}".rpartition(" : ")
        if not colon:
            head, kinds = kinds, ""
        self._head(op, head, strings)
        return self._results(op, kinds)

    def _head(self, op: Operation, head: str, strings: list[str]) -> None:
        braces = _BRACES.search(head) if "{" in head else None
        if braces:
            op.attributes = attribute_list(braces[1])
            head = head[: braces.start()] + head[braces.end() :]
        if "=" in head:
            op.attributes |= dict(_NAMED.findall(head))
            head = _NAMED.sub("", head)
        if "<" in head:
            op.attributes |= dict(_FLAGGED.findall(head))
            head = _FLAGGED.sub("", head)
        if "@" in head:
            called = _SYMBOL.search(head)
            op.text = called[1] if called and called[1] else strings[0]
            head = _SYMBOL.sub("", head)
        elif strings:
            op.text = "\0".join(strings)
        op.operands = self._values(head)
        left = _NAMES.sub("", head) if op.operands else head
        op.words = tuple(_WORD.findall(left))
        if re.search(r"[^\w\s,()\[\]:]", left):
            raise op.unmodelled()

    def _results(self, op: Operation, kinds: str) -> list[Type]:
        """Return the types of the results, for which some operations print an operand's alone."""
        if not kinds:
            return []
        if "->" in kinds:
            types = types_of(kinds.rpartition("->")[2])
            return types * 2 if op.name == "tt.split" else types
        if " to " in kinds:
            return [type_of(kinds.rpartition(" to ")[2])]
        types = types_of(kinds)
        if op.name in _COMPARISONS:
            return [Type(types[0].shape, "i1")]
        if op.name == "tt.addptr":
            return types[:1]
        if op.name == "tt.load":
            if not types[0].pointee:
                raise op.unmodelled("of what is no pointer")
            return [Type(types[0].shape, types[0].pointee)]
        return types[-1:] if op.name not in _WITHOUT_RESULT else []

    # -- operations with regions --------------------------------------------------------------

    def _for(self, op: Operation, rest: str) -> list[Type]:
        match = _FOR.fullmatch(rest)
        if match is None:
            raise op.unmodelled()
        pairs = _PAIR.findall(match[6] or "")
        types = types_of(match[7] or "")
        op.operands = tuple(map(self._value, (*match.groups()[2:5], *(last for _, last in pairs))))
        op.words = ("unsigned",) if match[1] else ()
        own = [(match[2], type_of(match[8] or "i32"))]
        own += [(name, type) for (name, _), type in zip(pairs, types, strict=True)]
        op.regions = (self._region(own),)
        self._close(op)
        return types

    def _if(self, op: Operation, rest: str) -> list[Type]:
        match = _IF.fullmatch(rest)
        if match is None:
            raise op.unmodelled()
        op.operands = (self._value(match[1]),)
        op.regions = (self._region(),)
        if self._closing.startswith("} else"):
            op.regions += (self._region(),)
        self._close(op)
        return types_of(match[2] or "")

    def _while(self, op: Operation, rest: str) -> list[Type]:
        match = _WHILE.fullmatch(rest)
        if match is None:
            raise op.unmodelled()
        pairs = _PAIR.findall(match[1] or "")
        types = types_of(match[2])
        op.operands = tuple(self._value(last) for _, last in pairs)
        own = [(name, type) for (name, _), type in zip(pairs, types, strict=True)]
        before = self._region(own)
        if not self._closing.startswith("} do {"):
            raise op.unmodelled()
        op.regions = (before, self._region())
        self._close(op)
        return types_of(match[3])

    def _reduce(self, op: Operation, rest: str) -> list[Type]:
        match = _GENERIC.fullmatch(rest)
        if match is None:
            raise op.unmodelled()
        op.operands, op.attributes = self._values(match[1]), attribute_list(match[2])
        op.regions = (self._region(),)
        return types_of(self._close(op).rpartition("->")[2])

    def _close(self, op: Operation) -> str:
        line, op.place = self._placed(self._closing)
        return line


_WITHOUT_RESULT = ("tt.store", "tt.print", "tt.assert", "llvm.intr.assume", "cf.assert")


def types_of(text: str) -> list[Type]:
    """Return the types of a list that may stand in parentheses."""
    return [type_of(kind) for kind in split(text.strip().removeprefix("(").removesuffix(")"))]


class Places:
    """The places that a text's locations stand for, each resolved on first use."""

    _LINE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
    _NAMED = re.compile(r'"([^"]*)"\((.*)\)')
    _CALLED = re.compile(r"callsite\((\S+) at (\S+)\)")
    _FUSED = re.compile(r"fused.*?\[(.*)\]")

    def __init__(self, text: str) -> None:
        lines = (line for line in text.split("\n") if line.startswith("#loc"))
        self._raw = {m[1]: m[2] for m in map(_DEFINED.match, lines) if m}
        self._known: dict[str, Place] = {}

    def of(self, name: str, depth: int = 0) -> Place:
        """Return the place of `name`, as #loc12, or of the text of a location."""
        if name not in self._known:
            deep = depth > _MAX_CALLERS
            self._known[name] = Place() if deep else self._of(self._raw.get(name, name), depth)
        return self._known[name]

    def _of(self, text: str, depth: int) -> Place:
        match = self._LINE.match(text)
        if match:
            return Place(match[1], int(match[2]))
        match = self._CALLED.fullmatch(text)
        if match:
            inner, outer = self.of(match[1], depth + 1), self.of(match[2], depth + 1)
            callers = ((outer.file, outer.line), *outer.callers)
            if not inner.line:
                return Place(outer.file, outer.line, inner.name or outer.name, outer.callers)
            callers = (inner.callers + callers)[:_MAX_CALLERS]
            return Place(inner.file, inner.line, inner.name, callers)
        match = self._NAMED.fullmatch(text)
        if match:
            inner = self.of(match[2], depth + 1)
            return Place(inner.file, inner.line, match[1], inner.callers)
        match = self._FUSED.fullmatch(text)
        if match:
            return self.of(match[1].partition(", ")[0], depth + 1)
        return self.of(text, depth + 1) if text in self._raw else Place()
