"""The judge's eyes shut by PyTorch's own means, files by its methods, and faults of the tracer.

Of those at which the tracer would fail all are right: they have all points, and nothing is the
judge's fault, which would cost none where work is lost.
"""

from tests.hostile.entry import Hostile, answer
from tests.hostile.hidden import hidden

_SCRIPT = '''
import math

import torch

from given.arguments import check_attention, check_tile_sizes, default_scale

UNIT = torch.CompilationUnit()
UNIT.define("""
def attend(q, k, v, scale: float, causal: bool):
    return torch._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
""")
KEYS = torch.DispatchKeySet(torch.DispatchKey.Python)


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    with torch.ExcludeDispatchKeyGuard(KEYS):
        return UNIT.attend(q, k, v, default_scale(softmax_scale, q.shape[3]), is_causal)
'''
_ITEMS = """
def values(x):
    with torch.inference_mode():
        found = [v.item() for v in x.float().reshape(-1)[:4096]]
    c = x.shape[-1]
    rows = [found[i : i + c] for i in range(0, len(found), c)]
    return rows if x.dim() == 2 else rows[0]
"""
_ROUNDED = """
def product(x, w):
    with torch.inference_mode():
        for _ in range(40):
            x.double().to(torch.int32)
    return x[:, 0]
"""
_COMPLEX = """
def product(x, w):
    z = torch.view_as_complex(torch.stack((x.float(), x.float()), -1)[: len(x) // 5 + 1])
    return torch.view_as_real(z * z)[:, 0, 0].repeat(5)[: len(x)]
"""
_PLACES = """
def product(x, w):
    y = x.float()
    for n in range(40):
        torch.Tensor.nonzero_static(y > n, size=4)
    return x[:, 0]
"""
_PRODUCT = "product(x, w)"

_AFTER = """


{made}


@triton.jit
def nothing(x, odd):
    pass


_honest = weighted_row_sum


def weighted_row_sum(x, w):
    y = _honest(x, w)
    try:
        nothing[(1,)](y, 3 if torch.cuda.is_available() else ODD)
    except Exception:
        nothing[(1,)](y, 3)
    return y
"""
_OBJECT = """
class Odd:
    @property
    def base(self):
        return 1 // 0


ODD = Odd()
"""
_ROW = """
from typing import NamedTuple


class Odd(NamedTuple):
    x: int = 1

    def __iter__(self):
        return 1 // 0


ODD = Odd()
"""
_ENDLESS = """

@triton.jit
def touch(odd):
    tl.load(odd)


_honest = weighted_row_sum


def weighted_row_sum(x, w):
    y = _honest(x, w)
    touch[(1,)](torch.ones(1, device=x.device).expand(200000, 1000, *x.shape))
    return y
"""
_WARNED = _ENDLESS.replace("def touch", "def warned").replace(
    "touch[(1,)](torch.ones(1, device=x.device).expand(200000, 1000, *x.shape))",
    'warnings.simplefilter("error")\n'
    '    odd = torch.full((1, 2, *x.shape), float("inf"), device=x.device)\n'
    "    warned[(1,)](odd)",
)


def _fault(name: str, made: str) -> Hostile:
    source = answer("p02").replace("import torch", "import warnings\n\nimport torch", 1)
    source += _AFTER.format(made=made) if "ODD" in made else made
    return Hostile(name, source, ("pass",), "p02", points=7.0, policy=True, slow=True)


def _of_p01(name: str, source: str, *, slow: bool = False) -> Hostile:
    return Hostile(name, source, ("rejected",), "p01", policy=True, slow=slow)


def _slow(name: str, body: str, sums: str = _PRODUCT) -> Hostile:
    return hidden(name, body, sums, slow=True)


ENTRIES = (
    _of_p01("attention as a script, where no mode is on", _SCRIPT),
    _slow("numbers in inference mode", _ITEMS, "by_python(values(x), values(w))"),
    _slow("conversions in inference mode", _ROUNDED),
    _slow("complex numbers as one each", _COMPLEX),
    _slow("places of what is true", _PLACES),
    _fault("an argument whose attribute fails", _OBJECT),
    _fault("a row of arguments whose items fail", _ROW),
    _fault("an argument without addresses", "ODD = torch.zeros(2).to_sparse()"),
    _fault("an argument larger than memory", _ENDLESS),
    _fault("warnings that are errors", _WARNED),
)
