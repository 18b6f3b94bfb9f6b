"""The source policy: no way around it that is listed here, its page, and `make lint`."""

import ast
import pkgutil
import re
import time
import types
from functools import partial

import pytest
import torch
import triton.language as tl
from triton.language.extra import cuda

from grader.commands import cli
from grader.commands.lint.command import render
from grader.judge import surroundings
from grader.source.policy import tables
from grader.source.policy.rules import violations
from grader.source.policy.violation import RULES
from grader.source.submission import MAX_SOURCE_BYTES, examine
from grader.spec.grade_record import Verdict
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.environments import CPU
from tests.evasions import EVASIONS, P01
from tests.harness import model_answer
from tests.records import write_answers

PAGE = ROOT / "docs" / "source-policy.md"
HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
PROBLEMS = {id: load_problem(id) for id in problem_ids()}


def broken(text, problem_id="p04"):
    """The rules that a file breaks, in the order of its lines."""
    return [v.rule for v in violations(PROBLEMS[problem_id], ast.parse(text))]


def entry(body, problem_id="p04"):
    """A file whose entry point does `body`."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}\n\ndef {PROBLEMS[problem_id].signature}:\n{lines}"


@pytest.mark.parametrize(("rule", "line"), EVASIONS)
def test_ways_around_a_rule_are_refused(rule, line):
    assert broken(HEAD + line + uses(line))[:1] == [rule]


def uses(text):
    """Lines that use what the top of a file imports."""
    imports = [n for n in ast.parse(text).body if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = [alias.asname or alias.name.partition(".")[0] for n in imports for alias in n.names]
    return "".join(f"\n{name}.x" for name in names if name != "*")


@pytest.mark.parametrize(
    "line",
    [
        *("import os", "import numpy as np", "import os.path", "import torch.nn.functional as F"),
        *("from triton.testing import do_bench", "from torch.nn import functional as F"),
        *("try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None",),
        *("import time\ndef f(): return time.time()", "def f():\n    import sys\nf()"),
        *("import os\nimport math as os_math\nos_math.pi", "from torch import softmax"),
    ],
)
def test_an_import_that_nothing_uses_is_not_looked_at(line):
    assert broken(HEAD + line) == []


@pytest.mark.parametrize(
    "line",
    [
        *("import os\nx = os", "import os\nlambda: os.x", "import os\n[os for _ in ()]"),
        *("def f():\n    global os\n    import os\nf()\nos.x", "import os\nf'{os}'"),
        *("import os as a\ndef f(x=a): return x\nf()", "from . import a", "from os import *"),
        "import os\ndel os\nos.x",
        *("class A:\n    import os", "try:\n    import os\nfinally:\n    os.x"),
        "import os\n@os.x\ndef f(): pass",
    ],
)
def test_an_import_is_used_wherever_its_name_is_read(line):
    assert set(broken(HEAD + line)) == {"import"}


def test_there_are_many_evasions_of_each_rule():
    assert len(EVASIONS) >= 60
    assert {rule for rule, _ in EVASIONS} == set(RULES)


@pytest.mark.parametrize(("rule", "line"), P01)
def test_p01_has_no_shortcuts(rule, line):
    assert broken(HEAD + line + uses(line), "p01")[:1] == [rule]


@pytest.mark.parametrize("module", [torch, torch.nn.functional, torch.cuda, tl, tl.math, cuda])
def test_no_open_module_leads_to_a_closed_one(module):
    """Whatever else PyTorch and Triton import at their top, now or in another version."""
    inside = {n for n in dir(module) if isinstance(getattr(module, n), types.ModuleType)}
    inside |= {found.name for found in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    for id, problem in PROBLEMS.items():
        opened = tables.open_modules(problem)
        for name in inside if module.__name__ in opened else ():
            if f"{module.__name__}.{name}" not in opened:
                path = f"import {module.__name__} as m\nm.{name}"
                assert broken(path, id), path


@pytest.mark.parametrize("module", [torch, torch.nn.functional, tl, tl.math, cuda, cuda.libdevice])
def test_no_open_module_lends_what_it_has_borrowed(module):
    """Of Python's own classes and functions a file uses those of modules that it may import."""
    for problem in ("p01", "p04"):
        opened = tables.open_modules(PROBLEMS[problem])
        for name in dir(module) if module.__name__ in opened else ():
            home = getattr(getattr(module, name), "__module__", None) or "torch"
            # "grader": what another test of this process has the judge count
            if name[0] != "_" and home.partition(".")[0] not in ("torch", "triton", "grader"):
                assert broken(f"import {module.__name__} as m\nm.{name}", problem), name


BRIDGE = """
def attention_gradients(q, k, v, out, lse, dout, *, softmax_scale=None):
    return _tile(q, k).softmax(-1)


def _tile(q, k):
    return torch.exp(q @ k.mT)


def gqa_attention(q, k, v, *, softmax_scale=None):
    return {result}
"""


def test_a_bridge_in_pytorch_computes_and_nothing_else_does():
    assert broken(HEAD + BRIDGE.format(result="q"), "p08") == []
    text = HEAD + BRIDGE.format(result="_tile(q, k)")
    (found,) = violations(PROBLEMS["p08"], ast.parse(text))
    assert (found.line, found.rule) == (10, "torch-computes")
    assert "gqa_attention needs this function too" in found.help
    text = HEAD + BRIDGE.format(result="torch.autograd.grad(q, k)")
    assert broken(text, "p08") == ["shortcut"]
    in_bridge = BRIDGE.replace("_tile(q, k).softmax(-1)", "torch.autograd.grad(out, q, dout)")
    assert broken(HEAD + in_bridge.format(result="q"), "p08") == ["shortcut"]


def test_p03_has_a_bridge_of_triton():
    text = entry("return q.logsumexp(-1)", "p03").replace("attention(q, k, v, *", "row_logsumexp(q")
    text = text.replace(", softmax_scale=None", "")
    assert broken(text, "p03") == ["torch-computes"]


UNUSED = "def helper(q):\n    return q @ q\n"


@pytest.mark.parametrize(
    "use",
    [
        "x = helper",
        "def attention(q): return helper(q)",
        "def attention(q): return other(q)\ndef other(q): return helper(q)",
        "class A:\n    def f(self, q): return helper(q)\nx = A()",
        "class A:\n    x = [helper]",
        "def attention(q, f=helper): return f(q)",
        "@helper\ndef f(): pass",
        "if 1:\n    y = [helper]",
        'if __name__ == "__main__":\n    pass\nelse:\n    helper(1)',
        'if __name__ != "__main__":\n    helper(1)',
    ],
)
def test_what_runs_is_looked_at(use):
    assert broken(HEAD + UNUSED) == []
    assert broken(f"{HEAD}{UNUSED}{use}") == ["torch-computes"]


UNUSED_CLASS = """
class Reference(%s):
    @staticmethod
    def forward(ctx, q, k, v):
        return torch.softmax(q @ k.mT, -1) @ v
"""


@pytest.mark.parametrize("base", ["", "object", "ValueError", "torch.autograd.Function"])
def test_a_class_that_nothing_names_is_not_looked_at(base):
    unused = UNUSED_CLASS % base
    assert broken(HEAD + unused + "class Other(Reference):\n    def f(q):\n        q @ q") == []
    named = "def attention(q, k, v): return Reference().forward(0, q, k, v)"
    assert broken(HEAD + unused + named) == ["shortcut", "torch-computes"]
    assert (
        broken(f"{HEAD}{unused}def attention(q): return f(q)\ndef f(q): return Reference()") != []
    )


@pytest.mark.parametrize(
    "use",
    [
        "@%s\nclass A:\n    def f(self): torch.bmm",
        "class A(metaclass=abc.ABCMeta):\n    def f(self): torch.bmm",
        "class A:\n    def f(x=torch.bmm): 0",
        "class A:\n    if 1:\n        torch.bmm",
        "class A:\n    class B:\n        def f(): torch.bmm\n    B.f()",
        "class B:\n    def __init_subclass__(cls): cls.f()\nclass A(B):\n    def f(): torch.bmm",
        "def attention(q):\n    class A:\n        def f(): torch.bmm\n    return A.f()",
    ],
)
def test_what_a_class_runs_or_hands_on_is_looked_at(use):
    """Its methods run unseen where something other than the text can call them."""
    assert broken("import abc, enum, torch\n" + use.replace("%s", "print")) != []


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("if triton is None:\n    raise ImportError('install triton')", []),
        ("if not triton:\n    raise ImportError('install triton')", []),
        ("x = 1 if triton is not None else 2", []),
        ("x = triton or 1", ["import"]),
        ("x = triton == A()", ["import"]),
        ("x = triton if triton else 0", ["import"]),
    ],
)
def test_a_module_may_be_asked_for(line, rules):
    guard = "try:\n    import triton\nexcept ImportError:\n    triton = None\n"
    assert broken(guard + line) == rules


def test_p08_and_p09_sum_over_rows():
    line = "lambda s, lse, delta: (torch.exp(s - lse) * delta).sum((0, 2)).sigmoid()"
    assert [id for id in PROBLEMS if not broken(HEAD + line, id)] == ["p01", "p08", "p09"]


@pytest.mark.parametrize(
    "line",
    [
        "f = (torch.a.b.c.d.e.f.g.h)\n",
        "torch = torch.nn\n",
        "class A:\n  def f(self): return self._x @ getattr(self, 'y')\n",
        "x = [lambda: [y for y in x] for x in (z := 1,)]\n",
    ],
)
def test_a_quarter_of_the_longest_file_takes_little_time(line):
    tree = ast.parse(HEAD + line * (MAX_SOURCE_BYTES // 4 // len(line)))
    begin = time.process_time()
    violations(PROBLEMS["p04"], tree)
    assert time.process_time() - begin < 3.0


def test_chains_of_names_take_little_time():
    lines = [f"a{n} = a{n + 1}" for n in range(1500)]
    for order in (lines, lines[::-1]):
        text = "\n".join([HEAD, *order, "a1500 = torch", *order, "a0.matmul"])
        begin = time.process_time()
        assert "torch-computes" in broken(text)
        assert time.process_time() - begin < 3.0


def test_chains_of_functions_and_kernels_take_little_time():
    helpers = [f"def f{n}(): f{n + 1}()" for n in range(1500)]
    kernel = "@triton.jit\ndef k(): f0()"
    kernels = ["def f(): 0\ntriton.jit(f)"] * 1500
    for lines in ([kernel, *helpers], [*helpers[::-1], kernel], kernels):
        begin = time.process_time()
        assert broken("\n".join([HEAD, *lines])) == []
        assert time.process_time() - begin < 3.0


def test_depth_is_no_matter():
    for link in (".mT", ".to()", "[0]"):
        tree = ast.parse(f"{HEAD}x = q{link * 700} @ q")
        begin = time.process_time()
        assert [v.rule for v in violations(PROBLEMS["p04"], tree)] == ["torch-computes"]
        assert time.process_time() - begin < 3.0


EXAMPLE = re.compile(
    r"^```python\n# (p\d\d): (accepted|refused \(([\w-]+)\))\n(.*?)^```$", re.M | re.S
)


def test_the_page_has_every_rule_with_an_example_that_is_refused():
    text = PAGE.read_text("utf-8")
    headings = re.findall(r"^### `([\w-]+)`: (.+)$", text, re.MULTILINE)
    assert dict(headings) == RULES
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python")
    assert {rule for _, _, rule, _ in examples if rule} == set(RULES)


def test_examples_of_the_page_are_judged_as_it_says():
    for problem, _, rule, code in EXAMPLE.findall(PAGE.read_text("utf-8")):
        assert set(broken(code, problem)) == ({rule} if rule else set()), code


def test_the_page_names_what_is_open():
    text = PAGE.read_text("utf-8")
    for name in tables.DYNAMIC | dict.fromkeys(["softmax", "log_softmax", "MultiheadAttention"]):
        assert f"`{name}`" in text
    for link in ("README.md", "docs/grading.md"):
        assert "source-policy.md" in (ROOT / link).read_text("utf-8")


REFUSED = "import os; os.getpid()\n" + model_answer("p02").replace(
    "    check_matrix_and_vector(x, w)\n", "    check_matrix_and_vector(x, w)\n    x @ w\n"
)


def test_a_refused_file_tells_the_first_violation_and_how_many_there_are():
    source = examine(PROBLEMS["p02"], REFUSED.encode())
    assert source.verdict is Verdict.REJECTED and source.data == REFUSED.encode()
    message = source.message
    assert message.headline == "source policy (import): os is not open to submissions"
    assert (message.file, message.line) == ("p02/weighted_row_sum.py", 1)
    assert message.extent == "1 more violation of the source policy"
    assert "make lint P=p02" in message.help
    assert examine(PROBLEMS["p02"], REFUSED.encode(), policy=False).verdict is None


def test_what_is_closed_is_not_taken_for_a_tensor():
    text = "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True"
    assert broken(text) == ["import", "patching"]


def test_names_of_any_length_make_short_messages():
    (found,) = violations(PROBLEMS["p02"], ast.parse("import " + "x" * 10_000 + " as y; y"))
    assert len(found.text) < 120


@pytest.fixture
def lint(grader):
    return partial(grader, "lint")


def test_lint_lists_every_violation_of_every_file(lint, tmp_path):
    write_answers(tmp_path, {"p02": REFUSED, "p03": model_answer("p03"), "p04": "def f(:\n"})
    code, out, _ = lint(tmp_path)
    lines = out.splitlines()
    assert code == 1 and max(map(len, lines)) <= 80
    assert lines[0] == "p02/weighted_row_sum.py:1: import: os is not open to submissions"
    assert lines[1].startswith("    help: leave it out: the judge sets TRITON_INTERPRET")
    assert re.search(r"^p02/weighted_row_sum.py:\d+: torch-computes: @ multiplies", out, re.M)
    assert "p03/noncausal_attention.py: ok" in lines
    assert lines[-1] == "p04/causal_attention.py:1: syntax error: invalid syntax"
    assert lint(tmp_path, "--only", "p03")[0] == 0


def test_lint_of_what_is_no_submission_is_a_mistake_of_usage(lint, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, out, err = lint(folder)
        assert (code, out) == (2, "") and err.startswith("grader: DIR (SUBMISSION= of make): got ")


def test_lint_shows_no_letter_that_a_terminal_obeys():
    data = "import \u202a\n".encode()
    hostile = [
        examine(PROBLEMS["p04"], text)
        for text in (data, b"getattr(q, '\\x1b[31m')\nx.__\xe2\x80\xae__", b"import \xe7\xad\x94\n")
    ]
    text = render(hostile)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    quoted = b"getattr(getattr(q, '__\\x1b[31m\\u202e__'), 'x')\n"
    text = render([examine(PROBLEMS["p04"], quoted)])
    assert "private-name" in text and "\x1b" not in text and "\u202e" not in text


def test_grade_without_the_policy_says_so(tmp_path, capfd, monkeypatch):
    text = "import os\n\n\ndef weighted_row_sum(x):\n    return os.getpid()\n"
    write_answers(tmp_path, {"p02": text})
    monkeypatch.setattr(surroundings, "probe", lambda device: CPU)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    options = ["grade", "--submission", str(tmp_path), "--only", "p02", "--device", "cpu"]
    assert cli.main(options) == 1
    out, _ = capfd.readouterr()
    assert "error[P02-REJECTED]: source policy (import): os is not open" in out
    assert "1 problem: 0 passed, 1 rejected" in out
    assert cli.main([*options, "--no-policy"]) == 1
    out, _ = capfd.readouterr()
    assert "--no-policy: the source policy was left out" in out and "wrong signature" in out
    assert cli.main([*options, "--no-policy", "--official"]) == 2
