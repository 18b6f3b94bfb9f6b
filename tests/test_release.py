"""`grader release`: what students get and what not, its pages, and that it works."""

import functools
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from grader.commands.cli import parser_of
from grader.commands.release import contents, ledger, pages
from grader.commands.release.contents import build
from grader.source.steps import step_regions
from grader.source.submission import examine
from grader.spec.grade_record import GradeRecord, Verdict
from grader.spec.problem import ROOT, ManifestError, load_problem
from tests import releases
from tests.harness import model_answer
from tests.releases import ALL, STUB, files_of, tree

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CALL = re.compile(r"\w\[\w+\]\([^)]*\)")  # `kernel[grid](...)` is no link
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PY = f"PY={sys.executable}"
whole, stage, answered = releases.whole, releases.stage, releases.answered


every_release = pytest.mark.parametrize("which", ["whole", "stage", "answered"])


def test_it_holds_what_a_student_needs(whole):
    files = tree(whole)
    for problem in map(load_problem, ALL):
        names = ("README.md", "HINTS.md", "ANSWERS.md", "problem.toml", f"test_{problem.id}.py")
        assert {f"problems/{problem.id}/{name}" for name in (*names, problem.file)} <= set(files)
    assert {"Makefile", "conftest.py", "LICENSE", "docs/grading.md", "grader/api.py"} <= set(files)
    assert {"reference/naive.py", "docs/quiz/level0.md", "docs/playground.html"} <= set(files)
    assert ".github/workflows/grade.yml" in files
    # What the course alone needs is neither in these nor beside them.
    assert {path for path in files if path.startswith("requirements")} == {
        "requirements.txt", "requirements.lock"
    }  # fmt: skip
    assert b"parsl" not in files["requirements.txt"] + files["requirements.lock"]


def test_it_holds_nothing_else(whole):
    files = tree(whole)
    folders = {path.split("/")[0] for path in files if "/" in path}
    assert folders == {
        ".devcontainer", ".github", "docs", "grader", "notebooks", "problems", "reference",
        "tests",
    }  # fmt: skip
    assert [path for path in files if path.startswith("tests/")] == ["tests/test_release.py"]
    forbidden = "solution mutant trust ci.md records unusual".split()
    named = [path for path in files if any(word in path for word in forbidden)]
    assert named == []
    assert not [path for path in whole.rglob("*") if path.is_symlink() or path.suffix == ".pyc"]
    assert not [path for path in files if path.startswith("grader/commands/release/student")]


def steps_of(problem_id):
    """The code of each step of the model answer, of three lines and more."""
    lines = model_answer(problem_id).split("\n")
    for first, last in step_regions(model_answer(problem_id)).values():
        code = [s for s in map(str.strip, lines[first : last - 1]) if s and not s.startswith("#")]
        if len(code) >= 3:
            yield "\n".join(code)


@pytest.mark.parametrize("last", ALL)
def test_no_stage_holds_code_of_its_answers(last):
    """Not even in `given`, whose modules for later problems hold what earlier ones taught."""
    number = ALL.index(last) + 1
    files = files_of(ALL[:number])
    texts = {
        path: "\n".join(s for s in map(str.strip, data.decode().split("\n")) if s)
        for path, data in files.items()
        if path.endswith((".py", ".md"))
    }
    for step in steps_of(last):
        assert not [path for path, text in texts.items() if step in text]


def test_given_opens_with_its_problems(stage, whole):
    def given(folder):
        return {path.stem for path in (folder / "problems" / "given").glob("*.py")}

    assert given(stage) == {"__init__", "arguments", "products", "launch"}
    assert given(whole) == {path.stem for path in (ROOT / "problems" / "given").glob("*.py")}


def test_stubs_are_stubs(whole):
    for problem in map(load_problem, ALL):
        data = (whole / "problems" / problem.id / problem.file).read_bytes()
        assert examine(problem, data).verdict is Verdict.NOT_IMPLEMENTED


def test_a_solved_stub_in_the_checkout_is_not_handed_out(tmp_path):
    """Nor is anything that an answer was copied into; a copy without git is walked."""
    copy = tmp_path / "checkout"
    for path in contents.list_files(ROOT):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path, follow_symlinks=False)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "x.py").touch()
    assert contents.list_files(copy) == contents.list_files(ROOT)
    assert build(copy, ALL, (), ALL) == files_of(ALL)
    (copy / "grader" / "cache.py").write_text(model_answer("p04"))
    with pytest.raises(ManifestError, match=r"grader/cache\.py: got a step of p04's answer"):
        build(copy, ALL, (), ALL)
    (copy / STUB).write_text(model_answer("p02"))
    with pytest.raises(
        ManifestError, match="got step 1 filled in, expected the stub: git checkout"
    ):
        build(copy, ALL, (), ALL)
    (copy / "docs" / "grading.md").unlink()
    (copy / "LICENSE").write_text("x")
    (copy / STUB).unlink()
    with pytest.raises(ManifestError, match="of this checkout cannot be read"):
        build(copy, ALL, (), ALL)


def test_what_the_page_of_instructors_says_is_left_out_is_left_out(whole):
    page = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
    hand_out = page.partition("\n## Hand out\n")[2].partition("It also leaves out")[0]
    pages = re.findall(r"\]\((\w+\.md)\)", hand_out)
    assert pages == ["trust.md", "ci.md"]
    for name in (*pages, "instructors.md"):
        assert (ROOT / "docs" / name).exists() and not (whole / "docs" / name).exists()
    opened = (whole / "problems" / "given" / "forward.py").read_text()
    assert "Opens with p08" in opened and "forward pass of p05" in opened


@functools.cache
def anchors(text):
    """The anchors that GitHub makes of the headings of a page."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


@every_release
def test_every_link_leads_somewhere(request, which):
    folder, checked = request.getfixturevalue(which), 0
    for page in folder.rglob("*.md"):
        for target in LINK.findall(CALL.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))):
            path, _, anchor = target.partition("#")
            if ":" in target:
                continue
            there = page.parent / path if path else page
            assert there.exists(), (page, target)
            assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), (
                page,
                target,
            )
            checked += 1
    assert checked > 60


@every_release
def test_every_command_on_a_page_is_one_that_works_here(request, which):
    folder, checked = request.getfixturevalue(which), 0
    targets = set(re.findall(r"^([a-z]+):", (folder / "Makefile").read_text(), re.MULTILINE))
    here = set(json.loads((folder / ledger.NAME).read_text())["problems"])
    for page in folder.rglob("*.md"):
        if page.name == "CHANGELOG.md":  # says what was
            continue
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(body for language, body in FENCE.findall(text) if not language)
        lines = re.findall(r"^(?:make|pytest|python) .+$", blocks, re.MULTILINE)
        lines += re.findall(r"`((?:make|pytest|python) [^`]+)`", FENCE.sub("", text))
        for line in lines:
            words = shlex.split(re.sub(r"\bN\b", "3", line), comments=True)
            named = re.findall(r"(?:P=|problems/|--only )(p\d\d(?:,p\d\d)*)", line)
            assert {id for ids in named for id in ids.split(",")} <= here, (page, line)
            if words[0] == "make":
                assert words[1] in targets, (page, line)
            elif words[:3] == ["python", "-m", "grader"]:
                parser_of().parse_args(words[3:])
            elif words[0] == "python":
                assert words[2] in ("grader.commands.quiz.pages", "grader.commands.explain.page")
            assert "solutions" not in line or which == "answered", (page, line)
            checked += 1
    assert checked > 10


def test_marks_of_the_course_are_gone(whole):
    for path, data in tree(whole).items():
        if path.endswith(".md") or path == "Makefile":
            assert b"course -->" not in data and b"<!-- students" not in data, path
            assert b"# course" not in data and b"#students:" not in data, path
    readme = (whole / "README.md").read_text()
    assert "You grade." not in readme and "You solve the problems." in readme
    assert "make submit   # pack your answers" in readme


@pytest.mark.parametrize(
    "text", ["<!-- course -->\nfor you\n", "a <!-- end of course -->", "<!-- students:\nfor them\n"]
)
def test_a_mark_without_its_counterpart_is_no_page(text):
    with pytest.raises(ManifestError, match=r"page\.md: got <!-- "):
        pages.for_students(text, "page.md")


def test_parts_leave_no_gap():
    part = "<!-- course -->\nx\n<!-- end of course -->\n"
    assert pages.for_students(f"a\n\n{part}\nb\n", "p") == "a\n\nb\n"
    assert pages.for_students(f"a\n{part}\nb\n", "p") == "a\n\nb\n"
    assert pages.for_students("a<!-- course --> x\ny<!-- end of course -->, b\n", "p") == "a, b\n"


def test_a_stage_says_what_comes_later(stage, whole):
    readme = (stage / "README.md").read_text()
    assert re.findall(r"^\| \[(p\d\d)\]", readme, re.MULTILINE) == ["p01", "p02"]
    assert "\n\np03 to p09 come later; the pages in [docs](docs) speak of all.\n\n" in readme
    assert "later" not in (whole / "README.md").read_text()
    quiz = "".join(p.read_text() for p in (stage / "docs" / "quiz").glob("*.md"))
    assert "(comes later)" in quiz
    named = [
        re.findall(r"`(?:make|pytest) [^`]+`", (f / "CHANGELOG.md").read_text())
        for f in (stage, ROOT)
    ]
    assert named[0] == named[1]  # what was, not what to type


def test_links_to_what_is_not_there_are_words():
    text = "[a](../problems/p04/README.md) [b](c.md#d) ![e](f.svg)[g](#h)\n```\n[i](j.md)\n```\n"
    shown = pages.with_links(text, "docs/x.md", {"docs/y.md"})
    assert shown == "a (comes later) b [g](#h)\n```\n[i](j.md)\n```\n"
    code = "`add[grid](...)` and\n`kernel[grid](x, y)`, see [`c`]({})\n"
    assert pages.with_links(code.format("y.md"), "docs/x.md", {"docs/y.md"}) == code.format("y.md")
    assert pages.with_links(code.format("c.md"), "docs/x.md", set()).endswith("see `c`\n")


def run(folder, *words, **environment):
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | environment,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_stages_make_targets_work(stage, tmp_path):
    listed = run(stage, "make", PY)
    targets = re.findall(r"^  make ([a-z]+)", listed.stdout, re.MULTILINE)
    named = "help setup grade watch race predict hint trace explain lint quiz case doctor submit"
    assert targets == [*named.split(), "test", "clean"]
    phony = re.findall(r"^\.PHONY: (.*)$", (stage / "Makefile").read_text(), re.MULTILINE)
    assert " ".join(phony).split() == targets
    graded = run(stage, "make", "grade", "QUICK=1", "DEVICE=cpu", PY)
    assert graded.returncode == 0
    assert "required 0 of 19 points measured here (30 in all)" in graded.stdout
    assert "bonus" not in graded.stdout
    assert run(stage, "make", "lint", PY).stdout.count(": ok") == 2
    output = tmp_path / "out.zip"
    packed = run(stage, "make", "submit", PY, f"OUTPUT={output}")
    assert packed.returncode == 0 and "2 not started" in packed.stdout


def test_the_examples_of_a_stage_name_what_works_in_it(stage):
    places = ("Makefile", "README.md", "docs/causes.md")
    texts = {name: (stage / name).read_text("utf-8") for name in places}
    ids = {id for text in texts.values() for id in re.findall(r"\bID=([A-Z0-9-]+)", text)}
    assert len(ids) == 1
    explained = run(stage, "make", "explain", f"ID={ids.pop()}", PY)
    assert explained.returncode == 0 and "make grade P=p02" in explained.stdout
    for text in (texts["Makefile"], *re.findall("`make .*?`", texts["README.md"])):
        assert set(re.findall(r"p0\d", text)) <= {"p01", "p02"}
    assert "`make trace P=p01" in texts["README.md"]
    assert "make trace P=p04`" in pages.with_commands("`make trace P=p06`", ["p03", "p04"])
    makefile = pages.with_examples((ROOT / "Makefile").read_text("utf-8"), ["p02", "p03"])
    assert "tile by tile: P=p03 CASE=plain:1\n" in makefile and "CASE=window" not in makefile


def test_the_release_checks_itself(stage, tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(stage, copy)
    done = run(copy, "make", "test", PY)
    assert done.returncode == 0, done.stdout
    with open(copy / "grader" / "judge" / "scoring.py", "a") as file:
        file.write("# mine\n")
    checks = runpy.run_path(copy / "tests" / "test_release.py")
    handed_out = checks["test_the_judge_is_the_one_that_was_handed_out"]
    handed_out.__globals__["ROOT"] = copy
    with pytest.raises(AssertionError, match="changed here: your instructor grades with"):
        handed_out()


def test_the_workflow_is_green_with_the_stubs(stage, tmp_path):
    text = (stage / ".github" / "workflows" / "grade.yml").read_text()
    single = re.findall(r"^        run: (\w.*)$", text, re.MULTILINE)
    assert single[1:] == ["make test"] and "GITHUB_OUTPUT" in single[0]  # tried above
    setup, script = re.findall(r"^        run: \|\n((?:          .*\n)+)", text, re.MULTILINE)
    assert setup.split("\n")[1].strip() == "make setup"
    assert script.count(".venv/bin/python") == 1
    script = script.replace(".venv/bin/python", sys.executable)
    script = script.replace("record.json", str(tmp_path / "record.json"))
    done = run(stage, "bash", "-e", "-c", script, GITHUB_STEP_SUMMARY=str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr
    assert "p02" in (tmp_path / "page.md").read_text()
    assert (
        GradeRecord.model_validate_json((tmp_path / "record.json").read_bytes()).totals.earned == 0
    )


def test_the_judge_grades_as_in_the_checkout(stage, tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(stage, copy)
    (copy / STUB).write_text(model_answer("p02"))
    options = ["--quick", "--only", "p02", "--device", "cpu", "--json", str(tmp_path / "r.json")]
    done = run(copy, sys.executable, "-m", "grader", "grade", *options)
    assert done.returncode == 0, done.stdout
    record = GradeRecord.model_validate_json((tmp_path / "r.json").read_bytes())
    assert record.totals.earned == record.totals.available == 7
    assert str(ROOT) not in done.stdout
    for path, data in tree(stage).items():
        judge = path.startswith(("grader/", "reference/", "problems/"))
        if judge and not path.endswith((".md", ".pyc")):
            assert data == (ROOT / path).read_bytes(), path


# The release's own commands, in one process whose environment has no classroom/: a student's has
# none, that of these tests has.
COMMANDS = """
import contextlib, io, json, sys
sys.modules["classroom"] = None
from grader.commands import cli
said = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            code = cli.main(words)
        except SystemExit as stop:
            code = stop.code
    said.append((code, out.getvalue()))
json.dump(said, sys.stdout)
"""


def test_what_needs_the_course_or_answers_says_so(stage):
    asked = (
        ["--help"],
        ["class", "status", "--course", "."],
        ["calibrate", "--device", "cpu"],
        ["release", "../other"],
    )
    done = run(stage, sys.executable, "-c", COMMANDS, json.dumps(asked))
    helped, of_class, calibrated, released = json.loads(done.stdout)
    assert helped[0] == 0 and "    explain " in helped[1] and "    class " not in helped[1]
    assert of_class == [
        2, "grader: class: got the students' release, expected the course's checkout\n"
    ]  # fmt: skip
    assert calibrated[0] == released[0] == 2
    assert "--submission: got solutions, which is not a folder" in calibrated[1]
    assert "which is a release itself; run it in the course's checkout" in released[1]


def test_the_packages_that_its_set_up_installs_are_there(stage):
    code = "from setuptools.config.pyprojecttoml import read_configuration as read;"
    code += " print(*read('pyproject.toml')['tool']['setuptools']['packages'])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=stage, capture_output=True, text=True
    )
    found = set(done.stdout.split())
    assert {"grader", "grader.commands.grade", "given", "reference"} <= found, done.stderr
    for name in found - {"given"}:
        assert (stage / name.replace(".", "/") / "__init__.py").exists(), name
