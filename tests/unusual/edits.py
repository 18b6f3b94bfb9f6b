"""Other lines for the model answers, by problem and name, that leave them right."""

from tests.mutants.forward import (
    ACC,
    DIVIDE,
    LAUNCH_SCALE,
    LSE,
    NEW_MAX,
    PRODUCTS,
    RESCALE,
    WEIGHTS,
)

_FORWARD = ("p03", "p04", "p05", "p06", "p07")
_HIDE = 'tl.where(visible, scores, float("-inf"))'
# As careful people write: nothing is divided by 0, nothing is infinite.
_EPSILON = ((DIVIDE, "out = acc / (running_sum + 1e-6)[:, None]"),)
_SCALED_FIRST = (
    (PRODUCTS, PRODUCTS + " * scale_log2"),
    (NEW_MAX, NEW_MAX.replace(" * scale_log2", "")),
    (WEIGHTS, "p = tl.exp2(scores - "),
)
_NATURAL = (
    (LAUNCH_SCALE, "softmax_scale,"),
    (RESCALE, RESCALE.replace("exp2", "exp")),
    (WEIGHTS, WEIGHTS.replace("exp2", "exp")),
    (LSE, "lse = running_max + tl.log(running_sum)"),
)
_NO_ACCUMULATOR = (
    (ACC, 'acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")'),
)


def _own_function(text: str, kernel: str) -> tuple[str, str]:
    """Put a function that two elements are combined with before a kernel."""
    return f"@triton.jit\ndef {kernel}", f"@triton.jit\n{text}\n\n\n@triton.jit\ndef {kernel}"


_P02_OWN_SUM = (
    ("tl.sum(acc, axis=1)", "tl.reduce(acc, 1, _added)"),
    _own_function("def _added(a, b):\n    return a + b", "_load_tile"),
)
_P02_MAPPED = (
    (
        "y_tile.to(y_ptr.dtype.element_ty)",
        "tl.map_elementwise(_same, y_tile).to(y_ptr.dtype.element_ty)",
    ),
    _own_function("def _same(x):\n    return x + 0.0", "_load_tile"),
)
_OWN_MAX = (
    (NEW_MAX, NEW_MAX.replace("tl.max(scores, 1)", "tl.reduce(scores, 1, _larger)")),
    _own_function("def _larger(a, b):\n    return tl.maximum(a, b)", "_attention_kernel"),
)


def _finite(value: str) -> tuple[tuple[str, str], ...]:
    return (
        *_SCALED_FIRST,
        (_HIDE, f"tl.where(visible, scores, {value})"),
        (
            'running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)',
            f"running_max = tl.full((BLOCK_M,), {value}, tl.float32)",
        ),
    )


def _tiles(problem: str, block_m: int, block_n: int) -> tuple[tuple[str, str], ...]:
    window = ", window_size" if problem in ("p06", "p07") else ""
    chosen = f"tiles = forward_tiles(q{window})"
    # One stage and many warps: fp32 at head_dim 128 must fit shared memory and registers.
    tiles = f'"BLOCK_M": {block_m}, "BLOCK_N": {block_n}, "num_stages": 1, "num_warps": 8'
    return ((chosen, f"tiles = {{{tiles}}}"),)


_P01_LARGE = (
    ("range(0, seqlen_q, tile_q)", "range(0, seqlen_q, 7 * tile_q)"),
    ("min(q_start + tile_q, seqlen_q)", "min(q_start + 7 * tile_q, seqlen_q)"),
)
_P01_EPSILON = (
    ("= acc / running_sum\n", "= acc / (running_sum + 1e-6)\n"),
    ("key[None, :] > query[:, None], -math.inf)", "key[None, :] > query[:, None], -1e9)"),
)
_P02_OTHER_TILES = (
    ("tiles = row_sum_tiles(x)", 'tiles = {"BLOCK_M": 32, "BLOCK_N": 64, "X_EVICTION": ""}'),
)
# What a notebook begins with; the kernel's own tensors name their device and dtype.
_P02_DEFAULTS = (
    (
        "def weighted_row_sum(",
        'torch.set_default_device("cuda")\ntorch.set_default_dtype(torch.float64)\n\n\n'
        "def weighted_row_sum(",
    ),
)
_P03_GRID = 'grid = (batch * num_q_heads * triton.cdiv(seqlen_q, tiles["BLOCK_M"]),)'
_P03_AUTOTUNED = """\
@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4),
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 16}, num_warps=4),
    ],
    key=["HEAD_DIM"],
)
@triton.jit
def _attention_kernel("""
_AUTOTUNED = (
    ("@triton.jit\ndef _attention_kernel(", _P03_AUTOTUNED),
    (
        _P03_GRID,
        "def grid(meta):\n"
        '        return (batch * num_q_heads * triton.cdiv(seqlen_q, meta["BLOCK_M"]),)\n',
    ),
    (
        'HEAD_DIM=head_dim, IS_EVEN=seqlen_k % tiles["BLOCK_N"] == 0, **tiles,',
        "HEAD_DIM=head_dim, IS_EVEN=False,",
    ),
)
# No check has more than one section otherwise.
_ONE_HEAD_A_SECTION = (
    ("size = max(l2_bytes // head_bytes, triton.cdiv(programs, num_tiles), 1)", "size = 1"),
)
# What a call keeps for the next: how it launches for a dtype, and memory that it writes first.
_P03_LAUNCHES_KEPT = (
    ("def attention(", "_LAUNCHES, _SCRATCH = {}, {}\n\n\ndef attention("),
    (
        _P03_GRID,
        f"{_P03_GRID}\n"
        "    launch = _LAUNCHES.setdefault((q.dtype, grid), _attention_kernel[grid])\n"
        "    scratch = _SCRATCH.setdefault(lse.shape, torch.empty_like(lse))",
    ),
    (
        "_attention_kernel[grid](\n        q, k, v, out, lse,",
        "launch(\n        q, k, v, out, scratch,",
    ),
    ("    # <<< step 2\n    return out, lse", "    lse.copy_(scratch)\n    return out, lse"),
)
_END = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
_EVERY_TILE_MASKED = (
    (_END, "end_key = seqlen"),
    ("if key_start >= full_end:", "if key_start >= 0:"),
)
_SHORTEST_ROWS_FIRST = (("tl.num_programs(1) - 1 - tl.program_id(1)", "tl.program_id(1)"),)
_SEARCH = "if (key_start < full_start) | (key_start >= full_end):"
_ALL_MASKED_IN_WINDOW = (
    (_SEARCH, "if first_key >= 0:"),
    ("// BLOCK_N * BLOCK_N\n    end_key", "// BLOCK_N * 0\n    end_key"),
)
_P06_WALK = """\
    running_max, running_sum, acc = _loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries, first_key, full_start, full_end,
        end_key, seqlen, window_size, running_max, running_sum, acc, scale_log2, HEAD_DIM, BLOCK_N,
    )  # fmt: skip
"""


def _p06_part(begin: str, end: str, full: bool) -> str:
    limits = f"{begin}, {begin}, {end}" if full else f"{begin}, {end}, {end}"
    lines = _P06_WALK.replace("first_key, full_start, full_end", limits)
    return lines.replace("        end_key, seqlen", f"        {end}, seqlen")


_THREE_LOOPS = (
    (
        _P06_WALK,
        "    full_start = tl.minimum(full_start, full_end)\n"
        + _p06_part("first_key", "full_start", full=False)
        + _p06_part("full_start", "full_end", full=True)
        + _p06_part("full_end", "end_key", full=False),
    ),
)
_CONSTANTS = (
    ("@triton.jit(do_not_specialize=VARYING)\n", "@triton.jit\n"),
    (
        "num_q_heads, group_size, seqlen, window_size, scale_log2,\n",
        "num_q_heads: tl.constexpr, group_size: tl.constexpr, seqlen: tl.constexpr,\n"
        "    window_size: tl.constexpr, scale_log2,\n",
    ),
)
_P08_DELTA = "delta = _launch_delta(out, dout)"
_DELTA_IN_PYTORCH = ((_P08_DELTA, "delta = (out.float() * dout.float()).sum(-1)"),)
_BACKWARD_SCALES = (
    ("dq *= softmax_scale\n", "dq = dq * softmax_scale\n"),
    ("ds = p * (dp - delta[:, None])", "ds = p * dp - p * delta[:, None]"),
    ("ds_t = p_t * (dp_t - delta[None, :])", "ds_t = p_t * dp_t - p_t * delta[None, :]"),
)
_P08_CONFIG = (
    'return {"forward": forward_tile, "delta": delta_tile, "dkdv": dkdv_tile, "dq": dq_tile}'
)
_P09_TILES = "return {\n        kernel: {"
_P09_SMALL = """\
for kernel in ("forward", "dq", "dkdv"):
        sizes[kernel], stages[kernel] = (16, 16), 1
    """

# Python of all kinds around a kernel, and what of it goes into one and compiles.
_PLANS = """import dataclasses
import enum
from typing import NamedTuple


class _Side(enum.Enum):
    LEFT = enum.auto()
    RIGHT = enum.auto()


class _Loaded(NamedTuple):
    x: tl.tensor
    w: tl.tensor


@dataclasses.dataclass(frozen=True)
class _Plan:
    \"\"\"What is launched.\"\"\"

    block_m: int
    side: _Side = _Side.LEFT

    @property
    def is_left(self):
        return self.side is _Side.LEFT

    def grid(self, rows):
        return (triton.cdiv(rows, self.block_m),)


class _Launcher:
    launched = 0

    def __init__(self, x):
        self._tiles = row_sum_tiles(x)
        self.plan = _Plan(self._tiles["BLOCK_M"])

    @classmethod
    def of(cls, x):
        cls.launched += 1
        return cls(x)

    def launch(self, kernel, x, w, y):
        \"\"\"One program per BLOCK_M rows.\"\"\"
        rows, cols = x.shape
        tiles = self._tiles
        kernel[self.plan.grid(rows)](
            x, w, y, rows, cols, x.stride(0), x.stride(1), w.stride(0),
            PLAN=self.plan, NAMES=("m", "n"), **tiles,
        )


"""
_LOAD = "@triton.jit\ndef _load_tile"
_P02_PLANS = (
    (_LOAD, _PLANS + _LOAD),
    ("return x_tile, w_tile", "return _Loaded(x=x_tile, w=w_tile)"),
    (
        "X_EVICTION: tl.constexpr,\n):",
        "X_EVICTION: tl.constexpr,\n    PLAN: tl.constexpr, NAMES: tl.constexpr,\n):",
    ),
    (
        "    acc = tl.zeros",
        "    tl.static_print('rows of a program', BLOCK_M)\n"
        "    tl.static_assert(PLAN.is_left and PLAN.block_m == BLOCK_M, f'{BLOCK_M} rows')\n"
        "    assert BLOCK_N > 0, 'no columns'\n"
        "    tl.static_assert(X_EVICTION.startswith('evict') or len(NAMES) == 2)\n"
        "    acc = tl.zeros",
    ),
    ("x_tile, w_tile = _load_tile(", "loaded = _load_tile("),
    ("products = x_tile * w_tile[None, :]", "products = loaded.x * loaded.w[None, :]"),
    (
        "x_tile.to(tl.float32) * w_tile.to(tl.float32)",
        "loaded.x.to(tl.float32) * loaded.w.to(tl.float32)",
    ),
    (
        """    _weighted_row_sum_kernel[grid](
        x, w, y, rows, cols, x.stride(0), x.stride(1), w.stride(0), **tiles
    )
""",
        "    _Launcher.of(x).launch(_weighted_row_sum_kernel, x, w, y)\n",
    ),
    ("rows, cols = x.shape\n    y", "rows = x.shape[0]\n    y"),
)
# The weights are padded with zeros and scaled, and so are the sums: once each.
_P02_SCALED = (
    (
        "    rows, cols = x.shape\n",
        "    rows, cols = x.shape\n    padded = w.new_zeros(triton.next_power_of_2(cols))\n"
        "    padded[:cols].copy_(w)\n    w = (padded[:cols] * 2.0).contiguous()\n"
        "    if torch.isnan(x).any():\n        print(f'NaN in {x}')\n",
    ),
    ("    return y\n", "    return y / 2.0\n"),
)
# The heads of K and V are repeated: it costs memory.
_P05_REPEATED = (
    (
        "    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)\n    lse = ",
        "    heads = torch.arange(q.shape[1], device=q.device) // (q.shape[1] // k.shape[1])\n"
        "    k, v = k[:, heads], v.index_select(1, heads)\n"
        "    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)\n    lse = ",
    ),
)
# What a backward pass needs is in an object of the file, behind names with an underscore.
_P09_OPTIONS = (
    (
        "class _SinkWindowAttention(",
        "class _Options:\n"
        "    def __init__(self, *values):\n        self._values = values\n\n"
        "    def __iter__(self):\n        return iter(self._values)\n\n\n"
        "class _SinkWindowAttention(",
    ),
    (
        "ctx.options = (window_size, num_sink_tokens, softmax_scale)",
        "ctx._options = _Options(window_size, num_sink_tokens, softmax_scale)",
    ),
    ("*ctx.options", "*ctx._options", 4),
)
# The logit scales what the softmax of the keys alone gave.
_SINKS_AFTER = (
    (
        "        running_max = tl.maximum(running_max, sink_logit * LOG2_E)\n"
        "        running_sum += 1.0\n",
        "",
    ),
    (
        f"    {DIVIDE}",
        f"""    {DIVIDE}
    lse = running_max + tl.log2(running_sum)
    if sink_logits_ptr is not None:
        larger = tl.maximum(lse, sink_logit * LOG2_E)
        both = larger + tl.log2(tl.exp2(lse - larger) + tl.exp2(sink_logit * LOG2_E - larger))
        out *= tl.exp2(lse - both)[:, None]
        lse = both
""",
    ),
    ("lse = (running_max + tl.log2(running_sum)) * LN_2", "lse *= LN_2"),
)

EDITS = (
    ("p01", "large tiles", _P01_LARGE),
    ("p01", "epsilon and finite mask", _P01_EPSILON),
    ("p02", "tiles of 32 by 64", _P02_OTHER_TILES),
    ("p02", "other device and dtype by default", _P02_DEFAULTS),
    ("p02", "reduced with a function of its own", _P02_OWN_SUM),
    ("p02", "mapped element by element", _P02_MAPPED),
    ("p02", "plans and rows", _P02_PLANS),
    ("p02", "weights and sums scaled", _P02_SCALED),
    ("p03", "reduced with a function of its own", _OWN_MAX),
    *((problem, "sum plus epsilon", (*_EPSILON, *_NO_ACCUMULATOR)) for problem in _FORWARD),
    *((problem, "natural exponential", _NATURAL) for problem in _FORWARD),
    *((problem, "finite masks of -1e6", _finite("-1.0e6")) for problem in ("p03", "p05", "p07")),
    *((problem, "finite masks of -1e9", _finite("-1.0e9")) for problem in ("p04", "p06")),
    *((problem, "tiles of 16", _tiles(problem, 16, 16)) for problem in ("p04", "p07")),
    *((problem, "tiles of 32 by 64", _tiles(problem, 32, 64)) for problem in ("p03", "p06")),
    *((problem, "tiles of 128 by 32", _tiles(problem, 128, 32)) for problem in ("p05", "p06")),
    ("p03", "scaled before the maximum", _SCALED_FIRST),
    ("p03", "autotuned", _AUTOTUNED),
    ("p03", "launches and scratch that are kept", _P03_LAUNCHES_KEPT),
    *((problem, "one head a section", _ONE_HEAD_A_SECTION) for problem in ("p04", "p05", "p08")),
    ("p04", "every tile visited and masked", _EVERY_TILE_MASKED),
    ("p04", "shortest rows first", _SHORTEST_ROWS_FIRST),
    ("p05", "heads repeated by an index", _P05_REPEATED),
    ("p06", "three loops", _THREE_LOOPS),
    ("p06", "constants", _CONSTANTS),
    ("p06", "every tile visited and masked", _ALL_MASKED_IN_WINDOW),
    ("p08", "delta in PyTorch", _DELTA_IN_PYTORCH),
    ("p08", "sum plus epsilon", (*_EPSILON, *_BACKWARD_SCALES)),
    ("p09", "sum plus epsilon", (*_EPSILON, *_BACKWARD_SCALES)),
    ("p09", "options of its own class", _P09_OPTIONS),
    ("p09", "sinks after softmax", _SINKS_AFTER),
    ("p09", "tiles of 16", ((_P09_TILES, _P09_SMALL + _P09_TILES),)),
)
