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


@triton.jit
def _both(a, b, done, c, d, too):
    both = tl.where(done > 0, a, a * b) + tl.where(too > 0, c, c * d)
    return both, both, done + too + 1.0


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _by_additions(a, b):
    total, step, size, rest = 0.0 * a, 4.0 * a, 4.0 + 0.0 * b, tl.abs(b)
    for _ in tl.static_range(0, 24):
        there = rest >= size
        total += tl.where(there, step, 0.0)
        rest -= tl.where(there, size, 0.0)
        bits = step.to(tl.int32, bitcast=True)
        bits = tl.where(bits & 0x7F800000 > 0x00800000, bits - 0x00800000, 0)
        step = bits.to(tl.float32, bitcast=True)
        size = (size.to(tl.int32, bitcast=True) - 0x00800000).to(tl.float32, bitcast=True)
    return tl.where(b < 0, -total, total)


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
_SPREAD = """\
        size: tl.constexpr = (q.shape[0], BLOCK_N, HEAD_DIM)
        one = tl.broadcast_to(q[:, None, :], size).to(tl.float32)
        two = tl.broadcast_to(k[None, :, :], size).to(tl.float32)
        """
_DIGITS = """\
        x, y = q * 16.0, k * 16.0
        scores = tl.zeros((q.shape[0], BLOCK_N), tl.float32)
        for n in tl.static_range(3):
            a, y = tl.floor(x + 0.5), k * 16.0
            for m in tl.static_range(3):
                b = tl.floor(y + 0.5)
                part = tl.dot(a.to(tl.int8), tl.trans(b.to(tl.int8))).to(tl.float32)
                scores += part / 2.0 ** (8 + 7 * n + 7 * m)
                y = (y - b) * 128.0
            x = (x - a) * 128.0"""
SCORES = {
    "whole numbers": """\
        one, two = (q * 65536.0).to(tl.int64), (k * 65536.0).to(tl.int64)
        scores = tl.sum(one[:, None, :] * two[None, :, :], 2).to(tl.float32) / 4294967296.0""",
    "dots of digits": _DIGITS,
    "one dimension": _SPREAD
    + "one = tl.ravel(one) * tl.ravel(two)\n        scores = tl.sum(tl.reshape(one, size), 2)",
    "in a reduction": _SPREAD + "scores, _, _ = tl.reduce((one, two, 0.0 * one), 2, _both)",
    "in a function": _SPREAD + "scores = tl.sum(tl.map_elementwise(_product, one, two), 2)",
    "cosines": _SPREAD + "one, two = 0.05 * one, 0.05 * two\n"
    "        scores = tl.sum(tl.cos(one - two) - tl.cos(one + two), 2) * 200.0",
    "additions": _SPREAD + "scores = tl.sum(_by_additions(one, two), 2)",
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


# Whatever they need lies in memory once more, and is read without being seen.
_IN_MEMORY = """
@triton.jit
def _scores(q_ptr, k_ptr, s_ptr, seqlen, D: tl.constexpr, B: tl.constexpr):
    m, d = tl.program_id(0) * B + tl.arange(0, B)[:, None], tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + m * D + d)
    for start in range(0, seqlen, B):
        n = start + tl.arange(0, B)
        scores = tl.dot(q, tl.trans(tl.load(k_ptr + n[:, None] * D + d)), input_precision="ieee")
        tl.store(s_ptr + m * seqlen + n[None, :], scores * D**-0.5)


@triton.jit
def _softmax(s_ptr, lse_ptr, seqlen, B: tl.constexpr):
    n = tl.arange(0, B)
    s_ptr += tl.program_id(0) * seqlen + n
    scores = tl.load(s_ptr, mask=n < seqlen, other=float("-inf"))
    lse = tl.max(scores, 0) + tl.log(tl.sum(tl.exp(scores - tl.max(scores, 0)), 0))
    tl.store(s_ptr, tl.exp(scores - lse), mask=n < seqlen)
    tl.store(lse_ptr + tl.program_id(0), lse)


@triton.jit
def _weighted(s_ptr, v_ptr, out_ptr, seqlen, D: tl.constexpr, B: tl.constexpr):
    m, d = tl.program_id(0) * B + tl.arange(0, B)[:, None], tl.arange(0, D)[None, :]
    acc = tl.zeros((B, D), tl.float32)
    for start in range(0, seqlen, B):
        n = start + tl.arange(0, B)
        weights = tl.load(s_ptr + m * seqlen + n[None, :])
        acc = tl.dot(weights, tl.load(v_ptr + n[:, None] * D + d), acc, input_precision="ieee")
    tl.store(out_ptr + m * D + d, acc)


def attention(q, k, v, *, softmax_scale=None):
    seqlen, dim = q.shape[2:]
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    square = torch.empty((seqlen, seqlen))
    _scores[(seqlen // 64,)](q, k, square, seqlen, D=dim, B=64)
    _softmax[(seqlen,)](square, lse, seqlen, B=triton.next_power_of_2(seqlen))
    _weighted[(seqlen // 64,)](square, v, out, seqlen, D=dim, B=64)
    return out, lse
"""
_TWICE = """
@triton.jit
def _products(x_ptr, w_ptr, p_ptr, N: tl.constexpr):
    for start in range(0, N, 128):
        c = start + tl.arange(0, 128)
        at = tl.program_id(0) * N + c
        tl.store(p_ptr + at, tl.load(x_ptr + at) * tl.load(w_ptr + c))


@triton.jit
def _sums(p_ptr, y_ptr, N: tl.constexpr):
    total = tl.zeros((128,), tl.float32)
    for start in range(0, N, 128):
        at = p_ptr + tl.program_id(0) * N + start + tl.arange(0, 128)
        total += tl.atomic_add(at, 0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(total, 0))


def weighted_row_sum(x, w):
    y, products = torch.empty(x.shape[0]), torch.empty(x.shape)
    _products[x.shape[:1]](x, w, products, N=x.shape[1])
    _sums[x.shape[:1]](products, y, N=x.shape[1])
    return y
"""
_REPEATED = """
@triton.jit
def _turned(x_ptr, y_ptr, group, D: tl.constexpr):
    row, kv_head, d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    x = 1.5 - tl.load(x_ptr + (kv_head * tl.num_programs(0) + row) * D + d)
    for head in range(kv_head * group, kv_head * group + group):
        tl.store(y_ptr + (head * tl.num_programs(0) + row) * D + D - 1 - d, x)


@triton.jit
def _attention(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, seqlen, D: tl.constexpr, B: tl.constexpr):
    head, start, d = tl.program_id(1) * seqlen, tl.program_id(0) * B, tl.arange(0, D)[None, :]
    n = tl.arange(0, B)
    m = start + n[:, None]
    q = tl.load(q_ptr + (head + m) * D + d)
    total, acc = tl.zeros((B, 1), tl.float32), tl.zeros((B, D), tl.float32)
    for first in range(0, start + B, B):
        rows = (head + first + n[:, None]) * D + D - 1 - d
        k, v = 1.5 - tl.load(k_ptr + rows), 1.5 - tl.load(v_ptr + rows)
        scores = tl.sum(q[:, None, :] * k[None, :, :] + 0.0, 2) * D**-0.5
        weights = tl.where(first + n[None, :] <= m, tl.exp(scores), 0.0)
        total += tl.sum(weights, 1)[:, None]
        acc += tl.sum(weights[:, :, None] * v[None, :, :] + 0.0, 1)
    tl.store(out_ptr + (head + m) * D + d, acc / total)
    tl.store(lse_ptr + head + m, tl.log(total))


def attention(q, k, v, *, softmax_scale=None):
    _, heads, seqlen, dim = q.shape
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
    turned = [torch.empty_like(q), torch.empty_like(q)]
    for x, y in zip((k, v), turned):
        _turned[(seqlen, x.shape[1])](x, y, heads // x.shape[1], D=dim)
    _attention[(seqlen // 64, heads)](q, *turned, out, lse, seqlen, D=dim, B=64)
    return out, lse
"""
READS = {
    "a square in memory": ("p03", "elements read", answer("p03") + _IN_MEMORY),
    "products, by atomic operations": ("p02", "elements read", answer("p02") + _TWICE),
    "repeated heads": ("p05", "different elements read", answer("p05") + _REPEATED),
}


ENTRIES = (*CHOSEN, *LED, *CHANGED)
