"""Wrong kernels: each is a model answer with one mistake put in by text substitution.

Data only; tests/test_wrong_kernels.py runs them. One file in spite of its length, since
the problems share the lines that are changed.
"""

from __future__ import annotations

import dataclasses

READ_OUTSIDE = "read outside a tensor"
WRITE_OUTSIDE = "write outside a tensor"
OVERWRITTEN = "was overwritten"
NOT_DENSE = "expected a dense tensor"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One wrong kernel and what must become of it.

    Attributes:
        problem: id of the problem whose model answer is changed.
        name: what is wrong, for the test's id.
        checks: the checks of problem.toml that must catch it, run in this order until a case fails;
            with `expected_id`, until three have failed and the mistake is named.
        edits: (old text, new text) or (old text, new text, how often the old text occurs).
        expected_id: the known mistake that the judge must name, without the problem's prefix; None
            where no known mistake is exactly this one.
        caught_as: text of the headline for what is caught otherwise than by its wrong numbers.
        needs_cuda: why it shows on a GPU alone.
    """

    problem: str
    name: str
    checks: tuple[str, ...]
    edits: tuple[tuple, ...]
    expected_id: str | None = None
    caught_as: str | None = None
    needs_cuda: str | None = None

    @property
    def id(self) -> str:
        """Name of the test's case."""
        return f"{self.problem}-{self.name.replace(' ', '_')}"

    def applied_to(self, source: str) -> str:
        """Return the changed source.

        Raises:
            ValueError: the model answer has changed, so that an edit no longer fits.
        """
        for old, new, *count in self.edits:
            expected = count[0] if count else 1
            if source.count(old) != expected:
                raise ValueError(
                    f"{self.id}: got {source.count(old)} times {old!r} in the model answer of"
                    f" {self.problem}, expected {expected}: adapt tests/mutants.py"
                )
            source = source.replace(old, new)
        return source


# -- p01 ---------------------------------------------------------------------------------------

_P01_MAX = "tile_max = softmax_scale * scores.amax"
_P01_SHIFT = "torch.add(-new_max, scores, alpha=softmax_scale, out=scores)"
_P01_NO_SCALE = (
    (_P01_MAX, "tile_max = scores.amax"),
    (_P01_SHIFT, "scores.sub_(new_max)"),
)
_P01_OUT = "out[:, q_start:q_stop] = acc / running_sum"
_P01_LSE = "(running_max + running_sum.log()).squeeze(-1)"
_P01_RETURN = "return out.view(q.shape), lse.view(q.shape[:3])"
_P01_HIDDEN = "key[None, :] > query[:, None]"
_P01_MASKED = "k_stop - 1 > q_start"
_P01_K = "k_heads, v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)"
_P01_ALLOCATE = "out = torch.empty(q_heads.shape, dtype=q.dtype, device=q.device)"

_P01 = (
    Mutant(
        "p01",
        "zeros",
        ("online_softmax",),
        ((_P01_RETURN, "return torch.zeros_like(out).view(q.shape), lse.view(q.shape[:3])"),),
        "ZEROS",
    ),
    Mutant("p01", "no scale", ("online_softmax",), _P01_NO_SCALE, "SCALE-MISSING"),
    Mutant(
        "p01",
        "own key hidden",
        ("causal_inputs",),
        ((_P01_HIDDEN, "key[None, :] >= query[:, None]"), (_P01_MASKED, "k_stop - 1 >= q_start")),
        "DIAGONAL-EXCLUDED",
    ),
    Mutant(
        "p01",
        "next key visible",
        ("causal_inputs",),
        (
            (_P01_HIDDEN, "key[None, :] > query[:, None] + 1"),
            ("visible_stop = q_stop\n", "visible_stop = min(q_stop + 1, seqlen_k)\n"),
        ),
        "DIAGONAL-SHIFTED",
    ),
    Mutant(
        "p01",
        "no rescale",
        ("online_softmax",),
        (("torch.exp(running_max - new_max)", "torch.ones_like(new_max)"),),
        "RESCALE-MISSING",
    ),
    Mutant(
        "p01",
        "last tile dropped",
        ("online_softmax",),
        (("range(0, visible_stop, tile_k)", "range(0, visible_stop // tile_k * tile_k, tile_k)"),),
        "LAST-KEY-TILE-DROPPED",
    ),
    Mutant(
        "p01",
        "batch ignored",
        ("batch_heads",),
        (
            (
                _P01_K,
                _P01_K.replace("k.f", "k[:1].expand_as(k).f").replace(
                    "v.f", "v[:1].expand_as(v).f"
                ),
            ),
        ),
        "BATCH-ZERO",
    ),
    Mutant(
        "p01",
        "out with strides of q",
        ("layouts",),
        (
            (
                _P01_RETURN,
                "return torch.empty_like(q).copy_(out.view(q.shape)), lse.view(q.shape[:3])",
            ),
        ),
        caught_as=NOT_DENSE,
    ),
    Mutant(
        "p01",
        "q scaled in place",
        ("one_tile",),
        (*_P01_NO_SCALE, (_P01_ALLOCATE, "q *= softmax_scale\n    " + _P01_ALLOCATE)),
        caught_as=OVERWRITTEN,
    ),
    Mutant("p01", "nan", ("one_tile",), ((_P01_OUT, _P01_OUT + " * math.nan"),)),
)

# -- p02 ---------------------------------------------------------------------------------------

_P02_RETURN = "    return y\n"
_P02_STORE = "tl.store(y_ptr + row_ids, y_tile.to(y_ptr.dtype.element_ty), mask=row_mask)"
_P02_RANGE = "range(0, cols, BLOCK_N)"
_P02_ADD = "acc += x_tile.to(tl.float32) * w_tile.to(tl.float32)[None, :]"
_P02_ALLOCATE = "y = torch.empty(rows, dtype=x.dtype, device=x.device)"

_P02 = (
    Mutant(
        "p02",
        "zeros",
        ("one_block",),
        ((_P02_RETURN, "    return torch.zeros_like(y)\n"),),
        "ROW-SUM-ZEROS",
    ),
    Mutant(
        "p02", "2 percent off", ("one_block",), (("y_tile.to(y_ptr", "(1.02 * y_tile).to(y_ptr"),)
    ),
    Mutant(
        "p02",
        "last tile dropped",
        ("ragged_cols",),
        ((_P02_RANGE, "range(0, cols // BLOCK_N * BLOCK_N, BLOCK_N)"),),
        "LAST-COLUMN-TILE-DROPPED",
    ),
    Mutant(
        "p02",
        "sum kept in 16 bits",
        ("accumulation",),
        (
            ("dtype=tl.float32)", "dtype=x_ptr.dtype.element_ty)"),
            (_P02_ADD, "acc += x_tile * w_tile[None, :]"),
            ("elif cols < 8192:", "elif cols > 0:"),
            ("block_n = min(2048,", "block_n = min(16,"),
        ),
    ),
    Mutant(
        "p02",
        "strides ignored",
        ("layouts",),
        (("x, w, y, rows, cols, x.stride(0), x.stride(1),", "x, w, y, rows, cols, cols, 1,"),),
    ),
    Mutant(
        "p02",
        "x read past the end",
        ("ragged_cols",),
        (
            (
                "tl.load(x_ptrs, mask=tile_mask, other=0.0,",
                "tl.load(x_ptrs, mask=row_mask[:, None], other=0.0,",
            ),
        ),
        caught_as=READ_OUTSIDE,
    ),
    Mutant(
        "p02",
        "y written past the end",
        ("ragged_rows",),
        ((_P02_STORE, _P02_STORE.replace(", mask=row_mask", "")),),
        caught_as=WRITE_OUTSIDE,
    ),
    Mutant(
        "p02",
        "x multiplied in place",
        ("one_block",),
        ((_P02_ALLOCATE, "x *= w\n    w = torch.ones_like(w)\n    " + _P02_ALLOCATE),),
        caught_as=OVERWRITTEN,
    ),
    Mutant(
        "p02",
        "inf",
        ("one_block",),
        ((_P02_STORE, _P02_STORE.replace("y_tile", "(y_tile * float('inf'))")),),
    ),
    Mutant(
        "p02",
        "previous result",
        ("layouts",),
        (
            (_P02_RETURN, "    return _PREVIOUS.setdefault((x.shape, x.dtype), y)\n"),
            ("def weighted_row_sum(", "_PREVIOUS = {}\n\n\ndef weighted_row_sum("),
        ),
    ),
)

# -- p03 to p07 share the lines of the forward kernel --------------------------------------------

_LAUNCH_SCALE = "softmax_scale * LOG2_E,"
_ALLOCATE = "out = torch.empty(q.shape, dtype=q.dtype, device=q.device)"
_RETURN = "    return out, lse\n"
_RESCALE = "rescale = tl.exp2(running_max - new_max)"
_NO_RESCALE = 'rescale = tl.where(running_max == float("-inf"), 0.0, 1.0)'
_OFFSET_K = "k_ptr += batch * stride_kb + kv_head * stride_kh"
_OFFSET_V = "v_ptr += batch * stride_vb + kv_head * stride_vh"
_KV_HEAD = "kv_head = q_head // group_size"
_STORE_OUT = "tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_bounds[:, None])"
_STORE_LSE = "tl.store(lse_ptr + offs_m, lse, mask=in_bounds)"
_LSE = "lse = (running_max + tl.log2(running_sum)) * LN_2"
_DIVIDE = "out = acc / running_sum[:, None]"
_OUT_STRIDES = "*out.stride()[:3],"
_BATCH_IGNORED = (
    (_OFFSET_K, "k_ptr += kv_head * stride_kh"),
    (_OFFSET_V, "v_ptr += kv_head * stride_vh"),
)
_ZEROS = ((_RETURN, "    return torch.zeros_like(out), lse\n"),)
_PREVIOUS = (
    (_RETURN, "    return _PREVIOUS.setdefault((q.shape, q.dtype, k.shape), (out, lse))\n"),
    ("def attention(", "_PREVIOUS = {}\n\n\ndef attention("),
)
_Q_IN_PLACE = (
    (_ALLOCATE, "q.mul_(softmax_scale)\n    " + _ALLOCATE),
    (_LAUNCH_SCALE, "LOG2_E,"),
)

_P03_PADDING = "q, k, v, exists[None, :], running_max"
_P03 = (
    Mutant("p03", "zeros", ("online_softmax",), _ZEROS, "ZEROS"),
    Mutant("p03", "mean of v", ("online_softmax",), ((_LAUNCH_SCALE, "1e-30,"),), "MEAN-VALUE"),
    Mutant("p03", "no scale", ("online_softmax",), ((_LAUNCH_SCALE, "LOG2_E,"),), "SCALE-MISSING"),
    Mutant(
        "p03",
        "padded keys not masked",
        ("key_lengths",),
        ((_P03_PADDING, "q, k, v, None, running_max"),),
        "PADDED-KEYS-COUNTED",
    ),
    Mutant(
        "p03",
        "last tile dropped",
        ("online_softmax",),
        (("if full_end < seqlen_k:", "if full_end > seqlen_k:"),),
        "LAST-KEY-TILE-DROPPED",
    ),
    Mutant("p03", "no rescale", ("online_softmax",), ((_RESCALE, _NO_RESCALE),), "RESCALE-MISSING"),
    Mutant(
        "p03",
        "head 0 for all",
        ("batch_heads",),
        (
            ("k_ptr += batch * stride_kb + head * stride_kh", "k_ptr += batch * stride_kb"),
            ("v_ptr += batch * stride_vb + head * stride_vh", "v_ptr += batch * stride_vb"),
        ),
        "HEADS-ZERO",
    ),
    Mutant(
        "p03",
        "lse in base 2",
        ("online_softmax",),
        ((_LSE, "lse = running_max + tl.log2(running_sum)"),),
        "LSE-BASE-2",
    ),
    Mutant(
        "p03",
        "out like q",
        ("layouts",),
        ((_ALLOCATE, "out = torch.empty_like(q)"),),
        caught_as=NOT_DENSE,
    ),
    Mutant(
        "p03",
        "k read past the end",
        ("key_lengths",),
        (("tl.load(k_ptr + k_offs, mask=exists[:, None], other=0.0)", "tl.load(k_ptr + k_offs)"),),
        caught_as=READ_OUTSIDE,
    ),
    Mutant(
        "p03",
        "out written past the end",
        ("query_lengths",),
        ((_STORE_OUT, _STORE_OUT.replace(", mask=in_bounds[:, None]", "")),),
        caught_as=WRITE_OUTSIDE,
    ),
    Mutant("p03", "q scaled in place", ("one_tile",), _Q_IN_PLACE, caught_as=OVERWRITTEN),
    Mutant(
        "p03",
        "fp32 dot with 10 bits",
        ("precision",),
        (("tl.dot(q, tl.trans(k),", "tl.dot(q.to(tl.float16), tl.trans(k).to(tl.float16),"),),
    ),
    Mutant(
        "p03",
        "fp32 dot in tf32",
        ("precision",),
        (('input_precision="ieee"', 'input_precision="tf32"', 2),),
        needs_cuda="Triton's interpreter computes every fp32 dot in fp32, whatever input_precision",
    ),
)

_P04_VISIBLE = "visible = keys[None, :] <= offs_m[:, None]"
_P04_END = "diagonal_end = tl.minimum(query_start + BLOCK_M, seqlen)"
_OWN_KEY_HIDDEN = ((_P04_VISIBLE, "visible = keys[None, :] < offs_m[:, None]"),)
_NEXT_KEY_VISIBLE = (
    (_P04_VISIBLE, "visible = (keys[None, :] <= offs_m[:, None] + 1) & (keys[None, :] < seqlen)"),
    (_P04_END, "diagonal_end = tl.minimum(query_start + BLOCK_M + 1, seqlen)"),
)
_P04 = (
    Mutant("p04", "zeros", ("lengths",), _ZEROS, "ZEROS"),
    Mutant("p04", "own key hidden", ("lengths",), _OWN_KEY_HIDDEN, "DIAGONAL-EXCLUDED"),
    Mutant("p04", "next key visible", ("lengths",), _NEXT_KEY_VISIBLE, "DIAGONAL-SHIFTED"),
    Mutant(
        "p04",
        "future visible",
        ("lengths",),
        (
            (_P04_VISIBLE, "visible = (keys[None, :] < seqlen) & (offs_m[:, None] >= 0)"),
            (_P04_END, "diagonal_end = seqlen"),
        ),
        "CAUSAL-IGNORED",
    ),
    Mutant(
        "p04",
        "last tile dropped",
        ("full_tiles",),
        (
            (
                _P04_END,
                "diagonal_end = tl.minimum(query_start + BLOCK_M, seqlen // BLOCK_N * BLOCK_N)",
            ),
        ),
        "LAST-KEY-TILE-DROPPED",
    ),
    Mutant(
        "p04",
        "strides of q for out",
        ("layouts",),
        ((_OUT_STRIDES, "*q.stride()[:3],"),),
        caught_as=WRITE_OUTSIDE,
    ),
    Mutant(
        "p04",
        "scaled before the fold too",
        ("lengths",),
        (
            (
                'scores = tl.dot(q, tl.trans(k), input_precision="ieee")',
                'scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2',
            ),
        ),
        "SCALE-TWICE-IN-LOG2",
    ),
    Mutant(
        "p04",
        "k read past the end",
        ("lengths",),
        (('is_even = seqlen % config["BLOCK_N"] == 0', "is_even = True"),),
        caught_as=READ_OUTSIDE,
    ),
    Mutant("p04", "previous result", ("diagonal", "lengths"), _PREVIOUS),
    Mutant(
        "p04",
        "section ignored",
        ("batch_heads",),
        (("tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)", "tl.program_id(0)"),),
    ),
)

_P05 = (
    Mutant("p05", "zeros", ("groups",), _ZEROS, "ZEROS"),
    Mutant(
        "p05",
        "heads interleaved",
        ("groups",),
        ((_KV_HEAD, "kv_head = q_head % (num_q_heads // group_size)"),),
        "HEADS-INTERLEAVED",
    ),
    Mutant(
        "p05",
        "kv head 0 for all",
        ("batch_heads",),
        ((_KV_HEAD, "kv_head = q_head * 0"),),
        "HEADS-ZERO",
    ),
    Mutant(
        "p05",
        "divided by kv heads",
        ("groups",),
        ((_KV_HEAD, "kv_head = q_head // (num_q_heads // group_size)"),),
        "HEADS-DIVIDED-BY-KV-HEADS",
    ),
    Mutant("p05", "batch ignored", ("batch_heads",), _BATCH_IGNORED, "BATCH-ZERO"),
    Mutant(
        "p05",
        "sections left out of the grid",
        ("batch_heads",),
        (("(section, num_tiles, batch * num_q_heads // section)", "(section, num_tiles)"),),
    ),
    Mutant("p05", "own key hidden", ("diagonal",), _OWN_KEY_HIDDEN, "DIAGONAL-EXCLUDED"),
    Mutant("p05", "next key visible", ("diagonal",), _NEXT_KEY_VISIBLE, "DIAGONAL-SHIFTED"),
)

_CLAMP_WINDOW = "window_size = min(window_size, seqlen)\n"
_WINDOW_SMALLER = ((_CLAMP_WINDOW, "window_size = min(window_size, seqlen) - 1\n"),)
_WINDOW_LARGER = ((_CLAMP_WINDOW, "window_size = min(window_size + 1, seqlen)\n"),)
_WINDOW_IGNORED = ((_CLAMP_WINDOW, "window_size = seqlen\n"),)
_P06_VISIBLE = "visible = (keys[None, :] <= queries) & (keys[None, :] > queries - window_size)"
# Rows past the end see what the last row sees; keys past the end stay hidden.
_NEXT_IN_WINDOW = (
    ("(keys[None, :] <= queries)", "(keys[None, :] <= queries + 1) & (keys[None, :] < seqlen)"),
    (
        "end_key = tl.minimum(query_start + BLOCK_M, seqlen)",
        "end_key = tl.minimum(query_start + BLOCK_M + 1, seqlen)",
    ),
)
_EDGE_OR_DIAGONAL = "if (key_start < full_start) | (key_start >= full_end):"
_P06_WALK_DONE = "    # <<< step 4\n"


def _p06_again(begin: str, end: str) -> tuple[str, str]:
    """The edit that folds the key tiles from begin to end, masked, behind the walk."""
    walk = (
        "    running_max, running_sum, acc = _visit_key_tiles(\n"
        f"        q, k_ptr, v_ptr, stride_kn, stride_vn, offs_m, {begin}, {end}, {end}, {end},\n"
        "        seqlen, window_size, running_max, running_sum, acc, scale_log2,\n"
        "        HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,\n"
        "    )  # fmt: skip\n"
    )
    return _P06_WALK_DONE, walk + _P06_WALK_DONE


_P06 = (
    Mutant("p06", "zeros", ("window_edge",), _ZEROS, "ZEROS"),
    Mutant("p06", "window one smaller", ("window_edge",), _WINDOW_SMALLER, "WINDOW-ONE-SMALLER"),
    Mutant("p06", "window one larger", ("window_edge",), _WINDOW_LARGER, "WINDOW-ONE-LARGER"),
    Mutant("p06", "window ignored", ("overlap",), _WINDOW_IGNORED, "WINDOW-IGNORED"),
    Mutant(
        "p06",
        "own key hidden",
        ("overlap",),
        ((_P06_VISIBLE, _P06_VISIBLE.replace("<= queries", "< queries")),),
        "DIAGONAL-EXCLUDED",
    ),
    Mutant("p06", "next key visible", ("overlap",), _NEXT_IN_WINDOW, "DIAGONAL-SHIFTED"),
    Mutant(
        "p06",
        "diagonal tile counted twice",
        ("overlap",),
        (_p06_again("diagonal_start", "full_start"),),
    ),
    Mutant(
        "p06",
        "full tile counted twice",
        ("overlap",),
        (_p06_again("tl.maximum(diagonal_start - BLOCK_N, full_start)", "diagonal_start"),),
    ),
    Mutant(
        "p06",
        "edge tiles not masked",
        ("window_edge",),
        ((_EDGE_OR_DIAGONAL, "if key_start >= full_end:"),),
        "WINDOW-EDGE-UNMASKED",
    ),
    Mutant(
        "p06",
        "v read past the end",
        ("lengths",),
        (("tl.load(v_ptr + v_offs, mask=exists, other=0.0)", "tl.load(v_ptr + v_offs)"),),
        caught_as=READ_OUTSIDE,
    ),
)

_P07_STOP = "stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)"
_P07_SINK_END = "sink_end = tl.minimum(num_sink_tokens, first_key)"
_CLAMP_SINKS = "num_sink_tokens = min(num_sink_tokens, seqlen)\n"

_P07 = (
    Mutant("p07", "zeros", ("sinks",), _ZEROS, "ZEROS"),
    Mutant(
        "p07",
        "one sink fewer",
        ("overlap",),
        ((_CLAMP_SINKS, "num_sink_tokens = max(min(num_sink_tokens, seqlen) - 1, 0)\n"),),
        "SINKS-ONE-FEWER",
    ),
    Mutant(
        "p07",
        "one sink more",
        ("sinks",),
        ((_CLAMP_SINKS, "num_sink_tokens = min(num_sink_tokens + 1, seqlen)\n"),),
        "SINKS-ONE-MORE",
    ),
    Mutant(
        "p07",
        "sinks in window counted twice",
        ("overlap",),
        (
            (_P07_SINK_END, "sink_end = num_sink_tokens"),
            (
                _P07_STOP,
                "stop = tl.where((keys < num_sink_tokens) & (position < first_key), seqlen,"
                " keys + tl.where(position < first_key, 0, window_size))",
            ),
        ),
        "SINKS-COUNTED-TWICE",
    ),
    Mutant(
        "p07",
        "own key hidden",
        ("no_sinks",),
        (("(keys[None, :] <= queries)", "(keys[None, :] < queries)"),),
        "DIAGONAL-EXCLUDED",
    ),
    Mutant(
        "p07",
        "sink tiles not masked",
        ("sinks",),
        (
            (
                "if (position < full_start) |",
                "if ((position >= first_key) & (position < full_start)) |",
            ),
        ),
    ),
    Mutant("p07", "next key visible", ("no_sinks",), _NEXT_IN_WINDOW, "DIAGONAL-SHIFTED"),
    Mutant("p07", "window one smaller", ("no_sinks",), _WINDOW_SMALLER, "WINDOW-ONE-SMALLER"),
    Mutant("p07", "window one larger", ("no_sinks",), _WINDOW_LARGER, "WINDOW-ONE-LARGER"),
)

# -- p08 and p09 share most lines of the backward kernels ----------------------------------------

_DP_T, _DP = "(dp_t - delta[None, :])", "(dp - delta[:, None])"
_SCALE_DQ, _SCALE_DK = "dq *= softmax_scale\n", "dk *= softmax_scale\n"
_DELTA_ROW = "delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)"
_MEMBERS = "for member in range(group_size):"
_HEAD_DELTA = "head_delta_ptr = delta_ptr + q_head * seqlen\n"
_NEW_DV = _HEAD_DELTA + "        dv = tl.zeros_like(dv)\n"
_NEW_DK = _HEAD_DELTA + "        dk = tl.zeros_like(dk)\n"
_STORE_TILE = "tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)"
_STORE_DV = "_store_tile(dv_ptr, key_start, stride_dkn, dv, seqlen, BLOCK_N, HEAD_DIM)"
_RETURN_DQ = "    )  # fmt: skip\n    return dq\n"
_P08_QUERIES = "key_start, seqlen,\n"
_P08_DQ_MASK = (
    'scores = tl.where(offs_n[None, :] <= offs_m[:, None], scores, float("-inf"))\n'
    "        p = tl.exp2(scores - lse"
)
_P08_CALL = "return _GqaAttention.apply(q, k, v, float(softmax_scale))"

_P08 = (
    Mutant(
        "p08", "zeros", ("groups",), ((_P08_CALL, "return (q + k.sum() + v.sum()) * 0.0"),), "ZEROS"
    ),
    Mutant("p08", "delta left out", ("formula",), ((_DP_T, "dp_t"), (_DP, "dp")), "DELTA-MISSING"),
    Mutant("p08", "dq not scaled", ("formula",), ((_SCALE_DQ, "dq *= 1.0\n"),), "DQ-UNSCALED"),
    Mutant("p08", "dk not scaled", ("formula",), ((_SCALE_DK, "dk *= 1.0\n"),), "DK-UNSCALED"),
    Mutant(
        "p08",
        "first head of the group",
        ("groups",),
        ((_MEMBERS, "for member in range(1):"),),
        "GROUP-FIRST-HEAD",
    ),
    Mutant(
        "p08", "dv of the last head", ("groups",), ((_HEAD_DELTA, _NEW_DV),), "GROUP-SUM-MISSING-DV"
    ),
    Mutant(
        "p08",
        "own key hidden in backward",
        ("groups",),
        (
            ("offs_n[:, None] <= offs_m[None, :]", "offs_n[:, None] < offs_m[None, :]"),
            (_P08_DQ_MASK, _P08_DQ_MASK.replace("<=", "<")),
        ),
        "BACKWARD-DIAGONAL-EXCLUDED",
    ),
    Mutant(
        "p08",
        "next key visible",
        ("groups",),
        (
            (
                "offs_n[None, :] <= offs_m[:, None]",
                "offs_n[None, :] <= tl.minimum(offs_m[:, None] + 1, seqlen - 1)",
                2,
            ),
            (_P04_END, "diagonal_end = tl.minimum(query_start + BLOCK_M + 1, seqlen)", 2),
            ("offs_n[:, None] <= offs_m[None, :]", "offs_n[:, None] <= offs_m[None, :] + 1"),
            (_P08_QUERIES, "tl.maximum(key_start - BLOCK_M, 0), seqlen,\n"),
        ),
    ),
    Mutant(
        "p08",
        "last queries dropped",
        ("lengths",),
        (
            (
                _P08_QUERIES,
                "key_start, tl.minimum(seqlen,"
                " tl.maximum(key_start + BLOCK_N, seqlen // BLOCK_M * BLOCK_M)),\n",
            ),
        ),
    ),
    Mutant(
        "p08",
        "heads interleaved",
        ("groups",),
        ((_KV_HEAD, "kv_head = q_head % (num_q_heads // group_size)", 2),),
        "HEADS-INTERLEAVED",
    ),
    Mutant(
        "p08",
        "batch ignored",
        ("batch_heads",),
        tuple((*e, 3) for e in _BATCH_IGNORED),
        "BATCH-ZERO",
    ),
    Mutant(
        "p08",
        "strides of dout ignored",
        ("dout_layouts",),
        (
            (
                "*v.stride()[:3], *dout.stride()[:3],",
                "*v.stride()[:3], *torch.empty(q.shape).stride()[:3],",
                2,
            ),
        ),
    ),
    Mutant(
        "p08",
        "gradient written past the end",
        ("lengths",),
        ((_STORE_TILE, _STORE_TILE.replace(", mask=start + rows[:, None] < seqlen", "")),),
        caught_as=WRITE_OUTSIDE,
    ),
    Mutant(
        "p08",
        "previous dq",
        ("diagonal", "lengths"),
        (
            (
                _RETURN_DQ,
                _RETURN_DQ.replace(
                    "return dq\n",
                    "return _PREVIOUS.setdefault((q.shape, q.dtype, k.shape), dq)\n\n\n"
                    "_PREVIOUS = {}\n",
                ),
            ),
        ),
    ),
)

_P09_WINDOW_PAIR = "is_pair = (offs_n <= offs_m) & (offs_n > offs_m - window_size)"
_P09_SINK_PAIR = "is_pair = (offs_n < num_sink_tokens) & (offs_n <= offs_m - window_size)"
_P09_VISIBLE = "return (offs_n <= offs_m) & (offs_m < stop)"
_P09_HEADS = "tl.range(0, group_size * num_tiles, disable_licm=True)"
_P09_CLAMP_WINDOW = "window_size = min(window_size, q.shape[2])\n"
_P09_CLAMP_SINKS = "num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)\n"
_P09_DSINK = "return -(sink_p * delta).sum((0, 2)).to(sink_logits.dtype)"
_P09_CALL = "return _SinkWindowAttention.apply("
_P09 = (
    Mutant(
        "p09",
        "zeros",
        ("sink_gradients",),
        (
            (
                _P09_CALL,
                "sink = 0.0 if sink_logits is None else sink_logits.sum()\n"
                "    return ((q + k.sum() + v.sum() + sink) * 0.0).to(q.dtype)\n    " + _P09_CALL,
            ),
        ),
        "ZEROS",
    ),
    Mutant(
        "p09",
        "own key hidden",
        ("window_edge",),
        (
            (_P09_WINDOW_PAIR, _P09_WINDOW_PAIR.replace("<= offs_m", "< offs_m")),
            (_P09_VISIBLE, _P09_VISIBLE.replace("<= offs_m", "< offs_m")),
        ),
        "DIAGONAL-EXCLUDED",
    ),
    Mutant(
        "p09",
        "own key hidden for dk and dv",
        ("window_edge",),
        ((_P09_WINDOW_PAIR, _P09_WINDOW_PAIR.replace("<= offs_m", "< offs_m")),),
        "DK-DV-DIAGONAL-EXCLUDED",
    ),
    Mutant(
        "p09",
        "window one smaller for dk and dv",
        ("window_edge",),
        ((_P09_WINDOW_PAIR, _P09_WINDOW_PAIR.replace("- window_size", "- window_size + 1")),),
        "DK-DV-WINDOW-ONE-SMALLER",
    ),
    Mutant(
        "p09",
        "window one larger for dk and dv",
        ("window_edge",),
        ((_P09_WINDOW_PAIR, _P09_WINDOW_PAIR.replace("offs_n > offs_m", "offs_n >= offs_m")),),
    ),
    Mutant(
        "p09",
        "next key visible",
        ("window_edge",),
        (
            (
                _P09_WINDOW_PAIR,
                _P09_WINDOW_PAIR.replace("(offs_n <= offs_m)", "(offs_n <= offs_m + 1)"),
            ),
        ),
    ),
    Mutant(
        "p09",
        "window one smaller",
        ("window_edge",),
        ((_P09_CLAMP_WINDOW, "window_size = min(window_size, q.shape[2]) - 1\n"),),
        "WINDOW-ONE-SMALLER",
    ),
    Mutant(
        "p09",
        "window one larger",
        ("window_edge",),
        ((_P09_CLAMP_WINDOW, "window_size = min(window_size + 1, q.shape[2])\n"),),
        "WINDOW-ONE-LARGER",
    ),
    Mutant(
        "p09",
        "window ignored",
        ("window_edge",),
        ((_P09_CLAMP_WINDOW, "window_size = q.shape[2]\n"),),
    ),
    Mutant(
        "p09",
        "sinks ignored",
        ("sink_gradients",),
        ((_P09_CLAMP_SINKS, "num_sink_tokens = 0\n"),),
        "SINKS-IGNORED",
    ),
    Mutant(
        "p09",
        "one sink fewer",
        ("chunks",),
        (
            (
                _P09_CLAMP_SINKS,
                "num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size) - 1\n",
            ),
        ),
        "SINKS-ONE-FEWER",
    ),
    Mutant(
        "p09",
        "one sink more",
        ("sink_gradients",),
        (
            (
                _P09_CLAMP_SINKS,
                "num_sink_tokens = min(num_sink_tokens + 1, q.shape[2] - window_size)\n",
            ),
        ),
        "SINKS-ONE-MORE",
    ),
    Mutant(
        "p09",
        "sinks in window counted twice",
        ("overlap",),
        ((_P09_SINK_PAIR, "is_pair = (offs_n < num_sink_tokens) & (offs_n <= offs_m)"),),
    ),
    Mutant(
        "p09",
        "sinks without gradient",
        ("sink_gradients",),
        (
            (
                "sink_dk, sink_dv = partial_dk.sum(0), partial_dv.sum(0)",
                "sink_dk, sink_dv = 0.0 * partial_dk.sum(0), 0.0 * partial_dv.sum(0)",
            ),
        ),
        "SINK-KEYS-WITHOUT-GRADIENT",
    ),
    Mutant(
        "p09",
        "dq without sinks",
        ("sink_gradients",),
        (
            (
                "dq = _launch_dq(q, k, v, dout, lse, delta, *ctx.options)",
                "window_size, _, scale = ctx.options\n"
                "        dq = _launch_dq(q, k, v, dout, lse, delta, window_size, 0, scale)",
            ),
        ),
        "DQ-WITHOUT-SINKS",
    ),
    Mutant(
        "p09",
        "first head of the group",
        ("groups",),
        ((_P09_HEADS, _P09_HEADS.replace("group_size * ", "")),),
    ),
    Mutant(
        "p09",
        "dsink zero",
        ("sink_logits",),
        ((_P09_DSINK, "return torch.zeros_like(sink_logits)"),),
        "DSINK-ZERO",
    ),
    Mutant(
        "p09",
        "dsink with wrong sign",
        ("sink_logits",),
        ((_P09_DSINK, _P09_DSINK.replace("-(", "(")),),
        "DSINK-SIGN",
    ),
    Mutant(
        "p09",
        "sink logits ignored",
        ("sink_logits",),
        (("if sink_logits_ptr is not None:", "if sink_logits_ptr is None:"),),
        "SINK-LOGIT-IGNORED",
    ),
)

MUTANTS = (*_P01, *_P02, *_P03, *_P04, *_P05, *_P06, *_P07, *_P08, *_P09)
