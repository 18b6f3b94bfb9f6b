"""Files that choose what is measured, count for less than they do, or reach code by a kernel.

All but the last are right where the judge looks first. What a file makes the judge unable to
measure counts against it, once its kernels have run; so does work that no dot does.
"""

from tests.hostile.entry import Hostile, answer
from tests.hostile.hidden import hidden

_ODD = """

class NoRoom(Exception):
    pass


def _odd():
    torch.rand(1, generator=torch.Generator())


_honest = ENTRY_NAME


def ENTRY_NAME(*args, **options):
    first = next(iter(options.values()))
    if WHEN:
        DO
    return _honest(*args, **options)
"""
_NO_ROOM = """try:
            _odd()
        except Exception as error:
            raise NoRoom("none") from error"""


def _choosing(name: str, problem: str, entry: str, when: str, do: str, points: float) -> Hostile:
    text = _ODD.replace("WHEN", when).replace("DO", do).replace("ENTRY_NAME", entry)
    source = answer(problem) + text
    return Hostile(name, source, ("error",), problem, points=points, policy=True, slow=True)


_ROWS = "weighted_row_sum"
CHOSEN = (
    _choosing(
        "an error with the name of one of the judge's",
        "p02", _ROWS, "first.shape[0] % 32", _NO_ROOM, 6.1,
    ),
    _choosing(
        "another error of one that is not measured",
        "p02", _ROWS, "first.shape[0] % 32",
        _NO_ROOM.replace("NoRoom", "ValueError"), 6.1,
    ),
    _choosing(
        "a call that is not measured where work is counted",
        "p02", _ROWS, "tuple(first.shape) == (512, 1024)", "_odd()", 6.0,
    ),
)  # fmt: skip

# The text of a policy-abiding file has no `exec`: the names of its module do.
_LED = """
@triton.jit
def led(x):
    tl.store(x, LED)
LED = tl.constexpr(1)
def names():
    led[(1,)](torch.zeros(1))
    return WAY
def product(x, w):
    read = names()["__builtins__"]
    return read["getattr"](read["__import__"]("torch"), "mv")(x.float(), w.float())
"""
_WAYS = {
    "the scope of a kernel": "led.get_capture_scope()",
    "the scope of a constexpr function": "triton.constexpr_function(names).get_capture_scope()",
    "the globals that a kernel uses": "next(iter(led.used_global_vals.values()))[1]",
    "the scope of a given kernel": "_copy.get_capture_scope()",
}
LED = tuple(
    hidden(f"{name}", _LED.replace("WAY", way), verdicts=("error", "rejected"), slow=True)
    for name, way in _WAYS.items()
)
_DECORATED = """
dataclasses.dataclass(frozen=True)(KIND)
def product(x, w):
    return x[:, 0]
"""
CHANGED = tuple(
    hidden(f"{kind} with other methods", _DECORATED.replace("KIND", kind),
           verdicts=("error", "rejected"), slow=True)
    for kind in ("torch.Tensor", "type(torch.empty(1))", "tl.tensor")
)  # fmt: skip

# Every tile is visited, and few dots are seen: of p04 the two points of work are not earned.
_COPIES = """
@triton.jit
def _other(x_ptr, y_ptr, strides, heads, seqlen, D: tl.constexpr):
    row = tl.program_id(0)
    head, offs = row // seqlen, tl.arange(0, D)
    x_ptr += head // heads * strides[0] + head % heads * strides[1] + row % seqlen * strides[2]
    tl.store(y_ptr + row * D + D - 1 - offs, 1.5 - tl.load(x_ptr + offs))


@triton.jit"""
_COPY = """\
copies = [torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in (k, v)]
    for x, y in zip((k, v), copies):
        rows = (batch * num_q_heads * seqlen,)
        _other[rows](x, y, x.stride()[:3], num_q_heads, seqlen, D=head_dim)
    k, v = copies
    _attention_kernel[grid"""
_LOADED = """\
        k = (1.5 - load_keys(k_ptr + k_offs, keys, seqlen, IS_EVEN)).to(q.dtype)
        v = (1.5 - load_keys(v_ptr + v_offs, keys, seqlen, IS_EVEN)).to(q.dtype)
        v = tl.where((keys < seqlen)[:, None], v, 0.0).to(q.dtype)
"""
_BY_COLUMNS = """\
        scores = tl.zeros((q.shape[0], BLOCK_N), tl.float32)
        for d in range(0, HEAD_DIM):
            one = (tl.arange(0, HEAD_DIM) == d)[None, :]
            a = tl.sum(tl.where(one, q, 0.0), 1)[:, None].to(tl.float32)
            b = tl.sum(tl.where(one, k, 0.0), 1)[None, :].to(tl.float32)
            {added}
        if key_start < 16:
            scores += 0.0 * tl.dot(q, tl.trans(k))"""
# As large as the result before they are multiplied.
_CHOSEN = "tl.where(queries[:, None] + keys[None, :] >= 0, a, 0.0)"
_LOGS = (
    "sign = tl.where((a < 0) == (b < 0), 1.0, -1.0)\n            "
    "size = tl.exp2(tl.log2(tl.abs(a)) + tl.log2(tl.abs(b)))\n            "
    "scores += tl.where(sign > 0, size, -size)"
)
SCORES = {
    "fused": _BY_COLUMNS.format(added="scores = tl.fma(a, b, scores)"),
    "as large before": _BY_COLUMNS.format(added=f"scores += {_CHOSEN} * b"),
    "a quotient": _BY_COLUMNS.format(added=f"scores += {_CHOSEN} / (1.0 / b)"),
    "logarithms": _BY_COLUMNS.format(added=_LOGS),
    "halves": """\
        k0, k1 = tl.split(tl.reshape(k, (BLOCK_N, HEAD_DIM // 2, 2)))
        q0, q1 = tl.split(tl.reshape(q, (q.shape[0], HEAD_DIM // 2, 2)))
        scores = tl.sum(q0[:, None, :] * k0[None, :, :] + q1[:, None, :] * k1[None, :, :], 2)""",
    "squares": """\
        both = q[:, None, :].to(tl.float32) + k[None, :, :]
        scores = (tl.sum(both * both, 2) - tl.sum(q * q, 1)[:, None]
                  - tl.sum(k * k, 1)[None, :]) * 0.5""",
    "running sums": """\
        last = (tl.arange(0, HEAD_DIM) == HEAD_DIM - 1)[None, None, :]
        products = tl.cumsum(q[:, None, :].to(tl.float32) * k[None, :, :], 2)
        scores = tl.sum(tl.where(last, products, 0.0), 2)""",
    "columns by rows": """\
        scores = tl.zeros((q.shape[0], BLOCK_N), tl.float32)
        for d in range(0, HEAD_DIM):
            one = (tl.arange(0, HEAD_DIM) == d)[None, :]
            column = tl.sum(tl.where(one, q, 0.0), 1)[:, None].to(tl.float32)
            scores += column * tl.sum(tl.where(one, k, 0.0), 1)[None, :]""",
}


def every_tile(how: str) -> str:
    """An answer of p04 that visits every tile of copies, and makes scores without a dot."""
    source = answer("p04")
    dot = '        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)'
    start = source.index("        k = load_keys(")
    end = source.index("        scores = tl.dot(")
    for old, new in (
        (source[start:end], _LOADED),
        (dot, SCORES[how]),
        ("offs_d[None, :]  # (BLOCK_N, HEAD_DIM)", "(HEAD_DIM - 1 - offs_d)[None, :]"),
        ("end_key = tl.minimum(query_start + BLOCK_M, seqlen)", "end_key = seqlen"),
        ("full_end = query_start // BLOCK_N * BLOCK_N", "full_end = 0"),
        ("_attention_kernel[grid", _COPY),
    ):
        assert old in source, old
        source = source.replace(old, new)
    return source.replace("\n@triton.jit", _COPIES, 1)


ENTRIES = (*CHOSEN, *LED, *CHANGED)
