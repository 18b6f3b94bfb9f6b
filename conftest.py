"""Lets `pytest problems/p04` run inside .venv, and says what to type outside of it."""

import os
import sys

import pytest

_ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _ROOT)

try:
    import pydantic  # noqa: F401
    import torch  # noqa: F401
    import triton  # noqa: F401
except ImportError as error:
    pytest.exit(
        f"{error.name} is not installed for {sys.executable}; the packages are in .venv:\n"
        f"  make -C {_ROOT} setup && {_ROOT}/.venv/bin/pytest problems/p01",
        returncode=4,
    )

pytest_plugins = ["grader.pytest_plugin"]
