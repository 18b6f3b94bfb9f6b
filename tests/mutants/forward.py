"""Mistakes in the lines that the forward kernels of p03 to p07 share.

Over 400 lines: the lines of the kernels and the mistakes in them belong together.
"""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import (
    NO_KERNEL,
    NOT_DENSE,
    NOT_RETURNED,
    NOT_WRITTEN,
    OVERWRITTEN,
    SECOND_CALL,
    WRITE_OUTSIDE,
    WRONG_DTYPE,
    Mutant,
)

LAUNCH_SCALE = "softmax_scale * LOG2_E.value,"
DEFAULT_SCALE = (
    "return 1.0 / math.sqrt(head_dim) if softmax_scale is None else float(softmax_scale)"
)
ALLOCATE = "out = torch.empty(q.shape, dtype=q.dtype, device=q.device)"
RETURN = "    return out, lse\n"
ENTRY = "def attention("
PRODUCTS = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee")'
RESCALE = "rescale = tl.exp2(running_max - "
WEIGHTS = "p = tl.exp2(scores * scale_log2 - "
SUM = "running_sum = running_sum * rescale + tl.sum(p, 1)"
ACC = 'acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")'
NEW_MAX = "new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)"
LSE = "lse = (running_max + tl.log2(running_sum)) * LN_2"
STORE_OUT = "tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)"
LSE_OFFSET = {
    "p03": "lse_ptr += batch_head * seqlen_q\n",
    "p04": "lse_ptr += (batch * num_q_heads + head) * seqlen\n",
    **dict.fromkeys(("p05", "p06", "p07"), "lse_ptr += (batch * num_q_heads + q_head) * seqlen\n"),
}
STORE_LSE = {
    "p03": "    tl.store(lse_ptr + queries, lse, mask=queries < seqlen_q)\n",
    "p04": "    tl.store(lse_ptr + queries, lse, mask=queries < seqlen)\n",
    "p05": "    tl.store(lse_ptr + queries, lse, mask=queries < seqlen)\n",
    "p06": "    tl.store(lse_ptr + offs_m, lse, mask=offs_m < seqlen)\n",
    "p07": "    tl.store(lse_ptr + offs_m, lse, mask=offs_m < seqlen)\n",
}
_NUM_TILES = {
    "p03": 'triton.cdiv(seqlen_q, tiles["BLOCK_M"])',
    "p04": "triton.cdiv(seqlen, block_m)",
    "p05": "triton.cdiv(seqlen, block_m)",
    "p06": 'triton.cdiv(seqlen, tiles["BLOCK_M"])',
    "p07": 'triton.cdiv(seqlen, tiles["BLOCK_M"])',
}
DIVIDE = "out = acc / running_sum[:, None]"
ADVANCE_K = "k_ptr += BLOCK_N * stride_kn\n"
ADVANCE_V = "v_ptr += BLOCK_N * stride_vn\n"
K_OFFS = "k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]"

# In units of the launch: the step of each problem in which the shared lines lie, if in any.
_STEPS = {
    "p03": {"walk": 4, "fold": 4, "acc": 5, "launch": 2},
    "p04": {"walk": 1},
    "p05": {},
    "p06": {"walk": 1},
    "p07": {"walk": 1},
}
_OPTIONS = {
    "p06": "window_size, ",
    "p07": "window_size, num_sink_tokens, ",
}
_IN_WINDOW = {
    "p03": "torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)",
    "p04": "keys <= rows",
    "p05": "keys <= rows",
    "p06": "(keys <= rows) & (keys > rows - window_size)",
    "p07": "(keys <= rows) & ((keys > rows - window_size) | (keys < num_sink_tokens))",
}
_NAIVE = """\
rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    group = q.shape[1] // k.shape[1]
    scores = softmax_scale * q.float() @ k.float().repeat_interleave(group, 1).mT
    scores = scores.masked_fill(~({visible}), float("-inf"))
    p = scores.softmax(-1) @ v.float().repeat_interleave(group, 1)
    return p.to(q.dtype), scores.logsumexp(-1)
    """


def kept(key: str) -> tuple[tuple[str, str], ...]:
    """Edits that keep a result and return it for every later call with the same key."""
    return (
        (RETURN, f"    return _KEPT.setdefault({key}, (out, lse))\n"),
        (ENTRY, f"_KEPT = {{}}\n\n\n{ENTRY}"),
    )


def old_maximum_replaced(problem: str) -> tuple[str, str] | None:
    """The edit by which the walk of a problem, if it is a step there, folds without a rescale."""
    subtracted = {"p04": "new_max", "p06": "safe_max", "p07": "safe_max"}.get(problem)
    if subtracted is None:
        return None
    call = "= add_tile(scores, v, {}, " + subtracted
    return call.format("running_max"), call.format(subtracted)


def work_not_done(problem: str) -> tuple[Mutant, ...]:
    """What must earn nothing."""
    mutant = partial(Mutant, problem, checks=("plain",), earns_nothing=True)
    naive = _NAIVE.format(visible=_IN_WINDOW[problem])
    options = f"(q.shape, k.shape, q.dtype, softmax_scale, {_OPTIONS.get(problem, '')})"
    return (
        Mutant(problem, 'zeros', ('plain', 'lse'), ((RETURN, '    return torch.zeros_like(out), torch.zeros_like(lse)\n'),), 'ZEROS', earns_nothing=True),
        mutant(name='zeros above 300', edits=((RETURN, '    if max(q.shape[2], k.shape[2]) > 300:\n        out, lse = torch.zeros_like(out), torch.zeros_like(lse)\n' + RETURN),), earns_nothing=False),
        mutant(name="no kernel", edits=((ALLOCATE, naive + ALLOCATE),), caught_as=NO_KERNEL),
        mutant(name='kept by shape', edits=kept('(q.shape, k.shape, q.dtype)'), caught_as=SECOND_CALL),
        mutant(name="kept by address", edits=kept("q.data_ptr()"), caught_as=SECOND_CALL),
        mutant(name="kept by shape dtype and options", edits=kept(options), caught_as=SECOND_CALL),
    )


def wrong_lse(problem: str) -> tuple[Mutant, ...]:
    """Mistakes in lse alone."""
    mutant = partial(Mutant, problem, checks=("lse",), keeps=0.6)
    step = _STEPS[problem].get("finish")
    allocated = "dtype=torch.float32, device=q.device)"
    return (
        mutant(name='lse in base 2', edits=((LSE, 'lse = running_max + tl.log2(running_sum)'),), expected_id='LSE-BASE-2', step=step),
        mutant(name='lse with its units mixed', edits=((LSE, 'lse = running_max + tl.log(running_sum)'),), expected_id='LSE-UNITS-MIXED', step=step),
        mutant(name='lse of a natural log scaled', edits=((LSE, 'lse = (running_max + tl.log(running_sum)) * LN_2'),), expected_id='LSE-LOG-SCALED', step=step),
        mutant(name='lse without max', edits=((LSE, 'lse = tl.log(running_sum)'),), expected_id='LSE-WITHOUT-MAX', step=step),
        mutant(name='lse without sum', edits=((LSE, 'lse = running_max * LN_2'),), expected_id='LSE-WITHOUT-SUM', step=step),
        mutant(name="lse not written", edits=((STORE_LSE[problem], ""),), caught_as=NOT_WRITTEN),
        mutant(name='lse not returned', edits=((RETURN, '    return out\n'),), caught_as=NOT_RETURNED),
        Mutant(problem, 'lse of the dtype of q', ('half_lse',), ((allocated, allocated.replace('torch.float32', 'q.dtype')),), caught_as=WRONG_DTYPE, keeps=0.6),
    )


def wrong_fold(problem: str) -> tuple[Mutant, ...]:
    """Mistakes in products, scale and online softmax."""
    mutant = partial(Mutant, problem, checks=("plain",))
    steps = _STEPS[problem]
    launch, fold = steps.get("launch"), steps.get("fold")
    unseen = 'tl.where(running_max == float("-inf"), 0.0, 1.0)'
    return (
        mutant(name='no scale', edits=((LAUNCH_SCALE, 'LOG2_E.value,'),), expected_id='SCALE-MISSING'),
        mutant(name='log2e forgotten', edits=((LAUNCH_SCALE, 'softmax_scale,'),), expected_id='EXP2-WITHOUT-LOG2E', step=launch),
        mutant(name='exp of scores in log2', edits=((RESCALE, RESCALE.replace('exp2', 'exp')), (WEIGHTS, WEIGHTS.replace('exp2', 'exp'))), expected_id='EXP-WITH-LOG2E', step=fold),
        mutant(name='scaled before the fold too', edits=((PRODUCTS, PRODUCTS + ' * scale_log2'),), expected_id='SCALE-TWICE-IN-LOG2', step=steps.get('walk')),
        mutant(name='scaled again inside exp2', edits=((PRODUCTS, PRODUCTS + ' * scale_log2'), (NEW_MAX, NEW_MAX.replace(' * scale_log2', '')), (WEIGHTS, 'p = tl.exp2(scale_log2 * scores - scale_log2 * ')), expected_id='SCALE-AGAIN-IN-WEIGHTS'),
        mutant(name='weights not scaled', edits=((WEIGHTS, 'p = tl.exp2(scores - '),), expected_id='WEIGHTS-OF-RAW-SCORES'),
        Mutant(problem, 'softmax_scale ignored', ('scale',), ((DEFAULT_SCALE, 'return 1.0 / math.sqrt(head_dim)'),), 'SCALE-OPTION-IGNORED', keeps=0.6),
        mutant(name='no rescale', edits=(old_maximum_replaced(problem) or (RESCALE + 'new_max)', f'rescale = {unseen}'),), expected_id='RESCALE-MISSING', step=fold or (steps.get('walk') if old_maximum_replaced(problem) else None)),
        mutant(name='acc not rescaled', edits=((ACC, ACC.replace('acc * rescale[:, None]', 'acc')),), expected_id='RESCALE-ACC-MISSING', step=steps.get('acc')),
        mutant(name='acc rescaled after the tile was added', edits=((ACC, ACC.replace(' * rescale[:, None]', '') + ' * rescale[:, None]'),), expected_id='RESCALE-ACC-LATE'),
        mutant(name='sum not rescaled', edits=((SUM, SUM.replace(' * rescale', '')),), expected_id='RESCALE-SUM-MISSING', step=fold),
        mutant(name='sum rescaled after the tile was added', edits=((SUM, SUM.replace('running_sum * rescale +', '(running_sum +') + ') * rescale'),), expected_id='RESCALE-SUM-LATE'),
        mutant(name='acc overwritten', edits=((ACC, ACC.replace('acc * rescale[:, None], ', '')),), expected_id='ACC-OVERWRITTEN', step=steps.get('acc')),
        mutant(name='running max forgotten', edits=(('running_max = new_max\n', 'running_max += 0.0\n'),), expected_id='RUNNING-MAX-FORGOTTEN', step=fold or steps.get('walk')),
        mutant(name='sum along the wrong axis', edits=((SUM, SUM.replace('(p, 1)', '(p, 0)')),)),
        mutant(name='not divided', edits=((DIVIDE, 'out = acc'),), expected_id='NOT-NORMALISED', step=steps.get('finish')),
        Mutant(problem, 'weights not cast for v', ('half',), ((ACC, ACC.replace('p.to(v.dtype)', 'p')),), caught_as='same dtype', keeps=0.6),
        Mutant(problem, 'fp32 operands cast to fp16', ('ieee',), ((PRODUCTS, PRODUCTS.replace('(q, tl.trans(k),', '(q.to(tl.float16), tl.trans(k).to(tl.float16),')), (ACC, ACC.replace('(p.to(v.dtype), v,', '(p.to(tl.float16), v.to(tl.float16),'))), keeps=0.6),
        Mutant(problem, 'fp32 dots in tf32', ('ieee',), ((PRODUCTS, PRODUCTS.replace('ieee', 'tf32')), (ACC, ACC.replace('ieee', 'tf32'))), caught_as='this tl.dot rounds its fp32 operands to TF32', keeps=0.6),
    )


def _wrong_pointers(problem: str) -> tuple[Mutant, ...]:
    """Mistakes in how K and V are walked."""
    mutant = partial(Mutant, problem, checks=("plain",))
    k, v = ADVANCE_K, ADVANCE_V
    if problem == "p03":
        k, v = k.replace("stride_kn", "k_strides[2]"), v.replace("stride_vn", "v_strides[2]")
    stopped = {k: "k_ptr += 0\n", v: "v_ptr += 0\n"}
    no_stride = {step: step.partition(" * ")[0] + "\n" for step in (k, v)}
    if problem in ("p06", "p07"):  # each tile is loaded from its first key on
        first = "first_key" if problem == "p06" else "begin"
        k, v = "load_tile(k_ptr, key_start, stride_kn,", "load_tile(v_ptr, key_start, stride_vn,"
        stopped = {load: load.replace("key_start", first) for load in (k, v)}
        no_stride = {
            k: k.replace("(k_ptr,", "(k_ptr + key_start - key_start * stride_kn,"),
            v: v.replace("(v_ptr,", "(v_ptr + key_start - key_start * stride_vn,"),
        }
    by_stride_of_k = ()
    if problem not in ("p06", "p07"):
        own = "stride_vn" if problem != "p03" else "v_strides[2]"
        edit = v, v.replace(own, own.replace("v", "k"))
        by_stride_of_k = (
            Mutant(problem, "v advanced by the stride of k", ("layouts",), (edit,), keeps=0.6),
        )
    return (
        *by_stride_of_k,
        mutant(name="k not advanced", edits=((k, stopped[k]),)),
        mutant(name="v not advanced", edits=((v, stopped[v]),)),
        mutant(name="k advanced without its stride", edits=((k, no_stride[k]),)),
        mutant(name="v advanced without its stride", edits=((v, no_stride[v]),)),
        mutant(name="k and v not advanced", edits=((k, stopped[k]), (v, stopped[v]))),
    )


def wrong_memory(problem: str) -> tuple[Mutant, ...]:
    """Mistakes in grid, pointers, strides and outputs."""
    mutant = partial(Mutant, problem)
    rounded_up, store_lse = _NUM_TILES[problem], STORE_LSE[problem]
    length = "seqlen_q" if problem == "p03" else "seqlen"
    whole_tiles = LSE_OFFSET[problem].replace(
        f"{length}\n", f"tl.cdiv({length}, BLOCK_M) * BLOCK_M\n"
    )
    rows_of_k = (K_OFFS, K_OFFS.replace("stride_kn", "HEAD_DIM"))
    if problem == "p03":
        rows_of_k = (
            "k_offs = offs_n[:, None] * k_strides[2]",
            "k_offs = offs_n[:, None] * HEAD_DIM",
        )
    elif problem in ("p06", "p07"):
        rows_of_k = ("key_start, stride_kn,", "key_start, HEAD_DIM,")
    start = ("tl.program_id(1)) * BLOCK_M", "tl.program_id(1))")
    if problem == "p03":
        start = ("% num_query_tiles * BLOCK_M", "% num_query_tiles")
    elif problem == "p04":
        start = ("query_tile * BLOCK_M", "query_tile")
    return (
        *(_wrong_pointers(problem) if problem != "p07" else ()),
        mutant("block size forgotten", ("plain",), (start,), caught_as=NOT_WRITTEN),
        mutant('wrong axis of the grid', ('plain',), (('tl.program_id(0) % num_query_tiles', 'tl.program_id(1) % num_query_tiles') if problem == 'p03' else (' - 1 - tl.program_id(1)', ' - 1 - tl.program_id(0)'),), caught_as=NOT_WRITTEN),
        mutant('grid rounded down', ('ragged',), ((rounded_up, rounded_up.replace('triton.cdiv(', '(').replace(', ', ' // ')),), caught_as=NOT_WRITTEN, keeps=0.6),
        mutant('out written past the end', ('ragged',), ((STORE_OUT, STORE_OUT.partition(', mask=')[0] + ')'),), caught_as=WRITE_OUTSIDE, keeps=0.6),
        mutant('lse written past the end', ('ragged',), ((store_lse, store_lse.partition(', mask=')[0] + ')\n'),), caught_as=WRITE_OUTSIDE, keeps=0.6),
        mutant('strides of k for v', ('layouts',), (('v.stride()[:3]', 'k.stride()[:3]'),), keeps=0.6),
        mutant('strides of q for out', ('layouts',), (('out.stride()[:3]', 'q.stride()[:3]'),), caught_as=WRITE_OUTSIDE, keeps=0.6),
        mutant('rows of k taken to be dense', ('layouts',), (rows_of_k,), keeps=0.6),
        mutant('out like q', ('layouts',), ((ALLOCATE, 'out = torch.empty_like(q)'),), caught_as=NOT_DENSE, keeps=0.6),
        mutant('out in fp32', ('half',), ((ALLOCATE, ALLOCATE.replace('q.dtype', 'torch.float32')),), caught_as=WRONG_DTYPE, keeps=0.6),
        mutant('lse of whole tiles', ('lse_lengths',), ((LSE_OFFSET[problem], whole_tiles),), caught_as=WRITE_OUTSIDE, keeps=0.6),
        mutant('q scaled in place', ('arguments',), ((ALLOCATE, 'q.mul_(softmax_scale)\n    ' + ALLOCATE), (LAUNCH_SCALE, 'LOG2_E.value,')), caught_as=OVERWRITTEN),
    )


def everywhere(problem: str) -> tuple[Mutant, ...]:
    """All mistakes that can be made in each of p03 to p07."""
    return (
        *work_not_done(problem),
        *wrong_lse(problem),
        *wrong_fold(problem),
        *wrong_memory(problem),
    )
