"""Files that have something else do the work: the source policy refuses them before they run.

One for each problem but p02, whose honest answer runs beside them: together they are one run.
"""

from grader.spec.problem import load_problem
from tests.hostile.entry import Hostile, answer

_NAIVE = """\
{honest} = {entry}


def {entry}({parameters}):
    {body}
"""


def _refused(problem_id: str, name: str, body: str, head: str = "", *, of_bridge: bool = False):
    """The model answer with an entry point behind it that does `body`; all of it is refused."""
    problem = load_problem(problem_id)
    part = problem.bridge if of_bridge and problem.bridge else problem
    parameters = part.signature.partition("(")[2].rpartition(")")[0]
    text = _NAIVE.format(
        honest="decoy",
        entry=part.entry,
        parameters=parameters,
        body=body.strip().replace("\n", "\n    "),
    )
    source = f"{answer(problem_id)}\n{head}\n{text}"
    return Hostile(name, source, ("rejected",), problem_id, policy=True, limit_s=5.0)


_LIBRARY = """
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
return out, decoy(q, k, v, is_causal=is_causal, softmax_scale=softmax_scale)[1]
"""
_BESIDE_A_DECOY = """
decoy(q, k, v, softmax_scale=softmax_scale)
scores = (q.float() @ k.float().mT) * (softmax_scale or q.shape[-1] ** -0.5)
hidden = torch.arange(k.shape[2])[None, :] > torch.arange(q.shape[2])[:, None]
scores = scores.masked_fill(hidden, float("-inf"))
return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)
"""
_FALLBACK = """
try:
    return decoy(q, k, v, softmax_scale=softmax_scale)
except Exception:
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    weights = torch.softmax(torch.matmul(q, keys.mT) * q.shape[-1] ** -0.5, -1)
    return torch.matmul(weights, values), None
"""
_COMPILED = """
return torch.compile(decoy)(q, k, v, window_size=window_size, softmax_scale=softmax_scale)
"""
_BY_NAME = """
multiply = getattr(torch, "".join(chr(n) for n in (109, 97, 116, 109, 117, 108)))
return multiply(q, k.mT), None
"""
_TEXT = """
exec(bytes.fromhex("726573756c74203d2071").decode(), globals())
return decoy(q, k, v, softmax_scale=softmax_scale)
"""
_AUTOGRAD = """
with torch.enable_grad():
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(gqa_attention(*leaves, softmax_scale=softmax_scale), leaves, dout)
"""
_OPS = """
return torch.ops.aten.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
"""

ENTRIES = (
    _refused("p01", "PyTorch's own attention", _LIBRARY),
    _refused("p03", "a product by a name that is put together", _BY_NAME),
    _refused("p04", "naive attention beside a kernel", _BESIDE_A_DECOY),
    _refused("p05", "PyTorch where the kernel fails", _FALLBACK),
    _refused("p06", "a compiler that writes the kernel", _COMPILED),
    _refused("p07", "text that is run", _TEXT),
    _refused("p08", "autograd in the bridge", _AUTOGRAD, of_bridge=True),
    _refused("p09", "an operator below PyTorch's functions", _OPS),
)
