"""docs/ci.md: its commands are understood, and it lists what there is to write."""

import os
import re
import shlex
import subprocess
import sys
import zipfile

from grader.commands.cli import parser_of
from grader.commands.package import command as package
from grader.judge import surroundings
from grader.report import exports, junit
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests.harness import PROMPT_S
from tests.records import write_answers
from tests.test_render_classroom import JOB, result50_of

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(PAGE)
COMMAND = re.compile(r"^ *(?:\S+/bin/|python -m )grader (.+)$", re.MULTILINE)


def commands():
    """The commands of the page's blocks, as they are parsed."""
    blocks = "\n".join(text for kind, text in BLOCKS if kind != "python")
    found = COMMAND.findall(re.sub(r"\\\n *", "", blocks))
    parser = parser_of()
    return [parser.parse_args(shlex.split(command)) for command in found]


def test_commands_have_the_options_that_are_named():
    github, jenkins, zipped, some = commands()
    assert (github.inner, github.judge, github.ref) == ("github", "OWNER/REPO", "HEAD")
    assert jenkins.junit and jenkins.exit_zero
    assert (zipped.inner, zipped.minutes, zipped.only) == ("gradescope", 40, None)
    assert (some.minutes, some.only, some.official) == (10, "p01,p02", False)
    assert "after 10 minutes, or up to 40" in PAGE
    assert (package.DEFAULT_MINUTES, package.MAX_MINUTES) == (10, 40)


def test_what_the_page_says_of_memory_and_hanging_calls_is_so():
    text = " ".join(PAGE.split())
    local, jailed = (surroundings._LEAST_BYTES[jailed] >> 20 for jailed in (False, True))
    assert f"Without {local} MiB of free memory, or {jailed} MiB in a jail" in text
    limits = [load_problem(id).limits for id in problem_ids()]
    assert "calls that hang take up to 35 s, slow ones 5 minutes" in text
    assert max(limit.lost_s for limit in limits) == 35
    assert max(limit.total_s for limit in limits) == 5 * 60


def test_commands_that_package_do_so(tmp_path, monkeypatch):
    github, _, *zips = commands()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DIR").mkdir()
    for options in (github, *zips):
        assert options.run(options) == 0
    assert (tmp_path / "DIR/.github/workflows/grade.yml").read_text().startswith("# Grades the rep")
    for name in ("autograder.zip", "p01-p02.zip"):
        assert zipfile.is_zipfile(tmp_path / name)


def test_the_autograder_of_classroom_50_writes_its_result(tmp_path):
    (block,) = (text for kind, text in BLOCKS if kind == "python")
    judge = tmp_path / "judge" / ".venv" / "bin" / "grader"
    put_judge(judge)
    assert block.count('"/judge/.venv/bin/grader"') == 1
    script = tmp_path / "autograder.py"
    script.write_text(block.replace("/judge/.venv/bin/grader", str(judge)))
    work = tmp_path / "work"
    write_answers(work / "problems", {"p02": "def weighted_row_sum(x):\n    return x\n"})

    def grade(variables):
        command = [sys.executable, script]
        return subprocess.run(
            command, cwd=work, env=variables, capture_output=True, timeout=PROMPT_S
        )

    done = grade({**os.environ, **JOB})
    assert done.returncode == 0, done.stderr
    found = result50_of((work / "result.json").read_text())
    assert (found["score"], found["max-score"], found["owner"]) == (0, 77 + 35, "alice")
    assert (work / "release-body.md").read_text().startswith("# Grade")
    (work / "result.json").unlink()
    outside = grade({**os.environ, **JOB, "SUBMISSION_TAG": ""})
    assert outside.returncode == 2 and b"got no SUBMISSION_TAG in the env" in outside.stderr
    assert not (work / "result.json").exists()


def put_judge(path):
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from grader.commands.cli import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)


def test_points_without_a_gpu_are_those_of_the_problems():
    problems = [load_problem(id) for id in problem_ids()]
    for bonus, points in ((False, 77), (True, 35)):
        counted = [p for p in problems if p.bonus is bonus]
        available = sum(
            p.points_of(part)
            for p in counted
            for part in ("correctness", "work", "speed", "memory")
            if part in ("correctness", "work") or p.benchmarks_on("cpu")
        )
        assert available == points
    assert "77 for p01 to p07, 35 for p08 and p09" in PAGE


def test_what_github_is_told_is_in_the_workflow():
    template = (package.TEMPLATES / "grade.yml").read_text()
    for words in ("GRADE_ON_GPU", "--fail-under 70", "judge/.venv/bin/grader", "gpu"):
        assert words in template and words in PAGE


def test_every_format_is_listed():
    listed = re.findall(r"^\| `--([a-z0-9]+)(?: FILE)?` \|", PAGE, re.MULTILINE)
    assert listed == [*exports.HELP, "annotations"]
    assert set(exports.HELP) == {*exports.FORMATS, "classroom50", "html"}
    for name in exports.HELP:
        grading = (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")
        assert f"`--{name}" in grading or name == "json"


def test_what_is_a_failure_and_what_an_error_is_as_it_is_said():
    text = " ".join(PAGE.split())
    kinds = {
        kind: {v for v, k in junit.OUTCOMES.items() if k == kind} for kind in ("failure", "error")
    }
    assert "A wrong result, a file that the policy rejects and a stub are failures" in text
    assert kinds["failure"] == {"fail", "rejected", "not-implemented"}
    assert "An exception, a crash or a timeout is an error" in text
    assert kinds["error"] == {"error", "crash", "out-of-memory", "timeout", "internal"}
