"""The workflow for GitHub: its schema, what keeps it safe, and its scripts, run as in a job."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from grader.commands import cli
from grader.commands.package import command as package
from grader.spec.problem import ROOT
from tests.records import write_answers

SCHEMA = Path(__file__).with_name("schemas") / "github-workflow.json"
TEXT = package.workflow("cs99/judge", "v1")


def parsed(text=TEXT):
    # YAML 1.1 reads the key `on` as true.
    return {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}


FLOW = parsed()
STEPS = {name: job["steps"] for name, job in FLOW["jobs"].items()}


def script(job, name):
    (found,) = (step["run"] for step in STEPS[job] if step.get("name") == name)
    return found


def package(*options):
    return cli.main(["package", "github", *map(str, options)])


def test_it_fits_githubs_schema():
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    assert not list(validator.iter_errors(FLOW))
    assert not validator.is_valid({**FLOW, "job": FLOW["jobs"]})
    wrong = parsed(TEXT.replace("timeout-minutes: 60", "timeout-minutes: long"))
    assert not validator.is_valid(wrong)


def test_nobody_elses_pull_request_starts_it():
    assert FLOW["on"] == {"push": None, "workflow_dispatch": None}
    assert "pull_request" not in re.sub(r"^ *#.*", "", TEXT, flags=re.MULTILINE)
    assert STEPS.keys() == {"cpu", "gpu"}
    assert FLOW["jobs"]["cpu"]["runs-on"] == "ubuntu-24.04"
    gpu = FLOW["jobs"]["gpu"]
    assert gpu["runs-on"] == ["self-hosted", "gpu"]
    condition = " ".join(gpu["if"].split())
    assert condition.startswith("vars.GRADE_ON_GPU == 'true' && !github.event.repository.fork && (")


def test_a_job_may_read_and_nothing_else():
    assert FLOW["permissions"] == {"contents": "read"}
    for name, job in FLOW["jobs"].items():
        assert "permissions" not in job and job["timeout-minutes"] <= 60
        for step in STEPS[name]:
            assert step.keys() <= {"name", "run", "uses", "with", "if"}
            if "uses" in step:
                assert re.fullmatch(r"actions/(checkout|upload-artifact)@v\d+", step["uses"])
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
            # What a student may choose, such as the name of a branch, is in no script.
            assert "${{" not in step.get("run", "")
    assert "secrets" not in TEXT


def test_the_judge_is_that_of_the_course():
    for steps in STEPS.values():
        mine, judge = (step["with"] for step in steps if "checkout" in step.get("uses", ""))
        assert "repository" not in mine and "path" not in mine
        assert (judge["repository"], judge["ref"], judge["path"]) == ("cs99/judge", "v1", "judge")


@pytest.mark.parametrize("job", STEPS)
def test_artifacts_are_kept_whatever_the_grade_is(job):
    (step,) = (s for s in STEPS[job] if s.get("uses", "").startswith("actions/upload-artifact"))
    assert step["if"] == "always()"
    assert step["with"]["path"] == "${{ runner.temp }}/record.json"
    assert step["with"]["name"] == f"grade-{job}"


@pytest.mark.parametrize("job", STEPS)
def test_packages_and_targets_of_the_setup_exist(job):
    text = script(job, "set up")
    assert "make -C judge setup" in text
    assert re.search(r"^setup:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if job == "cpu":
        assert "install -y bubblewrap" in text
        assert "kernel.apparmor_restrict_unprivileged_userns=0" in text


@pytest.fixture
def job(tmp_path):
    """A checkout of a student's, the judge in it, and the variables that GitHub sets."""
    checkout = tmp_path / "work"
    write_answers(checkout / "problems", {"p02": "def weighted_row_sum(x):\n    return x\n"})
    (checkout / "grader").mkdir()  # a student's own, which nothing may take for the judge
    (checkout / "grader" / "__init__.py").write_text("raise SystemExit('not the judge')\n")
    binary = checkout / "judge" / ".venv" / "bin" / "grader"
    binary.parent.mkdir(parents=True)
    # Without bubblewrap here the same is graded without a jail; on a GPU that is not there, not.
    jail = shutil.which("bwrap") is not None
    binary.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from grader.commands.cli import main\n"
        "words = ['cpu' if word == 'cuda' else word for word in sys.argv[1:]]\n"
        f"words = [w for w in words if w != '--official' or {jail}]\n"
        "sys.exit(main(words))\n"
    )
    binary.chmod(0o755)
    (tmp_path / "temp").mkdir()
    return checkout, {
        **os.environ,
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNNER_TEMP": str(tmp_path / "temp"),
    }


@pytest.mark.parametrize(("name", "code"), [("cpu", 1), ("gpu", 0)])
def test_the_step_that_grades_writes_summary_annotations_and_record(job, name, code):
    checkout, variables = job
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script(name, "grade")],
        cwd=checkout,
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    summary = Path(variables["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.startswith("# Grade\n") and "wrong signature" in summary
    record = json.loads((Path(variables["RUNNER_TEMP"]) / "record.json").read_text())
    assert [p["id"] for p in record["problems"]][:2] == ["p01", "p02"]
    assert record["mode"] == ("official" if shutil.which("bwrap") else "local")
    assert "::error file=problems/p02/weighted_row_sum.py,line=1," in done.stdout


# -- the command --------------------------------------------------------------------------------


def test_the_command_writes_it_where_github_looks(tmp_path, capfd):
    assert package("--output", tmp_path, "--judge", "cs99/judge", "--ref", "v1") == 0
    written = tmp_path / ".github" / "workflows" / "grade.yml"
    assert written.read_text() == TEXT
    assert str(written) in capfd.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--judge", "judge"], "--judge: got 'judge', expected OWNER/REPO"),
        (["--judge", "a/b/c"], "--judge: got 'a/b/c', expected OWNER/REPO"),
        (["--judge", 'a/b"\n  x: y'], "--judge: got "),
        (["--judge", "-a/b"], "--judge"),
        (["--judge", "a/b", "--ref", "${{ x }}"], "--ref: got '${{ x }}', expected a branch"),
        (["--judge", "a/b", "--ref", 'v1"'], "--ref: got "),
        (["--judge", "a/b", "--ref", ""], "--ref: got '', expected a branch"),
        (["--judge", "a/b", "--output", "/no/such"], "--output: got /no/such, which is not a fold"),
        ([], "required: --judge"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, capfd, options, message):
    try:
        code = package("--output", tmp_path, *options)
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and message in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said(tmp_path, capfd):
    (tmp_path / ".github").write_text("a file")
    assert package("--output", tmp_path, "--judge", "a/b") == 4
    assert "--output: cannot write" in capfd.readouterr().err
