"""Files keep to what the source policy has read of them, when they run."""

import collections
import contextlib
import dataclasses
import enum
import functools
import re
import subprocess
import sys
import types

import pytest
import torch

from grader.base import attributes
from grader.isolate import asking, walls
from grader.spec.problem import ROOT, load_problem
from tests import forked
from tests.evasions import STOPPED
from tests.harness import edited, judge, model_answer
from tests.hostile.leaking import ENTRIES

LEAKS = {entry.name: entry.source for entry in ENTRIES}
OWN = """
import enum
import torch
import triton.language as tl


class Plan:
    def __init__(self, size):
        self._size = size
        self.count = self._size + 1

    @classmethod
    def make(cls):
        cls.made = cls._named = 1
        return cls(1)

    @staticmethod
    def clear(x):
        x.grad = None
        return len(x), x.shape

    area = property(lambda self: self._size)


class Derived(Plan):
    def more(self):
        self.extra = self._size


class Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        \"\"\"Keeps a size.\"\"\"
        ctx.size, ctx._twice = x.shape, 2
        return x.clone()

    @staticmethod
    def backward(ctx, dout):
        return dout * ctx._twice


def change(method, value):
    return method(value)


USED = Plan, Derived, Call, change
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """Runs a text as a worker does under the source policy, and returns its names."""
    monkeypatch.setattr(functools, "update_wrapper", functools.update_wrapper)
    monkeypatch.setattr(enum.EnumType, "_create_", enum.EnumType._create_)
    monkeypatch.setattr(functools, "total_ordering", functools.total_ordering)
    monkeypatch.setattr(dataclasses, "_process_class", dataclasses._process_class)
    walls.install("answer")

    def load(text, differentiates=False):
        path = tmp_path / "answer.py"
        path.write_text(text)
        names = {"__name__": "answer"}
        names |= walls.names(names)
        exec(walls.compiled(text.encode(), str(path), ("attention",), differentiates), names)
        return names

    return load


def test_objects_of_the_file_are_its_own(loaded):
    names = loaded(OWN, True)
    derived = names["Derived"].make()
    derived.more()
    assert (derived.extra, derived.area, derived.count) == (1, 1, 2)
    assert names["Plan"].clear(torch.ones(3)) == (3, (3,))
    x = torch.ones(3, requires_grad=True)
    names["Call"].apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    assert names["Call"].forward.__doc__ == "Keeps a size."


@pytest.mark.parametrize("value", [torch.ones(1), torch.Tensor, torch, 1, None, "text"])
def test_no_method_changes_another_object(loaded, value):
    names = loaded(OWN, True)
    for method in (names["Derived"].more, names["Plan"].area.fget, names["Call"].backward):
        with pytest.raises(walls.NotOwn, match="which is not an object of this file"):
            names["change"](method, value) if method is not names["Call"].backward else method(
                value, 1
            )
    assert not hasattr(value, "extra")


@pytest.mark.parametrize("text", STOPPED)
def test_what_the_text_does_not_show_is_stopped_when_it_runs(loaded, text):
    head = "import torch\nimport triton\nimport triton.language as tl\nq = torch.ones(1)\n"
    with pytest.raises(walls.NotOwn):
        loaded(f"{head}def f(*a):\n    return q\nfirst = f()\n{text}\n")


_quick = forked.quick


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a method called on a text that is evaluated", "_evaluate is read of a ForwardRef"),
        ("a method called on PyTorch's class", "tolist is set on a Tensor"),
        ("a product that a launch makes", "PyTorch computes here: aten::addbmm_"),
    ],
)
def test_what_is_reached_for_is_told(name, told):
    judged = judge(LEAKS[name], load_problem("p02"), checks={"plain"})
    headlines = [finding.message.headline for finding in judged.wrong.values()]
    assert headlines and all(told in headline for headline in headlines)


@pytest.mark.parametrize("made", ["m = make\nKERNEL = m(KERNEL)", "KERNEL = [make][0](KERNEL)"])
def test_a_kernel_that_the_policy_could_not_read_is_refused_when_it_is_launched(made):
    source = model_answer("p02")
    name = re.findall(r"@triton.jit\ndef (\w+)", source)[-1]
    make = "def make(f):\n    return triton.jit(f)\n\n\n"
    source = source.replace(f"@triton.jit\ndef {name}", f"{make}def {name}")
    entry = "def weighted_row_sum("
    source = source.replace(entry, f"{made.replace('KERNEL', name)}\n\n\n{entry}")
    judged = judge(source, load_problem("p02"), checks={"plain"})
    told = "the source policy has not read this function as a kernel; write @triton.jit"
    assert all(told in f.message.headline for f in judged.wrong.values()) and judged.wrong


_PRINTS = (
    '    print(x, w)\n    print("all:", x[0, 0])\n    assert f"{x}".startswith("tensor(...")\n'
)


def test_a_right_answer_may_print():
    source = model_answer("p02")
    line = "    check_matrix_and_vector(x, w)\n"
    in_kernel = edited(source, (line, line + _PRINTS))
    assert judge(in_kernel, load_problem("p02"), checks={"plain", "half"}).wrong == {}


class Asked:
    """Has a length and items; notes in which of them PyTorch had its modes off."""

    def __init__(self):
        self.unseen = []

    def _look(self):
        off = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
        self.unseen.append(off)

    def __len__(self):
        self._look()
        return 2

    def __getitem__(self, i):
        self._look()
        return (3, 4)[i]


ASKING = [torch.tensor, torch.as_tensor, torch.zeros(9).new_tensor, torch.zeros(9).__getitem__]


@pytest.mark.parametrize("ask", ASKING)
def test_a_class_of_the_file_answers_nothing_where_modes_are_off(ask):
    plain = Asked()
    ask(plain)
    assert True in plain.unseen  # else nothing need be refused any more

    class Watched(Asked):
        __len__, __getitem__ = Asked.__len__, Asked.__getitem__

    watched = asking.watched(Watched)()
    with pytest.raises(asking.AskedUnseen, match="PyTorch asks Watched for its items"):
        ask(watched)
    assert True not in watched.unseen
    assert (len(watched), watched[1]) == (2, 4)
    assert torch.tensor([*watched]).tolist() == [3, 4]


@pytest.mark.parametrize("kind", [collections.ChainMap, collections.UserDict])
def test_a_factory_is_not_asked_where_modes_are_off(kind):
    asking.install()
    asked = kind({5: 1})
    assert asked[5] == len(asked) == 1
    modes = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    with torch._C._ExcludeDispatchKeyGuard(modes), pytest.raises(asking.AskedUnseen):
        asked[5]
    assert asked[5] == 1


def test_classes_of_a_file_are_watched(loaded):
    text = "class A:\n    def __len__(self):\n        return 1\n"
    text += "    __getitem__ = range(9).__getitem__\none = A()\n"
    names = loaded(text)
    one = names["one"]
    assert len(one) == 1 and one[2] == 2 and names["A"].__len__.__module__ == "answer"
    with pytest.raises(asking.AskedUnseen):
        torch.tensor(one)


_KERNELS = """
C = tl.constexpr(3)


@triton.jit
def inner(x):
    tl.store(x, C)


@triton.autotune([triton.Config({"M": 1})], key=[])
@triton.heuristics({"N": lambda arguments: 1})
@triton.jit
def outer(x, N: tl.constexpr, M: tl.constexpr):
    inner(x)


@triton.constexpr_function
def doubled(n):
    return 2 * n


ENDED = outer[(1,)](torch.zeros(1))
"""


def test_nothing_open_of_a_kernel_leads_to_a_module_or_to_the_names_of_one(tmp_path):
    """In this version of Triton: what would, is closed in grader/base/attributes.py."""
    path = tmp_path / "kernels.py"
    path.write_text(
        f"import torch\nimport triton\nimport triton.language as tl\n{_KERNELS}", "utf-8"
    )
    script = """if 1:
        import sys
        from grader.kernel.compile import absent_gpu
        from grader.kernel.machine import capture
        from tests.test_walls import leading

        absent_gpu.answer()
        capture.install(lambda launch: None)
        sys.path.insert(0, sys.argv[1])
        import kernels

        print(*leading([kernels.inner, kernels.outer, kernels.doubled, kernels.ENDED]))
    """
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert (found.stdout.strip(), found.stderr) == ("", "")


def leading(waiting, deep=6):
    """Return how what is open of some objects, or what a call of it returns, leads to modules."""
    waiting, found, seen = [("", x, 0) for x in waiting], [], {}
    for path, value, far in waiting:
        names = isinstance(value, dict) and {"__builtins__", "__loader__"} & value.keys()
        if names or isinstance(value, (types.ModuleType, types.FrameType, types.CodeType)):
            found.append(path)
        elif (
            id(value) not in seen and far < deep and not isinstance(value, (str, int, torch.Tensor))
        ):
            seen[id(value)] = value
            parts = [(f"{path}[]", part) for part in _parts(value)]
            for name in dir(value):
                if not attributes.is_closed(name) and not attributes.is_dunder(name):
                    with contextlib.suppress(Exception):
                        parts.append((f"{path}.{name}", getattr(value, name)))
                        if type(value).__module__.startswith("triton") and name != "do_bench":
                            parts.append((f"{path}.{name}()", getattr(value, name)()))
            waiting += [(*part, far + 1) for part in parts]
    return found


def _parts(value):
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else []
