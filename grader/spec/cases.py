"""A case: one set of inputs for one check, and the table of problem.toml that describes it.

Sizes may be drawn from the seed of a run: `seqlen = { draw = [256, 384, 512] }` or
`{ from = 130, to = 400, step = 1 }`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator

OPTIONS = ("is_causal", "softmax_scale", "window_size", "num_sink_tokens", "tile_q", "tile_k")
SIZES = ("batch", "num_q_heads", "num_kv_heads", "seqlen_q", "seqlen_k", "head_dim", "rows", "cols")

Dtype = Literal["fp32", "fp16", "bf16"]
Layout = Literal[
    "dense",
    "packed_qkv",
    "bshd",
    "padded",
    "transposed",
    "expanded",
    "every_other",
    "one_number",
    "zeros",
    "far",
]
Values = Literal[
    "normal", "offset", "peaked", "needle", "large", "falling", "negative", "uneven", "cancelling"
]

_MOST_PAIRS = 2**22  # of a query and a key, in a `small` case
_T = TypeVar("_T")
ListOf = Annotated[tuple[_T, ...], Strict(False)]  # tomllib reads an array as a list
Positive = Annotated[int, Field(gt=0)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Table(BaseModel):
    """A table of problem.toml: frozen, strictly typed, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, data: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in data if isinstance(data, dict) else ():
            if key not in known:
                raise ValueError(f"{key}: got an unknown key, expected one of {', '.join(known)}")
        return data


class Draw(Table):
    """A size that the seed of the run draws: one of `draw`, or a number of a range."""

    draw: Annotated[ListOf[Positive], Field(min_length=2)] | None = None
    first: Positive | None = Field(None, alias="from")
    last: Positive | None = Field(None, alias="to")
    step: Positive = 1

    @model_validator(mode="after")
    def _one_way(self) -> Draw:
        ends = [end for end in (self.first, self.last) if end is not None]
        ranged = len(ends) == 2 and ends[0] < ends[1]
        if ranged if self.draw is None else not ends:
            return self
        got = self.model_dump(by_alias=True, exclude_defaults=True)
        raise ValueError(f"got {got}, expected `draw` with a list, or `from` and a larger `to`")

    @property
    def choices(self) -> tuple[int, ...]:
        return self.draw or tuple(range(self.first or 1, (self.last or 1) + 1, self.step))


Size = Annotated[int, Field(ge=0)] | Draw


class CaseTable(Table):
    """One line of `cases`; the keys that it does not set come from `[base]`.

    A size is a number, `{ draw = [...] }` of these, or `{ from, to, step }` of a range, from which
    the run's seed draws one. The line stands for one case of each of its `dtypes`. `gpu` cases run
    on the GPU where there is one, all others on the machine. `invalid` names the argument that must
    be refused, and `mutate` the change to the inputs that makes it invalid. With the layout "far"
    entries lie 2**30 elements apart.
    """

    batch: Size | None = None
    num_q_heads: Size | None = None
    num_kv_heads: Size | None = None
    seqlen: Size | None = None
    seqlen_q: Size | None = None
    seqlen_k: Size | None = None
    head_dim: Size | None = None
    rows: Size | None = None
    cols: Size | None = None
    dtypes: Annotated[ListOf[Dtype], Field(min_length=1)] | None = None
    layout: Layout | None = None
    dout_layout: Layout | None = None
    values: Values | None = None
    sink_logits: bool | None = None
    sink_logits_values: Literal["normal", "neg_inf", "half"] | None = None
    is_causal: bool | None = None
    softmax_scale: float | None = None
    window_size: int | float | Draw | None = None
    num_sink_tokens: int | float | Draw | None = None
    tile_q: int | Draw | None = None
    tile_k: int | Draw | None = None
    invalid: str | None = None
    mutate: str | None = None
    gpu: bool | None = None

    @model_validator(mode="after")
    def _empty_only_to_be_refused(self) -> CaseTable:
        for key in ("seqlen", *SIZES):
            if getattr(self, key) == 0 and self.invalid is None:
                raise ValueError(f"{key}: got 0, expected 1 or more in a case that is not invalid")
        return self

    @property
    def given(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Case:
    """One set of inputs for one check: sizes, dtype, layout, kind of values and options.

    With `exact`, dots of fp32 have to be IEEE fp32, not TF32, and sums of 16-bit values fp32.
    `gpu`: see `CaseTable`.
    """

    batch: int = 1
    num_q_heads: int = 1
    num_kv_heads: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    head_dim: int = 64
    rows: int | None = None
    cols: int | None = None
    dtype: str = "fp32"
    layout: str = "dense"
    dout_layout: str = "dense"
    values: str = "normal"
    sink_logits: bool = False
    sink_logits_values: str = "normal"
    invalid: str | None = None
    mutate: str | None = None
    gpu: bool = False
    exact: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(self.options)

    @property
    def small(self) -> Case:
        """The case with one batch and fewer heads, if the machine takes too long for all pairs."""
        batch, heads = self.batch, math.gcd(self.num_q_heads, self.num_kv_heads)
        pairs = self.num_q_heads * self.seqlen_q * self.seqlen_k
        if batch * pairs <= _MOST_PAIRS:
            return self
        parts = min(heads, -(-pairs // _MOST_PAIRS))
        parts = next(n for n in range(parts, heads + 1) if heads % n == 0)
        q_heads, kv_heads = self.num_q_heads // parts, self.num_kv_heads // parts
        return dataclasses.replace(self, batch=1, num_q_heads=q_heads, num_kv_heads=kv_heads)

    @property
    def words(self) -> tuple[str, ...]:
        """The case in words such as `batch=2`, without the default layouts and values."""
        if self.rows is not None:
            size = [f"rows={self.rows}", f"cols={self.cols}"]
        else:
            size = [f"batch={self.batch}", f"num_q_heads={self.num_q_heads}"]
            if self.num_kv_heads != self.num_q_heads:
                size.append(f"num_kv_heads={self.num_kv_heads}")
            if self.seqlen_q == self.seqlen_k:
                size.append(f"seqlen={self.seqlen_q}")
            else:
                size += [f"seqlen_q={self.seqlen_q}", f"seqlen_k={self.seqlen_k}"]
            size.append(f"head_dim={self.head_dim}")
        size += [f"{name}={value}" for name, value in self.options]
        if self.sink_logits:
            values = {"neg_inf": "=-inf", "half": "=half"}
            size.append("sink_logits" + values.get(self.sink_logits_values, ""))
        size.append(self.dtype)
        defaults = (("layout", "dense"), ("dout_layout", "dense"), ("values", "normal"))
        for name, default in defaults:
            if getattr(self, name) != default:
                size.append(f"{name}={getattr(self, name)}")
        if self.invalid:
            size.append(f"invalid={self.mutate or self.invalid}")
        return tuple(size)

    def __str__(self) -> str:
        return " ".join(self.words)


def resolve(given: dict[str, Any], dtype: str, place: str, *, exact: bool = False) -> Case:
    """Return the case that the keys `given` describe; drawn sizes depend on `place` alone."""
    given = dict(given)
    given.pop("dtypes", None)
    for key, value in given.items():
        if isinstance(value, Draw):
            digest = hashlib.sha256(f"{place}/{key}".encode()).digest()
            choices = value.choices
            given[key] = choices[int.from_bytes(digest[:8], "little") % len(choices)]
    seqlen = given.pop("seqlen", None)
    if seqlen is not None:
        given.setdefault("seqlen_q", seqlen)
        given.setdefault("seqlen_k", seqlen)
    if "num_q_heads" in given:
        given.setdefault("num_kv_heads", given["num_q_heads"])
    options = tuple((name, given.pop(name)) for name in OPTIONS if name in given)
    return Case(dtype=dtype, exact=exact, options=options, **given)


def fixed(table: CaseTable, without: tuple[str, ...] = ()) -> Case:
    given = {key: value for key, value in table.given.items() if key not in without}
    (dtype,) = table.dtypes or ("fp32",)
    return resolve(given, dtype, "fixed")
