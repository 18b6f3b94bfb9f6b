"""Names the rules, and describes a place that breaks one."""

from __future__ import annotations

import ast
import dataclasses

RULES = {
    "import": "only these modules, and of each only what is open",
    "dynamic-code": "no text is run, and no name is built from text",
    "private-name": "no names that begin with an underscore except your own",
    "patching": "nothing that was imported is changed",
    "torch-computes": "from p02 on kernels compute, and PyTorch serves them",
    "shortcut": "no ready-made attention, softmax or gradients",
}
_TESTS = 'code that tests yours belongs under `if __name__ == "__main__":`, which is not checked'
HELP = {
    "import": f"import torch, triton, math or given; {_TESTS}",
    "dynamic-code": f"write the call or the attribute as code; {_TESTS}",
    "private-name": "use public names, or take the underscore off a name of your own",
    "patching": "leave it as it is, and write a function or an object of your own",
    "torch-computes": f"compute it in a kernel; {_TESTS}",
    "shortcut": f"write it yourself: that is the exercise; {_TESTS}",
}
_HELP_FOR = {
    "abc.ABCMeta": "extend abc.ABC",
    "os": "leave it out: the judge sets TRITON_INTERPRET, and you export others in the shell",
    "numpy": "use torch for arrays, and math for numbers",
    "time": 'measure time under `if __name__ == "__main__":`, which is not checked',
    "triton.testing": 'measure time under `if __name__ == "__main__":`, which is not checked',
    "operator": "write the operator itself",
    "logging": "leave it out; print() shows what you want to see",
    "einops": "use reshape, permute and transpose",
    "jaxtyping": "annotate with torch.Tensor, and say the shape in a comment",
    "packaging": 'compare numbers: tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 6)',
    "torch.backends": "leave it out: tl.dot takes input_precision, and PyTorch's fp32 is fp32",
    "torch.cuda": f"leave it out; {_TESTS}",
    "torch.nn.Module": "write a function, or a class of your own that has no base",
    "torch.profiler": 'measure time under `if __name__ == "__main__":`, which is not looked at',
    "torch.compiler": "leave it out: nothing here runs under torch.compile",
    "torch.library": "launch the kernel itself: kernel[grid](...)",
}
_LONGEST_NAME = 60


@dataclasses.dataclass(frozen=True, order=True)
class Violation:
    """What breaks a rule: its line, what was found there in a sentence, and what to do instead."""

    line: int
    rule: str
    text: str
    help: str


def violation(node: ast.AST, rule: str, text: str, help: str | None = None) -> Violation:
    """Say that `node` breaks `rule`, with the help of that rule if there is none of its own."""
    return Violation(getattr(node, "lineno", 1), rule, text, help or HELP[rule])


def closed(node: ast.AST, path: str) -> Violation:
    """Say that `node` imports or names `path`, which is not open."""
    around = (module for module in _HELP_FOR if f"{path}.".startswith(f"{module}."))
    help = _HELP_FOR.get(max(around, key=len, default=""))
    return violation(node, "import", f"{shortened(path)} is not open to submissions", help)


def shortened(name: str) -> str:
    """Return a name for a message: a long one loses its end."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
