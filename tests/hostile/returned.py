"""Tricks with what is returned: wrong kinds of value, wrong numbers, memory that is not its own."""

from tests.hostile.entry import Trick

_OUT = "out, lse = honest(q, k, v, **options)\n"
_FAIL = ("fail",)
_PASS = ("pass",)


def _returns(name: str, value: str, *verdicts: str, lines: str = "") -> Trick:
    return Trick(name, f"{_OUT}{lines}return {value}", verdicts or ("error",))


# Takes part in every operation on it, and says that all is well.
_SUBCLASS = """\
class Liar(torch.Tensor):
    shape = property(lambda this: q.shape)
    dtype = property(lambda this: q.dtype)
    device = property(lambda this: q.device)
    layout = property(lambda this: torch.strided)
    is_contiguous = lambda this: True
    detach = lambda this: this
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return args[0]
"""
_DISPATCHED = """\
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return next((a for a in args if not isinstance(a, cls)), args[0])
"""
_CLOSED_MAP = """\
memory = mmap.mmap(-1, 2**20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
out = torch.frombuffer(memory, dtype=q.dtype, count=q.numel()).view(q.shape)
libc = ctypes.CDLL(None)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.munmap(address, 2**20)
"""
_TRUNCATED_FILE = """\
file = open(own("values"), "w+b")
file.truncate(2**20)
memory = mmap.mmap(file.fileno(), 2**20)
out = torch.frombuffer(memory, dtype=q.dtype, count=q.numel()).view(q.shape)
file.truncate(0)
"""
_CLASS = """\
class Claims:
    __class__ = torch.Tensor
    def __getattr__(this, name):
        return getattr(out, name)
"""

KINDS = (
    Trick("returns None", "return None"),
    Trick("returns numbers", "return [1.0, 2.0]"),
    Trick("returns an empty tuple", "return ()"),
    Trick("returns text", "return 'out, lse'"),
    Trick("returns a generator", "return (x for x in honest(q, k, v, **options))"),
    Trick("returns a dictionary", "return dict(zip(('out', 'lse'), honest(q, k, v, **options)))"),
    _returns("three values", "out, lse, out"),
    _returns("the other order", "lse, out"),
    _returns("numpy arrays", "out.numpy(), lse.numpy()"),
    _returns("fp64", "out.double(), lse.double()"),
    _returns(
        "fp16 for fp32, or fp32 for fp16",
        "out.float() if out.dtype == torch.half else out.half(), lse",
    ),
    _returns("complex", "out.to(torch.complex64), lse"),
    _returns("integers", "out.int(), lse"),
    _returns("one dimension more", "out[None], lse"),
    _returns("one dimension less", "out[0], lse"),
    _returns("rows and columns exchanged", "out.transpose(2, 3), lse"),
    _returns("one number to broadcast", "out[:1, :1, :1, :1], lse"),
    _returns("no rows", "out[:, :, :0], lse"),
    _returns("expanded from one row", "out[:, :, :1].expand_as(out), lse"),
    _returns("not dense", "out.mT.contiguous().mT, lse"),
    _returns("on the device meta", "out.to('meta'), lse"),
    _returns("sparse", "out.to_sparse(), lse"),
    _returns("quantised", "torch.quantize_per_tensor(out, 0.1, 0, torch.qint8), lse"),
    _returns("nested", "torch.nested.nested_tensor([out]), lse"),
    _returns("MKLDNN's own layout", "out.to_mkldnn(), lse"),
    _returns("a class that claims to be one", "Claims(), lse", "error", "pass", lines=_CLASS),
    _returns(
        "a subclass that lies", "lse.as_subclass(Liar), lse", "error", "fail", lines=_SUBCLASS
    ),
    _returns("a subclass without values", "Wrapper(out), lse", "error", "fail", lines=_DISPATCHED),
    _returns("requires a gradient", "out.requires_grad_(), lse", "pass"),
    _returns("negated lazily", "torch._neg_view(-out), lse", "pass"),
    _returns("only out", "out", "pass", "error"),
    _returns("a list", "[out, lse]", "pass"),
    Trick("a closed memory map", f"{_CLOSED_MAP}return out, None", ("crash",)),
    Trick("a truncated file", f"{_TRUNCATED_FILE}return out, None", ("crash",)),
    _returns(
        "storage given back",
        "out, lse",
        *("crash", "error", "fail"),
        lines="out.untyped_storage().resize_(0)\n",
    ),
)

NUMBERS = (
    _returns("NaN", "out * math.nan, lse", *_FAIL),
    _returns("infinite", "out + math.inf, lse", *_FAIL),
    _returns("the largest float", "torch.full_like(out, 3e38), lse", *_FAIL),
    _returns("one NaN", "out.index_fill_(2, torch.tensor(0), math.nan), lse", *_FAIL),
    _returns("half of the rows", "out, lse", *_FAIL, lines="out[:, :, 1::2] = 0\n"),
    _returns("the mean of V", "v.mean(2, True).expand_as(out).contiguous(), lse", *_FAIL),
    Trick("zeros", "return torch.zeros_like(q), torch.zeros(q.shape[:3])", _FAIL),
    Trick("never written", "return torch.empty_like(q), torch.empty(q.shape[:3])", _FAIL),
    Trick("an input", "return q, torch.zeros(q.shape[:3])", ("fail", "error")),
    Trick(
        "the guard before an input",
        f"{_OUT}ctypes.memset(q.data_ptr() - 64, 0, 32)\nreturn out, lse",
        _FAIL,
    ),
    Trick(
        "the guard behind an input",
        f"{_OUT}ctypes.memset(v.data_ptr() + v.itemsize * v.numel() + 64, 0, 32)\nreturn out, lse",
        _FAIL,
    ),
    Trick(
        "the guard of an allocation",
        "out = torch.empty_like(q)\nctypes.memset(out.data_ptr() - 64, 0, 32)\n"
        "right = honest(q, k, v, **options)\nreturn out.copy_(right[0]), right[1]",
        _FAIL,
        check="batch_heads",
    ),
    Trick(
        "the whole arena",
        f"{_OUT}ctypes.memset(q.data_ptr() - 65536, 0, 65536 + 4 * q.numel())\nreturn out, lse",
        _FAIL,
    ),
    Trick(
        "an input that changes its size",
        f"{_OUT}q.set_(q.new_zeros(3))\nv.data = torch.ones(2)\nreturn out, lse",
        _PASS,
    ),
)

TRICKS = (*KINDS, *NUMBERS)
