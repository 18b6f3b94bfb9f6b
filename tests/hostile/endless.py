"""Launches that are huge or never end, kernels that are changed, and Triton's other doors.

The judge has to come to an end of them, and the next call has to work.
"""

from tests.hostile.entry import Hostile, answer, beside, instead

_TRITON = "import triton\nimport triton.language as tl\n"
_LOST = ("error", "fail", "timeout", "out-of-memory", "crash")


def _endless(
    name: str,
    kernel: str,
    more: str = "",
    *,
    grid: str = "(1,)",
    jit: str = "",
    too_long: bool = False,
    **fields,
):
    """A file whose only work is one launch of a kernel of these lines.

    One that is `too_long` as TTIR is not read, and so not judged: it earns nothing either.
    """
    lines = "".join(f"    {line}\n" for line in kernel.strip().splitlines())
    text = f"{_TRITON}\n{more}\n@triton.jit{jit}\ndef odd(p, n):\n{lines}"
    body = f"p = torch.zeros(4096)\nodd[{grid}](p, p[:1].clone().data_ptr())\nreturn p"
    verdicts = (*_LOST, "not-measured") if too_long else _LOST
    return Hostile(name, instead(body, text), verdicts, slow=True, **fields)


_STATIC = """
a = tl.load(p)
for i in tl.static_range(100000):
    a = a * 0.5 + i
tl.store(p, a)
"""
_WHILE = """
a = tl.load(p)
while a >= 0.0:
    BODY
    a = a * 0.5
tl.store(p, a)
"""
_TILE = """
a = tl.zeros((1024, 1024), tl.float32)
for i in range(1000000):
    a = BODY
tl.store(p, tl.sum(tl.sum(a, 1), 0))
"""
_DEEPER = "@triton.jit{}\ndef deeper(n):\n    return deeper(n + 1) + 1\n"
_POINTER = "q = n.to(tl.pointer_type(tl.float32), bitcast=True)\n"
_SPAM = "tl.device_print({}, {})"
ENDLESS = (
    _endless("100,000 operations in a kernel", _STATIC, too_long=True),
    _endless("a kernel that loops without end", _WHILE.replace("BODY", "a += 0.0")),
    _endless("a kernel's function that calls itself", "tl.store(p, deeper(1))", _DEEPER.format("")),
    _endless(
        "a kernel's function that calls itself as it runs",
        "tl.store(p, deeper(1))",
        _DEEPER.format("(noinline=True)"),
    ),
    _endless(
        "two billion programs", "tl.store(p + tl.program_id(0) % 4096, 1.0)", grid="(2**31-1,)"
    ),
    _endless("as many programs as a GPU takes", "tl.store(p, 1.0)", grid="(2**31-1, 65535, 65535)"),
    _endless("more programs than a number has bits for", "tl.store(p, 1.0)", grid="(2**99,)"),
    _endless("sums of a million, a million times", _TILE.replace("BODY", "a * 0.5 + tl.sum(a)")),
    _endless("sorts of a million, a million times", _TILE.replace("BODY", "tl.sort(a, 1)")),
    _endless("products of a million, a million times", _TILE.replace("BODY", "tl.dot(a, a)")),
    _endless("a read of an address by its number", _POINTER + "tl.store(p, tl.load(q))"),
    _endless("a write to an address by its number", _POINTER + "tl.store(q, 1.0)"),
    _endless(
        "a kernel that prints without end", _WHILE.replace("BODY", _SPAM.format("'spam'", "a"))
    ),
    _endless(
        "a kernel that prints a million numbers without end",
        _TILE.replace("BODY", "a\n    " + _SPAM.format("'spam'", "a")),
    ),
    _endless(
        "a kernel that prints a long text without end",
        _WHILE.replace("BODY", _SPAM.format(repr("spam" * 10_000), "a")),
        too_long=True,
    ),
    _endless(
        "a kernel that asserts without end",
        _WHILE.replace("BODY", "tl.device_assert(a >= 0.0, 'spam')"),
        jit="(debug=True)",
    ),
    _endless(
        "an assertion of 40,000 letters",
        f"tl.device_assert(n < 0, {'spam' * 10_000!r})",
        jit="(debug=True)",
        too_long=True,
    ),
)


def _beside(name: str, body: str, head: str = "", *verdicts: str, points: float = 0.0) -> Hostile:
    source = beside("p02", body, f"{_TRITON}{head}")
    return Hostile(name, source, verdicts or ("error",), "p02", points, slow=True)


_RIGHT = "return honest(*args, **options)"
_THREAD = """\
found = []
thread = threading.Thread(target=lambda: found.append(honest(*args, **options)))
thread.start()
thread.join()
return found[0]
"""
_BACKWARD = """\
found = []
with torch.enable_grad():
    one = torch.ones(1, requires_grad=True)
    two = one * 2
    two.register_hook(lambda g: found.append(honest(*args, **options)))
    two.backward()
return found[0]
"""
_ODD = "@triton.jit\ndef odd(x, N: tl.constexpr):\n    tl.store(x, N)\n"
_ASKED_FOR = """\
y = honest(*args, **options)
source = triton.compiler.ASTSource
for ask in (
    lambda: odd.warmup(y, 1, grid=(1,)),
    lambda: odd.preload("{}"),
    lambda: odd.preload("[" * 99999),
    lambda: triton.compile("x.ttir"),
    lambda: triton.compile(5),
    lambda: triton.compile(source(odd, {"x": "*fp32", "N": "constexpr"}, {(1,): 1})),
    lambda: odd[(1,)](y.new_zeros(1), 1).run(),
    lambda: odd[(1,)](y.new_zeros(1), 1).run(1, 1, 1, 2, 3),
    lambda: odd[(1,)](y.new_zeros(1), 1).run("x", None, y, None),
    lambda: odd[("x", None)](y.new_zeros(1), 1),
    lambda: odd[()](y.new_zeros(1), 1),
):
    try:
        ask()
    except Exception:
        pass
return y
"""
_KNOBS = """
triton.knobs.compilation.always_compile = True
triton.knobs.runtime.debug = True
triton.knobs.runtime.override_arch = "sm50"
triton.knobs.runtime.launch_enter_hook = lambda *rest: 1 / 0
triton.knobs.runtime.add_stages_inspection_hook = lambda *rest: ("key", "hash")
"""
# The honest kernel, changed before its first launch.
_CHANGED = """
kernel = _weighted_row_sum_kernel
"""
_CHANGES = {
    "text": ('kernel._src = kernel.src.replace("+", "-")', ("error", "fail")),
    "text, without a word of it": ('kernel._src = "def f(): 1"', ("error", "fail")),
    "text, which is none": ("kernel._src = 5", ("error",)),
    "names of arguments": ("kernel.arg_names.reverse()", ("error", "fail", "rejected")),
    "parameters": ("kernel.params.clear()", ("error",)),
    "function": ("kernel.fn = print", ("error", "crash")),
    "hash": ("kernel.hash = 5", ("error", "pass")),
    "code": (
        "kernel.fn.__code__ = (lambda *rest: 0).__code__.replace(co_filename='x')",
        ("pass", "error"),
    ),
}
_INTERPRETED = f'import os\nos.environ["TRITON_INTERPRET"] = "1"\n{answer("p02")}'
OTHERS = (
    _beside("a launch in a thread", _THREAD, "", "pass", points=7.0),
    _beside("a launch in a backward pass", _BACKWARD, "", "pass", points=7.0),
    _beside("a kernel that is compiled by hand", _ASKED_FOR, _ODD, "fail", "error", points=7.0),
    _beside("knobs of Triton's", _RIGHT, _KNOBS, "pass", "error", points=7.0),
    *(
        _beside(f"a kernel with another {what}", _RIGHT, _CHANGED + change, *verdicts, points=7.0)
        for what, (change, verdicts) in _CHANGES.items()
    ),
    Hostile(
        "a file that asks for Triton's interpreter", _INTERPRETED, ("error",), "p02", slow=True
    ),
)
ENTRIES = (*ENDLESS, *OTHERS)
