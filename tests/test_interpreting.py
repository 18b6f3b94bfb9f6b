"""The shortcuts in Triton's interpreter: kernels come to the same, and nothing is left replaced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from grader.kernel.interpreter import agreeing, interpreting
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT, load_problem
from tests.harness import judge, whole_answer

# Interprets a few launches, with the shortcuts or without, and says what came of them.
LAUNCHES = """\
import json, sys
import torch, triton
import triton.language as tl
from triton.runtime import interpreter

sys.path.insert(0, sys.argv[1])
from grader.kernel.interpreter import interpreting

if sys.argv[2] == "shortcuts":
    interpreting.install()
patches = []
fill = interpreter._patch_lang_core
interpreter._patch_lang_core = lambda *args: (patches.append(args[0]), fill(*args))

@triton.jit
def scaled(x, factor):
    if factor < 0:
        raise RuntimeError("negative")
    return tl.sum(x * factor, 0)

@triton.jit
def inner(out_ptr, value):
    tl.store(out_ptr + 1, value)

@triton.jit
def kernel(x_ptr, out_ptr, n, rounds, factor, other, SIZE: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    total = 0.0
    for _ in range(rounds):
        total += scaled(x, factor)
    if other == 1:
        inner[(1,)](out_ptr, 7.0)
    tl.store(out_ptr, total, mask=tl.max(x, 0) > -1.0)

@triton.jit
def integers(x_ptr, out_ptr, SIZE: tl.constexpr):
    lanes = tl.arange(0, SIZE)
    x = tl.load(x_ptr + lanes)
    tl.store(out_ptr + lanes, (x + x) * 3 - (x - lanes))

@triton.jit
def sized(out_ptr, SIZE: tl.constexpr, MORE: tl.constexpr):
    lanes = tl.arange(0, 4)
    whole = tl.zeros((4, 8), tl.float32) + lanes[:, None]
    pointers = out_ptr + lanes
    tl.store(pointers, tl.sum(whole, 1) + whole.shape[1] + whole.numel + tl.load(pointers))
    if MORE:
        tl.zeros((SIZE, 8), tl.float32)

WAYS = (
    *(lambda a, b, s: a + b, lambda a, b, s: a * b, lambda a, b, s: a < b),
    *(lambda a, b, s: a / b, lambda a, b, s: a % b, lambda a, b, s: a & b),
    *(lambda a, b, s: a[:, None] - b[None, :], lambda a, b, s: a + b[:, None]),
    *(lambda a, b, s: s + b, lambda a, b, s: b * s, lambda a, b, s: s + s),
    *(lambda a, b, s: a + 3, lambda a, b, s: 3 - a, lambda a, b, s: a + -1),
    *(lambda a, b, s: a + 300, lambda a, b, s: a * 2**40, lambda a, b, s: s * 2**40),
    *(lambda a, b, s: a + True, lambda a, b, s: a * 2.5, lambda a, b, s: s * 1e300),
    *(lambda a, b, s: tl.where(a < b, a, b), lambda a, b, s: tl.maximum(a, b)),
    *(lambda a, b, s: a - b, lambda a, b, s: a | b, lambda a, b, s: a ^ b[:, None]),
    *(lambda a, b, s: a == b, lambda a, b, s: a[None] != b[:, None], lambda a, b, s: s >= b),
    *(lambda a, b, s: a > 1, lambda a, b, s: 1.5 <= a, lambda a, b, s: 2 / (b + 1)),
    *(lambda a, b, s: a * -0.0, lambda a, b, s: a + -0.0, lambda a, b, s: a - a),
    *(lambda a, b, s: a + tl.constexpr(3), lambda a, b, s: a[None, :, None]),
    lambda a, b, s: s[None],
    lambda a, b, s: a + tl.zeros((8,), tl.float32),
)
told = []

@triton.jit
def pairs(a_ptr, b_ptr):
    a = tl.load(a_ptr + tl.arange(0, 4))
    b = tl.load(tl.arange(0, 4) + b_ptr)
    for way in (*WAYS, lambda a, b, s: tl.load(a_ptr + 1 + tl.arange(0, 2)[:, None] * b[None] * 0)):
        try:
            made = way(a, b, tl.load(a_ptr))
            told.append([str(made.type), repr(made.handle.data.tolist())])
        except Exception as error:
            told.append(repr(error))

def told_of_pairs():  # of each twice: what is remembered, too
    types = ("int8", "uint8", "int32", "uint32", "int64", "float16", "float32", "float64", "bool",
             "bfloat16")
    values = torch.tensor([0, 1, 2, 3]), torch.tensor([5, 0, -1, 100])
    tensors, others = ([v.to(getattr(torch, name)) for name in types] for v in values)
    for a in tensors:
        for b in (*tensors, *others):
            pairs[(1,)](a, b)
    return told

def sized_launch(*sizes):
    out = torch.ones(4)
    try:
        sized[(1,)](out, *sizes)
    except Exception as error:
        return repr(error)
    return out.tolist()

def launch(rounds=1, factor=2.0, other=0):
    x, out = torch.arange(20.0, dtype=torch.float16), torch.zeros(2)
    patches.clear()
    try:
        kernel[(1,)](x, out, 20, rounds, factor, other, SIZE=32)
    except Exception as error:
        return repr(error)
    return out.tolist()

def integer_launch():
    x = torch.tensor([1, 2**31 - 1, -(2**31), 5], dtype=torch.int32)
    out = torch.zeros_like(x)
    integers[(1,)](x, out, SIZE=4)
    return out.tolist()

def names():  # what a launch replaces
    owners = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    fresh = ("__dict__", "__init_subclass__", "__subclasshook__")  # another object each time
    return {(o.__name__, n): getattr(o, n) for o in owners for n in dir(o) if n not in fresh}

before = names()
results, times, left = [], {}, []
for options in ({}, {"rounds": 9}, {"factor": -1.0}, {"other": 1}, {"rounds": 2}):
    results.append(launch(**options))
    times[str(options)] = len(patches)
    left.append(sorted(map(str, (k for k, v in names().items() if v is not before.get(k)))))
results += [sized_launch(s, m) for s, m in ((4, 0), (4, 1), (4.0, 1), (3, 1), (0, 1), (-4, 1))]
print(json.dumps({"results": [*results, integer_launch()], "times": times, "left": left,
                  "pairs": told_of_pairs()}))
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What came of the launches in Triton as it is, and with the shortcuts."""
    folder = tmp_path_factory.mktemp("launches")
    return launches(folder, "plain"), launches(folder, "shortcuts")


def launches(folder, way):
    path = folder / "launches.py"
    path.write_text(LAUNCHES)
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path), str(ROOT), way]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kernels_come_to_the_same_and_leave_nothing_replaced(both):
    plain, shortcuts = both
    assert shortcuts["results"] == plain["results"]
    first, second, failed, nested, *_ = plain["results"]
    assert (first, second) == ([380.0, 0.0], [3420.0, 0.0]) and "negative" in failed
    sizes = plain["results"][5:11]
    assert sizes[0] == sizes[1] == [41.0 + 8.0 * lane for lane in range(4)]
    assert "float" in sizes[2]  # though a tile of as many rows has been made
    assert nested == [380.0, 7.0]  # a kernel that launches another goes on afterwards
    assert shortcuts["left"] == [[]] * 5 and plain["left"] != [[]] * 5
    # Triton replaces whenever a function is called, here each launch does it once.
    two, nine = ("{'rounds': 2}", "{'rounds': 9}")
    assert shortcuts["times"][two] == shortcuts["times"][nine] < plain["times"][two]
    assert plain["times"][two] < plain["times"][nine]


def test_a_number_has_the_type_of_its_tensor_where_triton_does_not_say_it():
    """As up to Triton 3.6."""
    semantic = SimpleNamespace(
        tensor=object, to_tensor=lambda number: SimpleNamespace(type=SimpleNamespace(name="int32"))
    )
    assert agreeing._Agreement(semantic, None)._kind(-3) == (int, "int32", True)


def test_operands_agree_as_triton_has_them_agree(both):
    plain, shortcuts = both
    assert shortcuts["pairs"] == plain["pairs"]
    told = [made for made in plain["pairs"] if isinstance(made, list)]
    errors = [made for made in plain["pairs"] if isinstance(made, str)]
    assert len(told) > 2500 and len({kind for kind, _ in told}) >= 20
    for words in ("incompatible dimensions", "invalid operands", "out of range", "unsigned"):
        assert any(words in error for error in errors), words


@pytest.mark.parametrize("debug", [False, True])
def test_overflow_is_looked_for_only_where_it_would_be_told(debug):
    from triton.runtime.interpreter import InterpreterOptions

    builder = SimpleNamespace(options=InterpreterOptions(debug=debug, sanitize_overflow=True))
    interpreting._leave_overflow_alone(SimpleNamespace(interpreter_builder=builder))
    assert builder.options.sanitize_overflow is debug and builder.options.debug is debug


def test_the_numpy_type_of_each_triton_type_is_what_triton_says():
    import triton.language as tl
    from triton.runtime.interpreter import _get_np_dtype

    found = interpreting._by_name(_get_np_dtype)
    scalars = [tl.int1, tl.uint8, tl.int32, tl.int64, tl.float16, tl.bfloat16, tl.float32]
    pointers = [tl.pointer_type(scalar) for scalar in scalars]
    for kind in (*scalars, *pointers):
        for _ in range(2):
            assert found(kind) == found(tl.block_type(kind, [4, 4])) == _get_np_dtype(kind)
    with pytest.raises(KeyError):
        found(tl.void)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import triton.language as T", "T"),
        ("from triton import language", "language"),
        ("import triton.language", "triton.language"),
        ("from __future__ import annotations\nimport triton.language as tl", "tl"),
    ],
)
def test_triton_language_may_have_any_name(imports, name):
    source = re.sub(r"\btl\.", f"{name}.", whole_answer("p02"))
    _, _, body = source.replace("import triton.language as tl", "").partition("import torch")
    judged = judge(f"{imports}\nimport torch{body}", load_problem("p02"), checks={"plain"})
    assert judged.of("plain").verdict is Verdict.PASS, judged.of("plain").message


@triton.jit
def tiles(x_ptr, out_ptr, n, N: tl.constexpr):
    lanes = tl.arange(0, N)
    places = lanes[:, None] * N + lanes
    acc = tl.zeros((N, N), tl.float32)
    for start in range(0, n, N):
        x = tl.load(x_ptr + start * N + places, mask=(start + lanes < n)[:, None])
        acc += tl.dot(x, tl.trans(x))
    tl.store(out_ptr + places, acc + tl.load(out_ptr + places, mask=places < n))


@pytest.mark.parametrize("capability", [80, 90])
def test_masked_lanes_without_other_are_zeros_where_triton_compiles_them(capability):
    """As in the interpreter: a kernel that relies on it is right on both."""
    types = {"x_ptr": "*fp16", "out_ptr": "*fp32", "n": "i32", "N": "constexpr"}
    aligned = {(place,): [["tt.divisibility", 16]] for place in (0, 1)}
    source = ASTSource(fn=tiles, signature=types, constexprs={(3,): 64}, attrs=aligned)
    options = {"num_stages": 3}
    ptx = triton.compile(source, GPUTarget("cuda", capability, 32), options=options).asm["ptx"]
    sizes = re.findall(r"cp\.async\.c\w\.shared\.global \[.*?\], \[.*?\], 0x10, (%r\d+);", ptx)
    assert sizes  # of what is copied; the rest is zeros
    assert all(re.search(rf"selp\.b32\s+{size}, (16|%r\d+), 0,", ptx) for size in sizes)
    masked = re.findall(r"((?:mov\.u32 %r\d+, 0x0;\s*)+)@%p\d+ ld\.global\.\S+ \{ (.*?) \}", ptx)
    assert masked and len(masked) == len(re.findall(r"@%p\d+ ld\.global", ptx))
    for moves, registers in masked:
        assert set(re.findall(r"%r\d+", moves)) >= set(re.findall(r"%r\d+", registers))
