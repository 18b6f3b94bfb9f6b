"""The notebook: it is the one that its source makes, and its cells run in order on a CPU."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from grader.spec.problem import ROOT
from notebooks.__main__ import NOTEBOOK, notebook
from tests import releases
from tests.harness import model_answer
from tests.records import write_answers

CELLS = json.loads(notebook())["cells"]

# What is graded is refused at once: tests/test_release.py has a release grade a right answer.
EDITS = {
    "make grade": "def weighted_row_sum(x):\n    return x\n",
    "make submit": model_answer("p02"),
}


def test_it_is_made_from_its_source():
    assert NOTEBOOK.read_text(encoding="utf-8") == notebook()


def test_it_has_what_the_format_asks():
    """As https://github.com/jupyter/nbformat/blob/main/nbformat/v4/nbformat.v4.5.schema.json."""
    made = json.loads(notebook())
    assert set(made) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        keys = {"id", "cell_type", "metadata", "source"}
        code = {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        assert set(cell) == keys | code and re.fullmatch(r"[\w-]{1,64}", cell["id"])


def test_pip_is_asked_for_nothing_that_replaces_torch():
    (line,) = (c["source"][0] for c in CELLS if "pip install" in "".join(c["source"]))
    assert "pydantic" in line and not re.search(r"torch|triton|numpy", line)


class Shell:
    """Runs the lines of a cell that are not Python, as a notebook does."""

    def __init__(self, folder, names):
        self.folder, self.names, self.said = folder, names, ""

    def line(self, text):
        command = re.sub(r"\{(\w+)\}", lambda m: str(self.names[m[1]]), text)
        command = command.replace("python3", sys.executable)
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=120,
            env=os.environ | {"PIP_NO_INDEX": "1"},
        )  # fmt: skip
        self.said = done.stdout + done.stderr
        return done.returncode

    def cd(self, name):
        self.folder = self.folder / name


def test_its_cells_run_in_order(tmp_path, monkeypatch):
    course = tmp_path / "origin"
    releases.made(course, "--problems", "p01,p02")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        user = ["-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", *user, *words], cwd=course, check=True, capture_output=True)
    shown = []
    display = types.ModuleType("IPython.display")
    display.HTML, display.FileLink, display.display = str, str, shown.append
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "google.colab", None)
    monkeypatch.chdir(tmp_path)
    names = {}
    shell = Shell(tmp_path, names)
    names["_shell"] = shell
    said = {}
    for cell in CELLS:
        if cell["cell_type"] != "code":
            continue
        for command, text in EDITS.items():  # what a student does in the file browser
            if command in "".join(cell["source"]):
                write_answers(Path("problems"), {"p02": text})
        text = "".join(cell["source"]).replace("https://github.com/OWNER/REPOSITORY", str(course))
        text = re.sub(r"^( *)!(.*)$", r"\1_code = _shell.line(\2!r)", text, flags=re.MULTILINE)
        text = re.sub(r"_shell\.line\((.*)!r\)", lambda m: f"_shell.line({m[1]!r})", text)
        text = re.sub(r"^%cd (\w+)$", r"_shell.cd('\1'); os.chdir('\1')", text, flags=re.MULTILINE)
        exec(compile(text, cell["id"], "exec"), names)
        said[cell["id"]] = names.get("_code"), shell.said
    assert Path.cwd() == tmp_path / "course"
    (install, looked, graded, _, raced, submitted) = list(said.values())[1:]
    assert install[0] == 0, install[1]
    assert "python" in looked[1]
    assert graded[0] == 0 and "wrong signature" in graded[1]
    assert "got no CUDA GPU, expected one" in raced[1] or "roofline" in raced[1]
    assert submitted[0] == 0 and (tmp_path / "course" / "submission.zip").is_file()
    assert shown[0].startswith('<iframe srcdoc="') and "&lt;html" in shown[0]
    assert shown[1] == "submission.zip"


@pytest.mark.parametrize("name", ["README.md", "docs/where-to-work.md"])
def test_the_page_leads_to_it(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "notebook" in text
