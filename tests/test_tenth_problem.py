"""A tenth problem, added to a copy of the checkout as docs/instructors.md says in ten steps.

The commands are those of the page. What several of them have pytest run is run in one process, and
in place of `make check` and `make test` what they say of p10.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.shares import drawn

PAGE = ROOT / "docs" / "instructors.md"
OVERLAY = ROOT / "tests" / "tenth"
NINE = tuple(f"p{number:02}" for number in range(1, 10))
NAIVE = '''

def row_rms(x):
    """p10: y[i] = sqrt(mean of x[i, j]**2); x (rows, cols), y (rows,) in x's dtype.

    Squares and sums are fp32 (fp64 for fp64), rounded once at the end.
    """
    accumulator = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.to(accumulator).square().mean(1).sqrt().to(x.dtype)
'''
# By step: the files that it adds, and in each file that is there a line and what comes behind it.
FILES = {
    2: ("problems/p10/problem.toml",),
    3: ("problems/p10/test_p10.py",),
    4: ("solutions/p10/row_rms.py", "problems/p10/solution.py"),
    5: ("problems/p10/row_rms.py",),
    6: ("reference/mistakes_row_rms.py", "grader/spec/causes/row_rms.toml"),
    7: ("problems/p10/README.md", "problems/p10/HINTS.md", "problems/p10/ANSWERS.md"),
    8: ("tests/mutants/p10.py",),
}
LINES = {
    1: (
        ("reference/naive.py", "    return x.to(accumulator).logsumexp(1)\n", NAIVE),
        ("reference/__init__.py", "    row_logsumexp,\n", "    row_rms,\n"),
        ("reference/__init__.py", '    "row_logsumexp",\n', '    "row_rms",\n'),
        ("reference/rules.py", '    "p02": ("y",),\n', '    "p10": ("y",),\n'),
        (
            "reference/magnitudes.py",
            "_OF_ROWS = {\n",
            '    "p10": lambda x: {"y": x.square().mean(1).sqrt()},\n',
        ),
    ),
    6: (
        (
            "reference/mistakes.py",
            "from .mistakes_of_tiles import TILE_MISTAKES\n",
            "from .mistakes_row_rms import ROW_RMS_MISTAKES\n",
        ),
        ("reference/mistakes.py", "    *ROW_MISTAKES,\n", "    *ROW_RMS_MISTAKES,\n"),
        (
            "tests/test_mistakes.py",
            "CORE = {\n",
            '    *("RMS-OF-SUM", "RMS-NOT-ROOTED", "RMS-CENTRED"),\n',
        ),
    ),
    8: (
        (
            "tests/test_wrong_kernels.py",
            '    "p07": ("sinks ignored", "one sink more", "sinks in the window counted twice",'
            ' "no rescale"),\n',
            '    "p10": ("mean forgotten", "root forgotten", "columns not masked"),\n',
        ),
    ),
    9: (
        ("tests/test_set.py", '    "p09": 30,\n', '    "p10": 10,\n'),
        ("tests/test_set.py", 'BONUS = ("p08", "p09")\n', 'BONUS += ("p10",)\n'),
        (
            "tests/test_set.py",
            'TOTALS = {"required": 100, "bonus": 50}\n',
            'TOTALS["bonus"] += 10\n',
        ),
        (
            "README.md",
            "| [p09](problems/p09/README.md) | Backward with window, sinks and sink logits"
            " | 30 bonus |\n",
            "| [p10](problems/p10/README.md) | Root mean square of a row | 10 bonus |\n",
        ),
    ),
}


def steps_of_page() -> dict[int, tuple[str, list[str]]]:
    """The steps by number: their text, and the commands in it."""
    section = PAGE.read_text("utf-8").partition("\n## Add a problem\n")[2].partition("\n## ")[0]
    parts = re.split(r"^(\d+)\. ", section, flags=re.MULTILINE)
    return {
        int(number): (text, "".join(re.findall(r"```\n(.*?)```", text, re.DOTALL)).split("\n"))
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def commands_of(step: int) -> list[str]:
    return [line.strip() for line in steps_of_page()[step][1] if line.strip()]


class Checkout:
    """A copy of what the nine problems and their judge need, in which the steps are followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        left_out = shutil.ignore_patterns("tenth", "hostile", "plots", "pictures")
        for name in ("grader", "problems", "reference", "solutions", "tests", "docs"):
            shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=left_out)
        for name in ("README.md", "conftest.py", "pyproject.toml", "Makefile"):
            shutil.copy(ROOT / name, root / name)
        (root / "benchmarks").symlink_to(ROOT / "benchmarks")
        for name in ("plots", "pictures"):
            (root / "docs" / name).symlink_to(ROOT / "docs" / name)

    def follow(self, step: int) -> None:
        """Add the files and lines of a step."""
        for name in FILES.get(step, ()):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(OVERLAY / name, self.root / name, follow_symlinks=False)
        for name, line, more in LINES.get(step, ()):
            text = (self.root / name).read_text("utf-8")
            assert text.count(line) == 1, f"{name}: {line}"
            (self.root / name).write_text(text.replace(line, line + more), "utf-8")

    def run(self, command: str, *more: str, code: int = 0) -> str:
        """Run a command of the page with this Python; return what it prints."""
        _, *arguments = shlex.split(command)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            **{"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1", "SHARE": "all"},
        }
        done = subprocess.run(
            [sys.executable, *arguments, *map(str, more)],
            cwd=self.root, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
        return done.stdout if code != 2 else done.stderr


def totals(record: Path) -> tuple[dict[str, dict], dict, dict]:
    """Points of every problem, and the two sums, of a record."""
    data = json.loads(record.read_text("utf-8"))
    return {p["id"]: p["points"] for p in data["problems"]}, data["totals"], data["bonus"]


def exported(folder: Path) -> list[str]:
    """Options that write every format."""
    formats = ("json", "markdown", "junit", "gradescope")
    return [f"--{name}={folder / name}" for name in formats]


def test_the_page_has_ten_steps_with_a_command_each():
    steps = steps_of_page()
    assert list(steps) == list(range(1, 11))
    assert all(commands_of(number) for number in steps)
    for number, changes in LINES.items():
        for name, *_ in changes:
            assert f"`{name}`" in steps[number][0], f"step {number} does not say {name}"
    for number, names in FILES.items():
        for name in names:
            place = name.replace("p10", "pNN").replace("row_rms.py", "<file>.py")
            place = f"tests/tenth/{name}" if name.startswith(("reference", "grader")) else place
            said = {place, Path(place).name} if number == 7 else {place}
            link = f"\n   {name}`" if name.endswith("solution.py") else ""
            text = steps[number][0]
            assert any(f"`{one}`" in text for one in said) or (link and link in text), name
    added = {name for names in FILES.values() for name in names}
    there = {str(path.relative_to(OVERLAY)) for path in OVERLAY.rglob("*.*") if path.is_file()}
    assert {name for name in there if "__pycache__" not in name} == added


def test_the_repository_has_no_tenth_problem():
    assert problem_ids() == NINE


def test_ten_steps_add_a_problem(tmp_path, grader):
    copy, before, after = Checkout(tmp_path / "copy"), tmp_path / "before", tmp_path / "after"
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    everything = f"grade --exit-zero --device cpu --submission {nothing} --json"
    assert grader(*everything.split(), before)[0] == 0

    copy.follow(1)
    said = copy.run(*commands_of(1))
    assert said == "tensor([1., 1.]) {'y': tensor([1., 1.], dtype=torch.float64)}\n"

    copy.follow(2)
    assert copy.run(*commands_of(2)) == "10\n"
    said = copy.run("python -m grader grade --only p10 --device cpu", code=2)
    assert "problems/p10/test_p10.py: no such file; expected a test for each check" in said

    copy.follow(3)
    checks = copy.root / "problems" / "p10" / "test_p10.py"
    checks.write_text("def test_plain(case:\n", "utf-8")
    said = copy.run("python -m grader grade --only p10 --device cpu", code=2)
    assert "problems/p10/test_p10.py: not valid Python: " in said
    copy.follow(3)
    said = copy.run(*commands_of(3), "--device=cpu")
    assert re.search(r"^p10 Root mean .* 0/6 +0/1 +- +0/7$", said, re.M), said

    copy.follow(4)
    files = tmp_path / "exports"
    files.mkdir()
    said = copy.run(*commands_of(4), "--device=cpu", *exported(files))
    assert re.search(r"^p10 Root mean square of a row +pass +6/6 +1/1 +- +7/7$", said, re.M), said
    assert "bonus 7 of 7 points measured here (10 in all)" in said
    found, required, bonus = totals(files / "json")
    assert found == {"p10": {"earned": 7, "available": 7, "possible": 10}} == {"p10": bonus}
    assert required["possible"] == 0
    assert re.search(r"p10.* 7/7", (files / "markdown").read_text("utf-8"))
    (suite,) = ET.parse(files / "junit").getroot().findall("testsuite")
    assert suite.get("name").startswith("p10") and suite.get("failures") == "0"
    (test,) = json.loads((files / "gradescope").read_text("utf-8"))["tests"]
    assert (test["number"], test["score"], test["max_score"]) == ("10", 7, 7)

    copy.follow(5)
    lint, grade = commands_of(5)
    assert copy.run(lint) == "p10/row_rms.py: ok\n"
    said = copy.run(grade.replace("p10", "10"), "--device=cpu")
    assert re.search(r"^p10 Root mean .* +not-implemented +0/6 +0/1 +- +0/7$", said, re.M), said
    assert "next: p10 step 1 (the root of the mean), problems/p10/README.md" in said

    # Both take as long as all else: one of them per version, and both in the sweep.
    parts = drawn(("its mistakes and tests", "its table of steps"), 2)
    copy.follow(6)
    if "its mistakes and tests" in parts:
        copy.run(*commands_of(6))
        measured = (copy.root / "grader" / "spec" / "causes" / "measured.toml").read_text("utf-8")
        assert re.search(r"^\[p10\]\nRMS-OF-SUM = \{ keeps = 0, .* core = true \}$", measured, re.M)
        above, _, below = measured.partition("[p10]\n")
        kept = (ROOT / "grader" / "spec" / "causes" / "measured.toml").read_text("utf-8")
        assert kept == above + below.partition("\n\n")[2]

    for step in (7, 8, 9):
        copy.follow(step)
    (pages,) = commands_of(10)[:1]
    assert commands_of(10)[1:] == ["make check", "make test"]
    if "its table of steps" in parts:
        said = copy.run(pages)
        assert "| plain, half, ragged_rows, strides, arguments, work |\n" in said
    if "its mistakes and tests" in parts:
        checked = ["tests/test_mistakes.py", "tests/test_given.py"]
        options = [shlex.split(line) for step in (7, 8, 9) for line in commands_of(step)]
        chosen = {name for words in options for name in words if name.startswith("tests/")}
        expected = " or ".join(words[words.index("-k") + 1] for words in options)
        tests = sorted({*chosen, *checked})
        said = copy.run("python -m pytest -v -p no:cacheprovider", *tests, "-k", expected)
        assert re.search(r" [5-9]\d passed, \d+ deselected", said), said
        wrong = re.findall(r"rejected_and_named\[p10-(.*)\] PASSED", said)
        assert wrong == ["mean_forgotten", "root_forgotten", "columns_not_masked"]

    copy.run(f"python -m grader {everything}", after)
    was, required, bonus = totals(before)
    now, new_required, new_bonus = totals(after)
    assert now.pop("p10")["possible"] == 10
    assert now == was and new_required == required and required["possible"] == 100
    assert (bonus["possible"], new_bonus["possible"]) == (50, 60)
    for problem_id in NINE:
        load = load_problem(problem_id)
        for name in ("problem.toml", load.file, "README.md"):
            kept = copy.root / "problems" / problem_id / name
            assert kept.read_bytes() == (load.folder / name).read_bytes()


@pytest.mark.parametrize("name", ["naive", "__init__"])
def test_a_step_that_no_longer_fits_is_noticed(tmp_path, name):
    copy = Checkout(tmp_path / "copy")
    path = copy.root / "reference" / f"{name}.py"
    path.write_text(path.read_text("utf-8").replace("logsumexp", "lse"), "utf-8")
    with pytest.raises(AssertionError, match=f"reference/{name}"):
        copy.follow(1)
