"""The source policy gives no false alarm on what is right or an honest mistake."""

import ast
import importlib
import sys
import types

import pytest
import torch
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError

from grader.kernel.machine import capture
from grader.source.policy import tables
from grader.source.policy.rules import violations
from grader.spec.problem import GIVEN
from tests.harness import whole_answer
from tests.mutants import MUTANTS
from tests.shares import drawn, of_all
from tests.steps import after
from tests.test_policy import HEAD, PROBLEMS, broken, entry
from tests.trials import right_answers


@pytest.mark.parametrize("kind", ["answers", "unusual"])
def test_right_answers_break_no_rule(kind):
    answers = drawn(right_answers(kind).values(), 1 if kind == "answers" else 5, of_all)
    found = {text: broken(text, problem) for problem, text in answers}
    assert {id: rules for id, rules in found.items() if rules} == {}


@pytest.mark.parametrize("id", PROBLEMS)
def test_the_stub_breaks_no_rule_at_any_step(id):
    problem = PROBLEMS[id]
    for step in range(len(problem.steps) + 1):
        assert broken(after(problem, step), id) == [], f"after step {step}"
    assert broken(whole_answer(id), id) == []


def test_given_breaks_no_rule():
    modules = {path.stem for path in GIVEN.glob("[a-z]*.py")}
    for module in sorted(modules):
        id = next(id for id, problem in PROBLEMS.items() if module in problem.given)
        problem = PROBLEMS[id].model_copy(update={"given": tuple(modules)})
        text = (GIVEN / f"{module}.py").read_text("utf-8")
        assert violations(problem, ast.parse(text)) == ()


@pytest.mark.parametrize(
    "line",
    [
        "raise ValueError(x)",
        "FOUND.append(x)",
        "FOUND[0] = x",
        "helper(x)",
        "x @ x",
        "str(x)",
        "import torch",
        "global FOUND\n    FOUND = x",
        "{x: 1}",
        "(lambda: x)()",
    ],
)
def test_what_is_no_triton_in_a_kernel_is_left_to_its_compiler(line, tmp_path, monkeypatch):
    text = "FOUND = []\n\n\ndef helper(x):\n    return x\n\n\n"
    text += f"@triton.jit\ndef kernel(x):\n    {line}\n"
    assert broken(HEAD + text, "p02") == []
    (tmp_path / "no_triton.py").write_text(HEAD + text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "no_triton", raising=False)
    kernel = importlib.import_module("no_triton").kernel
    source = ASTSource(kernel, {"x": "fp32"}, {}, {})
    with pytest.raises((CompilationError, RuntimeError)):
        capture.front_end(source, GPUTarget("cuda", 80, 32), {})


@pytest.mark.parametrize("id", drawn(PROBLEMS, 3))
def test_honest_mistakes_break_no_rule(id):
    """All in one file, which has each function as often as there are versions of it."""
    honest = [m for m in MUTANTS if m.problem == id and m.keeps_policy]
    texts = [m.applied_to(whole_answer(id)) for m in honest]
    functions = dict.fromkeys(part for text in texts for part in text.split("\n\n\n"))
    assert len(functions) > len(honest)
    assert broken("\n\n\n".join(functions), id) == []


def test_answers_without_a_kernel_are_refused():
    refused = [m for m in MUTANTS if not m.keeps_policy]
    assert {m.problem for m in refused} == PROBLEMS.keys() - {"p01"}
    for mutant in refused:
        rules = broken(mutant.applied_to(whole_answer(mutant.problem)), mutant.problem)
        assert set(rules) <= {"torch-computes", "shortcut"} and rules


HONEST = {
    "an argument named input": entry("input = q\nreturn (lambda input: input)(input)"),
    "a helper for tests": HEAD + "def naive(q, k):\n    return torch.softmax(q @ k, -1)\n",
    "a main block": 'if __name__ == "__main__":\n    import os\n    exec("1")\n',
    "a kernel called in a kernel": HEAD
    + "@triton.jit\ndef f(x):\n    return tl.softmax(x).sum()\n\n\n"
    + "@triton.jit\ndef g(x):\n    return f(x)\n",
    "a kernel made by a call": HEAD
    + "def f(x):\n    return x.sum() + tl.exp(x)\n\nk = triton.jit(f)\n"
    + "def g(x):\n    return x.sum()\n\nl = triton.jit(debug=True)(g)\n",
    "a kernel made in two steps": HEAD
    + "jit = triton.jit(do_not_specialize=['n'])\n\n\n@jit\ndef f(x, n):\n    return x.exp()\n",
    "kernels made by detours": HEAD
    + "import functools\n\ndef f(x):\n    return tl.exp(x)\n\n\nf = triton.jit(f)\n"
    + "def jit(g):\n    return triton.jit(g, debug=True)\n\n\n@jit\ndef h(x):\n    return f(x)\n\n"
    + "part = functools.partial(triton.jit, debug=True)\n\n\n@part\ndef i(x):\n    return h(x)\n\n"
    + "def make(B):\n    def k(x):\n        return x + B\n\n    return triton.jit(k)\n\n\n"
    + "k = make(1)\nk[(1,)](1)\n\n\ndef m(x):\n    return x\n\n\n"
    + "l = triton.autotune([], key=[])(triton.jit(m))\n",
    "a class that is looked at": HEAD
    + "def f(x, y, names):\n    kind = type(x)\n    if type(x) != type(y) or kind is not int:\n"
    + "        raise TypeError('got', type(x), f'{type(y)} {kind!r} {type(y).__name__}')\n"
    + "    assert type(x) in (int, float), 'got %s, %s' % (type(x), kind)\n"
    + "    print(type(x), isinstance(x, type(y)), kind.__name__, 'a {}'.format(type(x)))\n",
    "a class above": HEAD
    + "class E(ValueError):\n    def __init__(self, x):\n        super().__init__(x)\n\n\n"
    + "class G(E):\n    def __init__(self, x):\n        E.__init__(self, x)\n"
    + "        super(G, self).__init__(x)\n",
    "lists of one's own": HEAD
    + "class P:\n    def __init__(self):\n        self.x, self.y = [], {}\n\n\np = P()\n"
    + "p.x.append(1)\np.y['a'] = 2\np.y.update(b=1)\nx = [tl.float32]\nx.pop()\n",
    "persistent": HEAD
    + "n = triton.runtime.driver.active.utils.get_device_properties(0)['multiprocessor_count']\n"
    + "m = torch.cuda.get_device_properties('cuda').multi_processor_count\n",
    "libdevice": "from triton.language.extra import libdevice\nf = libdevice.exp2\n"
    "from triton.language.extra.cuda import libdevice as other\n",
    "descriptors": "try:\n    from triton.tools.tensor_descriptor import TensorDescriptor\n"
    "except ImportError:\n    TensorDescriptor = None\n",
    "standard modules": "import functools, math, itertools\nfrom typing import Any, Optional\n"
    "from dataclasses import dataclass, field\nfrom collections.abc import Callable\n"
    "f = functools.partial(functools.reduce, max)\nx = math.exp(1.0) + math.log2(math.e)\n",
    "autograd": "from torch.autograd import Function\n\n\nclass F(Function):\n"
    "    @staticmethod\n    def forward(ctx, x):\n        ctx._x = x\n        return x\n\n"
    "    @staticmethod\n    def backward(ctx, dx):\n        return F.forward(ctx, dx)\n",
    "a backward that nothing calls": HEAD
    + "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, q):\n"
    + "        return q\n\n    @staticmethod\n    def backward(ctx, dout):\n"
    + "        return gradient(dout)\n\n\n"
    + "def gradient(dout):\n    return (dout @ dout.mT).softmax(-1).sum()\n\n\n"
    + "def made():\n    class G(F):\n        @staticmethod\n        def backward(ctx, dout):\n"
    + "            return torch.autograd.grad(dout @ dout, dout)\n\n    return G\n\n\n"
    + "def attention(q):\n    assert q.is_cuda, q.device.type\n    return made().apply(q)\n",
    "objects of one's own in a list": HEAD
    + "class P:\n    x = 0\n\n\nplans = [P()]\nplans[0].x = 1\nplans[0]._y = 2\n",
    "an autotuner": HEAD
    + "@triton.autotune([triton.Config({'B': 16}, pre_hook=lambda a: a['o'].zero_())], key=['n'])\n"
    + "@triton.heuristics({'EVEN': lambda a: a['n'] % 16 == 0})\n@triton.jit\ndef f(o, n): ...\n",
    "a descriptor's tile in a hook": HEAD
    + "def hook(nargs):\n    nargs['desc_q'].block_shape = [nargs['BLOCK_M'], 64]\n\n\n"
    + "CONFIG = triton.Config({'BLOCK_M': 64}, pre_hook=hook)\n",
    "types of tensors": HEAD
    + "def attention(q, lengths: torch.LongTensor | None = None) -> torch.FloatTensor: return q\n",
    "padded by PyTorch": "import torch.nn.functional as F\nfrom torch import nn\n"
    + entry("q = F.pad(q, (0, 0, 0, 1))\nreturn nn.functional.pad(q, ()), torch.nn.functional.pad"),
    "how fp32 is multiplied": HEAD + "torch.set_float32_matmul_precision('highest')\n",
    "a cache on a function": HEAD + "def f():\n    return f._kept\n\n\nf._kept = {}\n",
    "attributes of one's own": HEAD
    + "class C:\n    x = 0\n\n\nc = C()\nc.x, C.x, C().x = 1, 2, 3\n"
    + "def f(q):\n    q.requires_grad = True\n    c.x = q\n    f.calls = 1\n",
    "a wrapper": "import functools\nfrom functools import wraps\nfrom abc import ABC\n\n\n"
    "def f(g):\n    @functools.wraps(g)\n    def h():\n        return wraps(h)(g)\n    return h\n\n"
    "class A(ABC):\n    pass\n",
    "types that are asked for": HEAD + "def f(x: type, y) -> type:\n    t: type = type(y)\n"
    "    return t is type(x) and isinstance(x, type) and type(y) == type\n",
    "classes of every kind": HEAD
    + "import abc, dataclasses, enum, typing\nfrom collections import namedtuple\n"
    + "Base = torch.autograd.Function\nT = typing.TypeVar('T')\nRow = namedtuple('Row', 'x')\n"
    + "try:\n    from enum import StrEnum\nexcept ImportError:\n    StrEnum = object\n"
    + "class A(Base, abc.ABC):\n    pass\n\nclass B(A, typing.Generic[T]):\n    pass\n\n"
    + "class C(Row):\n    pass\n\nclass D(namedtuple('D', 'x'), dict[str, int]):\n    pass\n\n"
    + "@dataclasses.dataclass(frozen=True)\nclass E:\n    x: int = 0\n\nclass F(E):\n    pass\n\n"
    + "E._kept = F._kept = 1\nclass G(StrEnum):\n    pass\n\nclass H(ValueError):\n    pass\n",
    "abstract classes and beginnings": HEAD
    + "import abc, enum, typing\nfrom abc import ABC as Base\n"
    + "try:\n    from dataclasses import dataclass\nexcept ImportError:\n    pass\n"
    + "class A(abc.ABC):\n    def __init__(self, x):\n        self.x = x\n\n"
    + "class B(A, Base):\n    def __init__(self, x):\n        A.__init__(self, x)\n\n"
    + "class C(ValueError):\n    def __init__(self, x):\n        ValueError.__init__(self, x)\n\n"
    + "class D(dict):\n    def __init__(self):\n        super().__init__(a=1)\n\n"
    + "class E(enum.Flag, boundary=enum.KEEP):\n    X = 1\n\n"
    + "class F(typing.TypedDict, total=False):\n    x: int\n\n"
    + "@dataclass(frozen=True)\nclass G:\n    x: int\n\nA.y = B.y = E.y = G.y = 1\n"
    + "def f():\n    dataclass = abc = 1\n    return dataclass, abc\nf()\n",
    "texts and patterns": HEAD
    + "M = 'q has {} rows, {name!r:>{width}} {:.3f}'\nM.format(1, 2.0, name=1, width=2)\n"
    + "'a {{x.y}} {}'.format(1)\nmatch 1:\n    case int(x) | float(x):\n        pass\n"
    + "    case torch.Size(a=y):\n        pass\n",
    "names that elsewhere are modules'": HEAD
    + "class A:\n    def __init__(self):\n        self.obj = self.io = 1\n\na = A()\na.obj, a.io\n",
    "a named tuple": "from collections import namedtuple\nT = namedtuple('T', 'a b')\n"
    "t = T(1, 2)._replace(a=3)\n",
    "lse made of a maximum and a sum": entry("return q, k + torch.log(v) + v.log2()"),
    "scaled outside": entry("q = q * 2 - torch.where(q > 0, 1, 0)\nreturn q.to(k.dtype), q.max()"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_ways_break_no_rule(name):
    assert broken(HONEST[name]) == []


def test_functions_of_torch_nn_are_named_in_any_way_in_p01():
    ways = ("torch.nn.functional.relu", "from torch import nn\nnn.functional.relu")
    assert [way for way in ways if broken(f"import torch\n{way}", "p01")] == []
    assert broken("import torch\ntorch.nn.functional.gelu", "p04") == ["import"]
    assert broken("import torch\ntorch.nn.functional.softmax", "p04") == ["shortcut"]


def test_in_p01_types_of_tensors_are_open_and_other_classes_are_not():
    lines = "def f(x: torch.FloatTensor): return isinstance(x, torch.Tensor), torch.vmap(f)\nf(1)"
    assert broken(f"import torch\n{lines}", "p01") == []
    modules = tables.open_modules(PROBLEMS["p01"])
    kinds = {n for n, kind in vars(torch).items() if isinstance(kind, type) and n[0] != "_"}
    open_kinds = {n for n in kinds if broken(f"import torch\ntorch.{n}", "p01") == []}
    # Types, and classes that every problem may use.
    opened = {n for n in open_kinds if not tables.is_open(modules["torch"], "torch", n)}
    assert all(n.endswith("Tensor") or n[0].islower() for n in opened)
    assert not {n for n in opened if not n.endswith("Tensor")} - {"qscheme", "classproperty"}


def test_every_function_of_tritons_language_is_open():
    names = [n for n in dir(tl) if n[0] != "_" and not isinstance(getattr(tl, n), types.ModuleType)]
    assert len(names) > 100
    assert [n for n in names if broken(f"import triton.language as tl\ntl.{n}")] == []
