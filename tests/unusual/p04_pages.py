"""Keys and values are copied into pages, last page first, and a table leads to them."""

PAGE_SIZE = 32


def write_cache(x, table):
    """(b, h, n, d) -> (num_pages, page, h, d), the pages of all sequences shuffled by table"""
    b, h, n, d = x.shape
    pages = triton.cdiv(n, PAGE_SIZE)
    padded = x.new_zeros(b, pages * PAGE_SIZE, h, d)
    padded[:, :n] = x.permute(0, 2, 1, 3)
    cache = torch.empty((b * pages, PAGE_SIZE, h, d), dtype=x.dtype, device=x.device)
    cache[table.flatten().long()] = padded.view(b * pages, PAGE_SIZE, h, d)
    return cache


@triton.jit
def cdiv_fn(x, y):
    return (x + y - 1) // y


@triton.jit
def paged_prefill(
    Q, Kc, Vc, Out, Lse, Table, seqlens, scale, H, qs_b, qs_h, qs_t, cs_page, cs_tok, cs_head, ts_b,
    os_b, os_h, os_t, ls_b, ls_h, D: tl.constexpr, BLOCK_M: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    b, h, m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.load(seqlens + b)
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * qs_b + h * qs_h + rows[:, None] * qs_t + d[None, :],
        mask=rows[:, None] < n,
        other=0.0,
    )
    M = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    L = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    last = tl.minimum((m + 1) * BLOCK_M, n)
    for j in range(0, cdiv_fn(last, PAGE)):
        page = tl.load(Table + b * ts_b + j).to(tl.int64)
        t = tl.arange(0, PAGE)
        K = tl.load(Kc + page * cs_page + t[None, :] * cs_tok + h * cs_head + d[:, None])
        V = tl.load(Vc + page * cs_page + t[:, None] * cs_tok + h * cs_head + d[None, :])
        S = scale * tl.dot(q, K, input_precision="ieee")
        pos = j * PAGE + t
        S = tl.where(pos[None, :] <= rows[:, None], S, float("-inf"))
        m_j = tl.maximum(M, tl.max(S, axis=1))
        m_j = tl.where(m_j > float("-inf"), m_j, 0.0)
        P = tl.exp(S - m_j[:, None])
        alpha = tl.exp(M - m_j)
        acc = acc * alpha[:, None]
        L = L * alpha + tl.sum(P, axis=1)
        M = m_j
        acc += tl.dot(P.to(V.dtype), V, input_precision="ieee")
    acc = acc / L[:, None]
    tl.store(
        Out + b * os_b + h * os_h + rows[:, None] * os_t + d[None, :], acc, mask=rows[:, None] < n
    )
    tl.store(Lse + b * ls_b + h * ls_h + rows, M + tl.log(L), mask=rows < n)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    pages = triton.cdiv(n, PAGE_SIZE)
    # last page first: any permutation would do
    table = torch.arange(b * pages - 1, -1, -1, dtype=torch.int32, device=q.device).view(b, pages)
    kc, vc = write_cache(k, table), write_cache(v, table)
    lens = torch.full((b,), n, dtype=torch.int32, device=q.device)
    out = torch.empty((b, h, n, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    paged_prefill[(b, h, triton.cdiv(n, 64))](
        q, kc, vc, out, lse, table, lens, default_scale(softmax_scale, d), h, *q.stride()[:3],
        *kc.stride()[:3], table.stride(0), *out.stride()[:3], *lse.stride()[:2],
        D=d, BLOCK_M=64, PAGE=PAGE_SIZE, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, lse
