"""Right answers to p02 and p04 that were written into the stub apart from each other.

What near-identical submissions are told from: honest answers to short steps with given names.
"""

from grader.source.steps import step_regions
from grader.spec.problem import load_problem

P02 = (
    (
        "    x_tile = tl.load(x_ptrs, mask=tile_mask, other=0.0, eviction_policy=X_EVICTION)\n"
        "    w_tile = tl.load(w_ptrs, mask=col_mask, other=0.0)",
        "    row_ids = row_ids + tl.program_id(0) * BLOCK_M",
        "    row_mask = row_ids < rows",
        "        col_mask = col_ids < cols",
        "        x_ptrs = x_ptr + row_ids[:, None] * stride_xm + col_ids[None, :] * stride_xn\n"
        "        w_ptrs = w_ptr + col_ids * stride_wn",
        "        products = x_tile.to(tl.float32) * w_tile[None, :].to(tl.float32)",
    ),
    (
        "    x_tile = tl.load(x_ptrs, tile_mask, 0.0)\n    w_tile = tl.load(w_ptrs, col_mask, 0.0)",
        "    pid = tl.program_id(0).to(tl.int64)\n"
        "    row_ids = pid * BLOCK_M + tl.arange(0, BLOCK_M)",
        "    row_mask = row_ids < rows",
        "        col_mask = col_ids < cols",
        "        x_ptrs = x_ptr + (row_ids[:, None] * stride_xm + col_ids[None, :] * stride_xn)\n"
        "        w_ptrs = w_ptr + stride_wn * col_ids",
        "        products = x_tile.to(tl.float32) * w_tile.to(tl.float32)[None, :]",
    ),
    (
        "    x_tile = tl.load(x_ptrs, mask=tile_mask, other=0)\n"
        "    w_tile = tl.load(w_ptrs, mask=col_mask, other=0)",
        "    row_ids += tl.program_id(axis=0) * BLOCK_M",
        "    row_mask = rows > row_ids",
        "        col_mask = cols > col_ids",
        "        x_ptrs = x_ptr + stride_xm * row_ids[:, None] + stride_xn * col_ids[None, :]\n"
        "        w_ptrs = w_ptr + stride_wn * col_ids",
        "        w32 = w_tile.to(tl.float32)\n"
        "        products = x_tile.to(tl.float32) * w32[None, :]",
    ),
)
P04 = (
    (
        """
    for start in range(0, end_key, BLOCK_N):
        key_ids = start + offs_n
        k_tile = load_keys(k_ptr + start * stride_kn + k_offs, key_ids, seqlen, IS_EVEN)
        v_tile = load_keys(v_ptr + start * stride_vn + v_offs, key_ids, seqlen, IS_EVEN)
        s = tl.dot(q, tl.trans(k_tile), input_precision="ieee")
        if start >= full_end:
            s = tl.where(key_ids[None, :] <= queries[:, None], s, float("-inf"))
        m_new = tl.maximum(running_max, tl.max(s, axis=1) * scale_log2)
        running_sum, acc = add_tile(s, v_tile, running_max, m_new, running_sum, acc, scale_log2)
        running_max = m_new
""",
        """
    full_end = (query_start // BLOCK_N) * BLOCK_N
    end_key = min(query_start + BLOCK_M, seqlen)
""",
    ),
    (
        """
    # walk over the tiles
    num_tiles = tl.cdiv(end_key, BLOCK_N)
    for i in range(num_tiles):
        cols = i * BLOCK_N + offs_n
        k = load_keys(k_ptr + k_offs, cols, seqlen, IS_EVEN)
        qk = tl.dot(q, k.T, input_precision="ieee")
        if i * BLOCK_N >= full_end:
            mask = queries[:, None] >= cols[None, :]
            qk = tl.where(mask, qk, -float("inf"))
        row_max = tl.max(qk, 1) * scale_log2
        next_max = tl.maximum(row_max, running_max)
        v = load_keys(v_ptr + v_offs, cols, seqlen, IS_EVEN)
        running_sum, acc = add_tile(qk, v, running_max, next_max, running_sum, acc, scale_log2)
        running_max = next_max
        k_ptr = k_ptr + stride_kn * BLOCK_N
        v_ptr = v_ptr + stride_vn * BLOCK_N
""",
        """
    full_end = query_start - query_start % BLOCK_N
    end_key = tl.minimum(seqlen, query_start + BLOCK_M)
""",
    ),
    (
        """
    for key_start in range(0, full_end, BLOCK_N):
        keys = key_start + offs_n
        k = load_keys(k_ptr + key_start * stride_kn + k_offs, keys, seqlen, IS_EVEN)
        v = load_keys(v_ptr + key_start * stride_vn + v_offs, keys, seqlen, IS_EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        old_max = running_max
        running_max = tl.maximum(old_max, tl.max(scores, 1) * scale_log2)
        running_sum, acc = add_tile(scores, v, old_max, running_max, running_sum, acc, scale_log2)
    for key_start in range(full_end, end_key, BLOCK_N):
        keys = key_start + offs_n
        k = load_keys(k_ptr + key_start * stride_kn + k_offs, keys, seqlen, IS_EVEN)
        v = load_keys(v_ptr + key_start * stride_vn + v_offs, keys, seqlen, IS_EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(keys[None, :] <= queries[:, None], scores, float("-inf"))
        old_max = running_max
        running_max = tl.maximum(old_max, tl.max(scores, 1) * scale_log2)
        running_sum, acc = add_tile(scores, v, old_max, running_max, running_sum, acc, scale_log2)
""",
        """
    full_end = query_start // BLOCK_N * BLOCK_N
    end_key = query_start + BLOCK_M
    if end_key > seqlen:
        end_key = seqlen
""",
    ),
    (
        """
    key_start = 0
    while key_start < end_key:
        current = key_start + offs_n
        kt = load_keys(k_ptr + k_offs, current, seqlen, IS_EVEN)
        vt = load_keys(v_ptr + v_offs, current, seqlen, IS_EVEN)
        scores = tl.dot(q, tl.trans(kt), input_precision="ieee")
        needs_mask = key_start + BLOCK_N > full_end
        if needs_mask:
            allowed = current[None, :] <= queries[:, None]
            scores = tl.where(allowed, scores, float("-inf"))
        best = tl.max(scores, axis=1) * scale_log2
        new_max = tl.where(best > running_max, best, running_max)
        running_sum, acc = add_tile(scores, vt, running_max, new_max, running_sum, acc, scale_log2)
        running_max = new_max
        k_ptr += stride_kn * BLOCK_N
        v_ptr += stride_vn * BLOCK_N
        key_start += BLOCK_N
""",
        """
    full_end = (query_start // BLOCK_N) * BLOCK_N
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
""",
    ),
)


def written_apart(problem_id: str) -> list[str]:
    """Return whole files: the stub with its steps filled in."""
    problem = load_problem(problem_id)
    stub = (problem.folder / problem.file).read_text(encoding="utf-8")
    return [_filled(stub, steps) for steps in {"p02": P02, "p04": P04}[problem_id]]


def _filled(stub: str, steps: tuple[str, ...]) -> str:
    lines = stub.split("\n")
    regions = sorted(step_regions(stub).items(), reverse=True)
    for (_, (first, last)), step in zip(regions, reversed(steps), strict=True):
        lines[first : last - 1] = step.strip("\n").split("\n")
    return "\n".join(lines)
