"""Writes notebooks/flash-attention.ipynb, in the notebook format 4.5.

Source: https://github.com/jupyter/nbformat/blob/main/nbformat/v4/nbformat.v4.5.schema.json
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "flash-attention.ipynb"
_OWN = ("torch", "triton", "numpy")  # the notebook's own: pip must not replace them

_HEAD = """\
# Flash attention, in nine problems

Switch a GPU on first (Colab: *Runtime*, *Change runtime type*; Kaggle: *Accelerator* in the
settings, and *Internet*, which the next cell needs). Without one everything but the speed and
memory of your kernels is graded. A T4 has compute capability 7.5: bf16 is left out there, and
Triton, which supports 8.0 and newer, computes dots without tensor cores, so that the speed of a
kernel with dots says little. The assignment has not been run on one.

Nothing here outlives the session: download your answers before you go."""
_COURSE = """\
COURSE = "https://github.com/OWNER/REPOSITORY"  # @param {type:"string"}
PROBLEM = "p02"  # @param {type:"string"}
import os
if not os.path.exists("course"):
    !git clone -q {COURSE} course
%cd course"""
_LOOK = "!make doctor PY=python3"
_WRITE = """\
Open `course/problems` in the file browser on the left, read the `README.md` of your problem and
fill in its steps. Save the file, then run the next cells, as often as you like."""
_REPORT = """\
from IPython.display import HTML, display
from pathlib import Path
from html import escape
page = escape(Path("report.html").read_text(encoding="utf-8"), quote=True)
display(HTML(f'<iframe srcdoc="{page}" width="100%" height="800"></iframe>'))"""
_SUBMIT = """\
!make submit PY=python3
try:
    from google.colab import files
    files.download("submission.zip")
except ImportError:
    from IPython.display import FileLink, display
    display(FileLink("submission.zip"))"""


def notebook() -> str:
    """Return the notebook as JSON text."""
    cells = [
        _markdown(_HEAD),
        _code(_COURSE),
        _code(f"!python3 -m pip install -q {_packages()}"),
        _code(_LOOK),
        _markdown(_WRITE),
        _code("!make grade P={PROBLEM} PY=python3"),
        _code(_REPORT),
        _code("!make race P={PROBLEM} PY=python3  # needs a GPU"),
        _code(_SUBMIT),
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    made = {
        "cells": cells,
        "metadata": {
            "accelerator": "GPU",
            "kernelspec": {"display_name": "Python 3", "name": "python3"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1) + "\n"


def _packages() -> str:
    """The packages of the grader, but for those that the notebook brings along."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [p for p in project["dependencies"] if re.split(r"[<>=]", p)[0] not in _OWN]
    return " ".join(f"'{package}'" for package in named)


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text.splitlines(keepends=True),
    }


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
