"""Lengths are padded to whole tiles; a program takes all heads of a group, the diagonal first."""


@triton.heuristics({"NUM_D": lambda args: args["q"].shape[-1]})
@triton.jit
def _padded_kernel(q, k, v, o, lse, G, N, c, BLOCK: tl.constexpr, NUM_D: tl.constexpr):
    kv = tl.program_id(0).to(tl.int64)
    t = tl.num_programs(1) - 1 - tl.program_id(1)
    i = tl.arange(0, BLOCK)
    d = tl.arange(0, NUM_D)
    square = i[:, None] * NUM_D + d[None, :]
    for g in range(G):
        head = kv * G + g
        qt = tl.load(q + (head * N + t * BLOCK) * NUM_D + square)
        mx = tl.full([BLOCK], float("-inf"), tl.float32)
        sm = tl.zeros([BLOCK], tl.float32)
        ot = tl.zeros([BLOCK, NUM_D], tl.float32)
        # The diagonal first: it shows every row a key.
        for u in range(t, -1, -1):
            kt = tl.load(k + (kv * N + u * BLOCK) * NUM_D + square)
            vt = tl.load(v + (kv * N + u * BLOCK) * NUM_D + square)
            s = tl.dot(qt, tl.trans(kt), input_precision="ieee") * c
            s = tl.where((u == t) & (i[None, :] > i[:, None]), float("-inf"), s)
            peak = tl.maximum(tl.max(s, 1), mx)
            old = tl.exp2(mx - peak)
            e = tl.exp2(s - peak[:, None])
            sm = sm * old + tl.sum(e, 1)
            ot = ot * old[:, None]
            ot += tl.dot(e.to(vt.dtype), vt, input_precision="ieee")
            mx = peak
        tl.store(o + (head * N + t * BLOCK) * NUM_D + square, ot / sm[:, None])
        tl.store(lse + head * N + t * BLOCK + i, (mx + tl.log2(sm)) * 0.6931471805599453)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, hq, n, d = q.shape
    pad = -n % 32
    q, k, v = (torch.nn.functional.pad(t, (0, 0, 0, pad)).contiguous() for t in (q, k, v))
    o = torch.empty_like(q)
    lse = torch.empty((b, hq, n + pad), dtype=torch.float32, device=q.device)
    _padded_kernel[(b * k.shape[1], (n + pad) // 32)](
        q,
        k,
        v,
        o,
        lse,
        hq // k.shape[1],
        n + pad,
        default_scale(softmax_scale, d) * 1.4426950408889634,
        BLOCK=32,
        num_stages=1,
    )
    return o[:, :, :n].contiguous(), lse[..., :n].contiguous()
