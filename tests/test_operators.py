"""What a record of operators finds, one operator or function after the other, in this process.

tests/test_operator_reads.py has what reads values, and tests/test_elsewhere.py submissions that try
it in a worker.
"""

import contextlib
import warnings
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
import triton

from grader.isolate import operators
from grader.kernel import readings
from grader.source.policy import tables
from grader.source.policy.operators import (
    MOST_ARITHMETIC,
    MOST_ELEMENTS,
    MOST_PADDED,
    MOST_READ,
    PADDED_ROWS,
    opened,
)
from grader.spec.problem import ROOT, load_problem

Q = torch.arange(2 * 2 * 32 * 4, dtype=torch.float32).reshape(2, 2, 32, 4)
LAYOUT = SimpleNamespace(inputs=[SimpleNamespace(size=tuple(Q.shape))], outputs=[])


def found(compute, problem="p04", *, gradients=False, idle=False, layout=LAYOUT):
    """What is found when `compute` runs in a call of a problem, as kind and headline."""
    view = load_problem(problem)
    readings.install()
    record = operators.OperatorAudit(opened(view), __file__)
    with record.noting(layout, {"gradients": gradients, "idle": idle}):
        compute()
    use = record.found
    return use and (use.kind, use.text.partition("; ")[0])


@pytest.mark.parametrize(
    "product",
    [
        lambda c, a, b: a @ b,
        lambda c, a, b: torch.bmm(a, b, out=c),
        lambda c, a, b: torch.baddbmm(c, a, b, out=c),
        lambda c, a, b: c.baddbmm_(a, b),
        lambda c, a, b: [c[n].addmm_(a[n], b[n]) for n in (0, 1)],
    ],
)
def test_a_product_counts_in_place_and_with_out_too(product):
    record = operators.OperatorAudit(opened(load_problem("p01")), __file__)
    with record.noting(LAYOUT, {"gradients": False}):
        product(torch.zeros(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    assert record.multiply_adds == 2 * 3 * 4 * 5


M, I = torch.arange(16.0).reshape(4, 4), torch.tensor([0, 1])  # noqa: E741
INDEX = torch.zeros(4, 4, dtype=torch.int64)
MASK = M > 3
ARGUMENTS = [
    *((), (M,), (M, M), (M, 0), (M, 2, 0), (M, 1, 0, 1), (M, (4, 4)), (M, 0, I), (M, MASK, 1.0)),
    *((MASK,), (MASK, MASK), (MASK, M, M), ([M, M],), (M, I), (M, 0, INDEX), ((4, 4),)),
    *(((4, 4), 1.0), (0, 4, (4, 4)), (0, 4, 5), (4,), (M, (4, 4), (4, 1)), ((4, 4), (4, 1))),
    *((M, 0, 1), (M, 1, (2, 2)), (M, (0, 1)), (M, INDEX, 0), (torch.ones(3, 2),), (M, 1.0)),
    *((torch.ones(3, dtype=torch.complex64),), (torch.float32, torch.float16), ("cpu",)),
]


@pytest.mark.parametrize("group", ["_ALLOCATE", "_RESHAPE", "_CHECK", "_OPERATORS", "ROWS"])
def test_what_the_source_policy_opens_may_run(group):
    names = getattr(tables, group)
    problem = "p08" if group == "ROWS" else "p04"
    names = names.split() if isinstance(names, str) else names
    for name in sorted({*names} - {"get_autocast_dtype", "manual_seed", "set_printoptions"}):
        function, results = getattr(torch, name), []
        for inference in (False, True):
            for arguments in ARGUMENTS:
                with warnings.catch_warnings(action="ignore"), torch.inference_mode(inference):
                    with contextlib.suppress(Exception):  # of another number or kind
                        results.append(found(partial(function, *arguments), problem))
        assert set(results) == {None}, f"torch.{name}"


HONEST = {
    "casts": lambda: Q.half().to(torch.float64).float().contiguous().clone(),
    "views": lambda: Q.mT.unsqueeze(0).expand(3, -1, -1, -1, -1).flatten(0, 1)[:, ::2].chunk(2),
    "a scale": lambda: Q * 2 - torch.where(Q > 0, 1, 0),
    "checks of all inputs": lambda: [bool(torch.isfinite(Q).all()) for _ in range(3)],
    "a table": lambda: torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
    "put in places": lambda: torch.zeros(4).index_put_((INDEX[0],), M[0]).scatter_(0, I, 1.0),
    "written to": lambda: Q.clone().zero_().fill_(1.0)[:, 0].copy_(Q[:, 1]).index_fill_(0, I, 0.0),
    "printed": lambda: print(Q, f"{Q}", repr(Q)),
    "repeated heads": lambda: Q.repeat_interleave(2, 1).add_(1.0),
    "lse of a maximum and a sum": lambda: Q.amax(-1) + Q.clamp(min=1.0).amax(-1).log2(),
    "a schedule": lambda: torch.arange(64).sort(descending=True).values.flip(0),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_serves_kernels_may_run(name):
    assert found(HONEST[name]) is None


def test_sums_over_rows_may_run_in_a_backward_pass():
    logits, lse = torch.zeros(2), Q.amax(-1)

    def delta():
        rows = (Q.half().float() * Q).sum(-1)
        return -(torch.exp(logits[:, None] - lse) * rows).sum((0, 2)), rows.mean(), rows.sigmoid()

    assert found(delta, "p08") is found(delta, "p09", gradients=True) is None
    assert found(delta, "p07") == ("computes", "PyTorch computes here: aten::sum")


class Lazy(torch.Tensor):
    """Computes when it is looked at."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch.mm(M, M)


class Plain(torch.Tensor):
    """Does what a tensor does."""


class Wrapped(torch.Tensor):
    """Computes where its operators arrive."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return args[0].held @ args[0].held.mT


def library(name):
    """An operator of a library, written in Python."""
    made = torch.library.Library(name, "FRAGMENT")
    made.define("product(Tensor a) -> Tensor")
    made.impl("product", lambda a: a @ a.mT, "CPU")
    LIBRARIES.append(made)
    return getattr(torch.ops, name).product


LIBRARIES = []
PRODUCT = library("grader_tests")
COMPUTES = {
    "an operator": (lambda: Q @ Q.mT, "aten::bmm"),
    "out=": (lambda: torch.mm(M, M, out=torch.empty(4, 4)), "aten::mm"),
    "on a view, in place": (lambda: M.clone()[:2].mul_(2.0).exp_(), "aten::exp_"),
    "by its namespace": (lambda: torch.ops.aten.mm.default(M, M), "aten::mm"),
    "an overload with out": (lambda: torch.ops.aten.exp.out(M, out=M.clone()), "aten::exp"),
    "einsum": (lambda: torch.einsum("bhik,bhjk->bhij", Q, Q), "aten::bmm"),
    "a library": (lambda: PRODUCT(Q), "grader_tests::product"),
    "a convolution": (lambda: torch.conv2d(Q, Q), "aten::convolution"),
    "sums by an index": (lambda: torch.zeros(4).index_add_(0, INDEX[0], M[0]), "aten::index_add_"),
    "sums by places": (
        lambda: torch.zeros(4).index_put_((INDEX[0],), M[0], accumulate=True),
        "aten::index_put_",
    ),
    "sums by a scatter": (
        lambda: torch.zeros(4).scatter_(0, INDEX[0], M[0], reduce="add"),
        "aten::scatter_",
    ),
    "a power is an exponential": (lambda: 2.0**Q, "aten::pow"),
    "in inference mode": (torch.inference_mode()(lambda: torch.matmul(Q, Q.mT)), "aten::bmm"),
    "a class of its own": (lambda: Q.as_subclass(Plain) @ M, "aten::mm"),
    "a class that computes": (lambda: Q.as_subclass(Lazy) + 1, "aten::mm"),
    "a class below autograd": (lambda: Wrapped(Q) + 1, "aten::bmm"),
}


@pytest.mark.parametrize("name", COMPUTES)
def test_what_computes_is_found(name):
    compute, operator = COMPUTES[name]
    assert found(compute) == ("computes", f"PyTorch computes here: {operator}")


@pytest.mark.parametrize("path", [triton.__path__[0], str(ROOT / "grader" / "running")])
def test_what_triton_or_the_judge_calls_is_not_theirs(path):
    """A callback in C has no frame of its own: the next one is theirs."""
    readings.install()  # before a method is taken from its tensor, whichever test comes first
    code = {}
    exec(compile("def call(callback):\n    callback()", f"{path}/access.py", "exec"), code)
    callbacks = {
        partial(torch.mm, M, M): "computes",
        partial(torch.addcmul, *[torch.ones(128, 128)] * 3): "computes",
        cache(Q.tolist): "reads",
        partial(list, Q.untyped_storage()): "reads",
        Q.untyped_storage: None,
        Q.clone: None,
    }
    for callback, kind in callbacks.items():
        use = found(lambda called=callback: code["call"](called))
        assert (use and use[0]) == kind, callback


def often(compute, times):
    """What is found when something is computed so many times in one call."""
    return found(lambda: [compute() for _ in range(times)])


PAIRS, HALF = torch.view_as_complex(Q.reshape(-1, 2)), Q[1].half()
BY_ELEMENTS = {
    "arithmetic": (lambda: Q + 1.0, "add"),
    "a complex number, which is two": (lambda: PAIRS * PAIRS, "mul"),
    "a conversion": (lambda: Q.half(), "_to_copy"),
    "a conversion to truth values": (lambda: Q.bool(), "_to_copy"),
    "a conversion in inference mode": (lambda: INFERENCE(Q.to)(torch.int32), "_to_copy"),
    "a copy of another type": (lambda: torch.empty_like(Q, dtype=torch.int8).copy_(Q), "copy_"),
    "joined with another type": (lambda: torch.cat((Q[0], HALF)), "cat"),
}
INFERENCE = torch.inference_mode()


@pytest.mark.parametrize("name", BY_ELEMENTS)
def test_what_computes_element_by_element_has_a_limit(name):
    compute, operator = BY_ELEMENTS[name]
    assert often(compute, MOST_ELEMENTS) is None
    text = f"PyTorch computes here, element by element: aten::{operator}"
    assert often(compute, MOST_ELEMENTS + 1) == ("computes", text)


@pytest.mark.parametrize(
    "same", [Q.clone, lambda: Q.to(Q.dtype, copy=True), lambda: torch.cat((Q, Q))]
)
def test_a_copy_of_the_same_type_computes_nothing(same):
    assert often(same, MOST_ELEMENTS + 1) is None


def test_attention_by_broadcasting_is_beyond_the_limit():
    heads = torch.ones(1, 1, 64, 16)

    def by_broadcasting():
        return (heads[:, :, :, None] * heads[:, :, None]).sum(-1)

    told = ("computes", "PyTorch computes here, element by element: aten::mul")
    assert found(by_broadcasting, "p08") == found(by_broadcasting, "p04") == told


def test_short_sequences_may_be_padded_to_whole_tiles():
    """And what was padded scaled and summed up; attention by broadcasting makes more than that."""
    short = torch.rand(1, 4, 1, 16)
    layout = SimpleNamespace(inputs=[SimpleNamespace(size=short.shape)] * 4, outputs=[])

    def padded():
        whole = torch.nn.functional.pad(short, (0, 0, 0, PADDED_ROWS - 1))
        return (whole * 0.125, (whole.float() * whole).sum(-1), whole.view(1, 2, 2, -1, 16).sum(2))

    assert found(padded, "p08", layout=layout) is None
    assert found(lambda: [padded() for _ in range(5)], "p08", layout=layout)[0] == "computes"
    heads = torch.ones(1, 4, PADDED_ROWS, 16)
    layout = SimpleNamespace(inputs=[SimpleNamespace(size=heads.shape)] * 4, outputs=[])
    told = found(lambda: heads[:, :, :, None] * heads[:, :, None], "p08", layout=layout)
    assert told[0] == "computes"


def test_gradients_and_ready_made_attention_are_shortcuts():
    attention = torch.nn.functional.scaled_dot_product_attention
    x = Q.clone().requires_grad_()

    def differentiate():
        with torch.enable_grad():
            torch.autograd.grad((x * x).amax(), x)

    for compute in (lambda: attention(Q, Q, Q), lambda: Q.softmax(-1), differentiate):
        assert found(compute, "p01")[0] == "shortcut"
    assert found(torch.inference_mode()(lambda: attention(Q, Q, Q)), "p01")[0] == "shortcut"
    assert found(differentiate, "p08")[0] == "shortcut"
    assert found(differentiate, "p08", gradients=True) is None
    assert found(lambda: (Q @ Q.mT).exp().logsumexp(-1), "p01") is None


def test_idle_calls_and_what_runs_between_calls_are_not_noted():
    record = operators.OperatorAudit(opened(load_problem("p04")), __file__)
    with record.noting(LAYOUT, {"gradients": False, "idle": True}):
        Q @ Q.mT
    Q @ Q.mT
    assert record.found is None


def test_p02_leaves_sums_and_products_to_kernels():
    x, w, rules = torch.rand(9, 64), torch.rand(64), opened(load_problem("p02"))

    def halved(p):
        while p.shape[1] > 1:
            p = p[:, ::2] + p[:, 1::2]
        return p

    def by_modulus(p):  # a complex number's is the root of a sum of squares
        while p.shape[1] > 1:
            p = torch.view_as_complex(p.unflatten(1, (-1, 2))).abs()

    def of(compute, *inputs):
        record = operators.OperatorAudit(rules, __file__)
        layout = SimpleNamespace(
            inputs=[SimpleNamespace(size=t.shape) for t in inputs or (x, w)],
            outputs=[SimpleNamespace(size=x.shape[:1])],
        )
        with record.noting(layout, {"gradients": False}):
            compute()
        return record.found and record.found.text

    for compute in (lambda: halved(x), lambda: x * w, lambda: by_modulus(x), lambda: sum(x.mT)):
        assert "sums and products so far" in of(compute) and "0.25 are allowed" in of(compute)
    assert of(lambda: [x.isnan().any(), x.abs().max(), x.isfinite().all(), w.float() * 1]) is None
    assert of(lambda: [x.double().contiguous().clone(), (x > 0).logical_or(x < 0)]) is None
    row = torch.rand(1, 64)
    assert of(lambda: row[0] * 2, row, row[0]) is None  # the weights, once
    assert "sums and products so far" in of(lambda: halved(row * row), row, row[0])


def test_tables_and_masks_do_not_compute():
    table, places = torch.rand(256), torch.randint(256, (16 * Q.numel() + 1,))
    hidden = torch.zeros(len(places), dtype=torch.bool)
    for compute in (lambda: table[places], lambda: hidden.clone().masked_fill_(hidden, True)):
        assert found(compute)[0] == "computes"


def test_what_is_not_seen_is_said():
    """PyTorch's private switches; docs/source-policy.md and the module name the others."""
    from torch.utils._python_dispatch import _disable_current_modes

    def hidden():
        with _disable_current_modes():
            return Q @ Q.mT

    assert found(hidden) is None
    page = (ROOT / "docs" / "source-policy.md").read_text("utf-8")
    assert "private switches" in page and "private functions" in operators.__doc__


def test_the_page_says_how_much_is_open():
    page = " ".join((ROOT / "docs" / "source-policy.md").read_text("utf-8").split())
    assert f"make {MOST_ELEMENTS} elements per element of the inputs" in page
    assert f"or {MOST_PADDED} per element of the inputs padded to {PADDED_ROWS} rows" in page
    assert f"{MOST_ARITHMETIC['p02']:g} elements per element of the inputs" in page
    assert f"- {MOST_READ} tensor elements per call" in page
