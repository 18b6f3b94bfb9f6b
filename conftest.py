"""Lets `pytest problems/pNN` run inside .venv, and says what to type outside of it."""

import os
import sys

_ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _ROOT)

try:
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import rich  # noqa: F401
    import torch  # noqa: F401
    import triton  # noqa: F401
except ImportError as error:
    problems = os.path.join(_ROOT, "problems")
    first = min(name for name in os.listdir(problems) if name[1:].isdigit())
    sys.exit(
        f"{error.name} is not installed for {sys.executable}; what is needed is in .venv:\n"
        f"  make -C '{_ROOT}' setup && '{_ROOT}/.venv/bin/pytest' '{problems}/{first}'\n"
        f"  make -C '{_ROOT}' doctor   tells more"
    )

pytest_plugins = ["grader.judge.pytest_plugin"]
