"""The shapes to time, as data, with the ratios they are to reach, and the work in each."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any

PROBLEMS = ("p01", "p02", "p03", "p04", "p05", "p06", "p07", "p08", "p09")
WINDOWED = ("p06", "p07", "p09")
TRAINED = ("p08", "p09")
FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"
# The backward pass has 5 matrix products, the forward pass 2. Further recomputation by an
# implementation does not count as work.
_PRODUCTS = {FORWARD: 1.0, BACKWARD: 2.5, BOTH: 3.5}
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# The passes to which the targets of a problem apply.
TARGET_PASSES = {"p08": (BACKWARD,), "p09": (BACKWARD, BOTH)}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One call of attention; `targets`: by contender, the least ratio of its time to ours."""

    name: str
    batch: int
    num_q_heads: int
    num_kv_heads: int
    seqlen: int
    head_dim: int
    window_size: int | None = None
    num_sink_tokens: int = 0
    sink_logits: bool = False
    is_causal: bool = True
    dtype: str = "bf16"
    targets: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """Batch, q heads, kv heads, seqlen, head_dim and options, in the syntax of `--shapes`."""
        sizes = (self.batch, self.num_q_heads, self.num_kv_heads, self.seqlen, self.head_dim)
        parts = [*map(str, sizes)]
        parts += [f"w={self.window_size}"] if self.window_size is not None else []
        parts += [f"s={self.num_sink_tokens}"] if self.num_sink_tokens else []
        parts += ["logits"] if self.sink_logits else []
        parts += [] if self.is_causal else ["full"]
        parts += [self.dtype] if self.dtype != "bf16" else []
        return ",".join(parts)

    @property
    def pairs(self) -> int:
        """Visible pairs of a query and a key in one head."""
        return visible_pairs(self.seqlen, self.is_causal, self.window_size, self.num_sink_tokens)

    @property
    def score_elements(self) -> int:
        """Elements of all score matrices, which naive attention writes out."""
        return self.batch * self.num_q_heads * self.seqlen**2

    def work(self, which: str) -> tuple[str, float]:
        """Return the unit of the rate, and the work of one pass in TFLOP."""
        flops = 4 * self.batch * self.num_q_heads * self.head_dim * self.pairs
        return "TFLOP/s", flops * _PRODUCTS[which] / 1e12

    def facts(self) -> dict[str, Any]:
        """The shape as JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, targets={}))
        return fields | {"targets": dict(self.targets), "label": self.label}


@dataclasses.dataclass(frozen=True)
class Matrix:
    """One call of p02: (rows, cols)."""

    name: str
    rows: int
    cols: int
    dtype: str = "bf16"
    targets: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sink_logits: bool = False

    @property
    def label(self) -> str:
        """Rows x columns, dtype."""
        return f"{self.rows}x{self.cols},{self.dtype}"

    def work(self, which: str) -> tuple[str, float]:
        """Return the unit and the GB to move: x and w read once, y written once."""
        elements = self.rows * self.cols + self.cols + self.rows
        return "GB/s", elements * _BYTES[self.dtype] / 1e9

    def facts(self) -> dict[str, Any]:
        """The shape as JSON."""
        fields = dataclasses.asdict(dataclasses.replace(self, targets={}))
        return fields | {"targets": dict(self.targets), "label": self.label}


@functools.cache
def visible_pairs(
    seqlen: int, is_causal: bool, window_size: int | None = None, num_sink_tokens: int = 0
) -> int:
    """Return the number of pairs (query, key) of one head, by `reference.visible_keys`' rule."""
    if not is_causal:
        return seqlen * seqlen
    window = seqlen if window_size is None else min(window_size, seqlen)
    in_window = window * (window + 1) // 2 + (seqlen - window) * window
    # Query i >= window has i - window + 1 keys left of its window, of which the first are sinks.
    beyond = seqlen - window
    sinks = min(num_sink_tokens, beyond)
    return in_window + sinks * (sinks + 1) // 2 + (beyond - sinks) * sinks


def passes(problem: str) -> tuple[str, ...]:
    """Return the passes of a problem to time."""
    return (FORWARD, BACKWARD, BOTH) if problem in TRAINED else (FORWARD,)


def _windows(
    targets: dict[str, float],
    sinks: tuple[int, ...] = (0,),
    logits: tuple[bool, ...] = (False,),
    own: float = 1.0,
    own_narrow: float = 1.0,
) -> tuple[Shape, ...]:
    """Return the window shapes; `own`, or `own_narrow` at W=128: the target for `own_no_sinks`."""
    sizes = (
        ("d64-w128", 2, 64, 8, 8192, 64, 128),
        ("d64-w1024", 2, 64, 8, 8192, 64, 1024),
        ("d128-w1024", 1, 32, 8, 16384, 128, 1024),
        ("d128-w4096", 1, 32, 8, 16384, 128, 4096),
    )
    shapes = []
    for name, *size, window in sizes:
        for count in sinks:
            for has_logits in logits:
                extra = {}
                if count or has_logits:
                    extra = {"own_no_sinks": own_narrow if window == 128 else own}
                full = name + (f"-s{count}" if count else "") + ("-logits" if has_logits else "")
                shapes.append(
                    Shape(full, *size, window, count, has_logits, targets=targets | extra)
                )
    return tuple(shapes)


_LONG = ("d128", 2, 16, 16, 8192, 128)
_NARROW = ("d64", 1, 32, 32, 16384, 64)

DEFAULT: dict[str, tuple[Shape | Matrix, ...]] = {
    "p01": (
        Shape("causal", *_LONG[1:], targets={"naive_bf16": 1.0}),
        Shape("full", *_LONG[1:], is_causal=False, targets={"naive_bf16": 1.0}),
    ),
    "p02": (
        Matrix("bf16", 32768, 8192, targets={"mv": 1.0, "compiled_sum": 1.0, "copy": 0.97}),
        Matrix("fp32", 16384, 16384, "fp32", {"mv": 1.0, "compiled_sum": 1.0, "copy": 0.97}),
        Matrix("small", 4096, 8192, targets={"mv": 1.0, "compiled_sum": 1.0}),
    ),
    "p03": (
        Shape(*_LONG, is_causal=False, targets={"sdpa_cudnn": 0.85}),
        Shape(*_NARROW, is_causal=False, targets={"sdpa_cudnn": 0.95}),
    ),
    "p04": (
        Shape(*_LONG, targets={"sdpa_cudnn": 0.85, "sdpa_flash": 1.4}),
        Shape(*_NARROW, targets={"sdpa_cudnn": 0.95, "sdpa_flash": 1.4}),
        Shape("short", 16, 16, 16, 1024, 128, targets={"sdpa_cudnn": 0.85, "sdpa_flash": 1.4}),
    ),
    "p05": (
        Shape("long", 1, 64, 8, 8192, 128, targets={"sdpa_cudnn": 0.85, "own_all_heads": 0.98}),
        Shape("middle", 2, 32, 8, 4096, 128, targets={"sdpa_cudnn": 0.85, "own_all_heads": 0.98}),
    ),
    "p06": _windows({"flex": 1.25, "varlen": 1.3}),
    "p07": _windows({"flex": 1.3}, (4, 16, 64), own=1 / 1.10, own_narrow=1 / 1.25),
    "p08": (
        Shape("d128", 1, 64, 8, 8192, 128,
              targets={"sdpa_cudnn": 0.80, "sdpa_flash": 1.2, "flex": 1.2}),
        Shape("d64", 2, 64, 8, 8192, 64,
              targets={"sdpa_cudnn": 0.80, "sdpa_flash": 1.2, "flex": 1.2}),
    ),
    "p09": (
        Shape("gpt-oss", 1, 64, 8, 8192, 64, 128, 4,
              targets={"flex": 4.0, "own_no_sinks": 1 / 1.15}),
        *_windows({"flex": 1.5}, (4, 16, 64), (False, True), own=1 / 1.15, own_narrow=1 / 1.15),
    ),
}  # fmt: skip


def _growth(problem: str) -> tuple[Shape, ...]:
    lengths = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    is_windowed = problem in WINDOWED
    return tuple(
        Shape(
            f"growth-{seqlen}", 1, 8, 8, seqlen, 64,
            window_size=1024 if is_windowed else None,
            num_sink_tokens=4 if problem in ("p07", "p09") else 0,
            is_causal=problem != "p03",
        )
        for seqlen in lengths
        if is_windowed or seqlen <= 65536
    )  # fmt: skip


# The same heads at growing lengths, at which naive attention's time and memory grow with the square
# of seqlen, those of a window linearly.
GROWTH: dict[str, tuple[Shape, ...]] = {p: _growth(p) for p in PROBLEMS[2:]}


def chosen(problem: str, wanted: str | None, quick: bool = False) -> list[Shape | Matrix]:
    """Return the shapes of `problem` that `--shapes` names or spells out; None: the default set.

    Names are separated by commas; "growth" stands for that set. A spelled-out shape starts with a
    digit, is separated from others by semicolons, and applies to every problem whose rule it fits.

    Raises:
        ValueError: a spelled-out shape cannot be parsed.
    """
    if wanted is None:
        return list(DEFAULT[problem][: 1 if quick else None])
    known = {shape.name: shape for shape in (*DEFAULT[problem], *GROWTH.get(problem, ()))}
    found: list[Shape | Matrix] = []
    for part in filter(None, (part.strip() for part in wanted.split(";"))):
        if part[0].isdigit():
            shape = parse_shape(part)
            found += [for_problem(problem, shape)] if fits(problem, shape) else []
            continue
        for name in part.split(","):
            group = GROWTH.get(problem, ()) if name == "growth" else ()
            found += group or ([known[name]] if name in known else [])
    return found[: 1 if quick else None]


def parse_shape(text: str) -> Shape | Matrix:
    """Parse a shape such as "1,64,8,8192,128,w=128,s=4,logits,full,fp16" or "32768x8192,fp32"."""
    parts = [part.strip() for part in text.split(",")]
    expected = 'expected "batch,q heads,kv heads,seqlen,head_dim[,w=128][,s=4][,logits][,full]'
    matrix = re.fullmatch(r"(\d+)x(\d+)", parts[0])
    sizes = [] if matrix else [int(part) for part in parts if part.isdigit()]
    options: dict[str, Any] = {}
    for part in parts[1 if matrix else len(sizes) :]:
        pair = re.fullmatch(r"(w|s)=(\d+)", part)
        if part in _BYTES:
            options["dtype"] = part
        elif pair and not matrix:
            options[{"w": "window_size", "s": "num_sink_tokens"}[pair[1]]] = int(pair[2])
        elif part in ("logits", "full") and not matrix:
            options |= {"sink_logits": True} if part == "logits" else {"is_causal": False}
        else:
            raise ValueError(f'shape: got {part!r} in {text!r}, {expected}[,dtype]"')
    if matrix:
        return Matrix("given", int(matrix[1]), int(matrix[2]), **options)
    if len(sizes) != 5:
        raise ValueError(f'shape: got {len(sizes)} sizes in {text!r}, {expected}[,dtype]"')
    return Shape("given", *sizes, **options)


def fits(problem: str, shape: Shape | Matrix) -> bool:
    """Whether `problem` can compute this shape."""
    if isinstance(shape, Matrix) or problem == "p02":
        return isinstance(shape, Matrix) and problem == "p02"
    if problem in ("p01", "p03", "p04") and shape.num_q_heads != shape.num_kv_heads:
        return False
    if (shape.window_size is not None) != (problem in WINDOWED):
        return False
    if shape.num_sink_tokens and problem not in ("p07", "p09"):
        return False
    if shape.sink_logits and problem != "p09":
        return False
    return shape.is_causal or problem in ("p01", "p03")


def for_problem(problem: str, shape: Shape | Matrix) -> Shape | Matrix:
    """Return the shape under the problem's own rule: p03 is not causal."""
    return dataclasses.replace(shape, is_causal=False) if problem == "p03" else shape


def shrunk(shape: Shape | Matrix) -> Shape | Matrix:
    """Return a small shape of the same kind, for a dry run on the CPU."""
    if isinstance(shape, Matrix):
        return dataclasses.replace(shape, rows=33, cols=70, dtype="fp32")
    group = shape.num_q_heads // shape.num_kv_heads
    return dataclasses.replace(
        shape,
        batch=1,
        num_q_heads=min(group, 2),
        num_kv_heads=1,
        seqlen=min(shape.seqlen, 70),
        head_dim=16,
        window_size=shape.window_size and min(shape.window_size, 20),
        dtype="fp16",
    )
