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
from grader.commands.package import command
from grader.spec.problem import ROOT
from tests.harness import PROMPT_S
from tests.records import write_answers

SCHEMA = Path(__file__).with_name("schemas") / "github-workflow.json"
COMMIT = "0123456789" * 4
TEXT = command.workflow("cs99/judge", COMMIT, "v1")
STUDENTS = ROOT / "grader" / "commands" / "release" / "student" / "grade.yml"


def parsed(text=TEXT):
    # YAML 1.1 reads the key `on` as true.
    return {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}


FLOW = parsed()
STEPS = {name: job["steps"] for name, job in FLOW["jobs"].items()}


def script(job, name):
    (found,) = (step["run"] for step in STEPS[job] if step.get("name") == name)
    return found


def working_directory(job, name):
    (found,) = (step["working-directory"] for step in STEPS[job] if step.get("name") == name)
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
            assert step.keys() <= {"name", "id", "run", "uses", "with", "if", "working-directory"}
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
            # What a student may choose, such as the name of a branch, is in no script.
            assert "${{" not in step.get("run", "")
    assert "secrets" not in TEXT


def test_the_judge_is_that_of_the_course():
    for steps in STEPS.values():
        mine, judge = (step["with"] for step in steps if "checkout" in step.get("uses", ""))
        assert "repository" not in mine and mine["path"] == "submission"
        assert (judge["repository"], judge["ref"], judge["path"]) == ("cs99/judge", COMMIT, "judge")
        assert f'ref: "{COMMIT}" # v1\n' in TEXT


@pytest.mark.parametrize("text", [TEXT, STUDENTS.read_text(encoding="utf-8")])
def test_a_linter_finds_nothing_and_every_action_is_a_commit(tmp_path, text):
    """zizmor without a network, its strictest kind but for "never a runner of your own"."""
    command = [Path(sys.executable).with_name("zizmor"), "--offline", "--persona=pedantic", "-q"]

    def lint(text):
        (tmp_path / "grade.yml").write_text(text)
        done = subprocess.run([*command, tmp_path / "grade.yml"], capture_output=True, text=True)
        return done.returncode, done.stdout

    code, out = lint(text)
    assert code == 0, out
    code, out = lint(re.sub(r"@[0-9a-f]{40} # (v\d+)\S+", r"@\1", text))
    assert code and out.count("[unpinned-uses]") == text.count("uses: actions/")
    pinned = set(re.findall(r"uses: (actions/\S+) # v\d+\.\d+\.\d+\n", text))
    assert len(re.findall("uses: ", text)) == sum(text.count(f"uses: {one} ") for one in pinned)
    # One commit of each action in both workflows.
    ours = dict(re.findall(r"uses: actions/([a-z-]+)\S*@(.*)", TEXT))
    assert ours == ours | dict(re.findall(r"uses: actions/([a-z-]+)\S*@(.*)", text))


def git(*words, folder):
    run = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", folder, *words]
    subprocess.run(list(map(str, run)), check=True, capture_output=True)


def checked_out(workspace, source, options):
    """What actions/checkout v7.0.1 does with a folder (src/git-directory-helper.ts)."""
    path = workspace / options.get("path", ".")
    path.mkdir(exist_ok=True)
    if not (path / ".git").is_dir():  # then it removes all that is there
        for inner in path.iterdir():
            shutil.rmtree(inner)
        git("clone", source, ".", folder=path)
    elif options.get("clean", True):
        git("clean", "-ffdx", folder=path)
        git("reset", "--hard", folder=path)
    git("fetch", "origin", folder=path)
    git("checkout", "--force", "--detach", "origin/HEAD", folder=path)


@pytest.mark.parametrize(("name", "kept"), [("cpu", False), ("gpu", True)])
def test_a_runner_of_ones_own_keeps_the_environment_from_run_to_run(tmp_path, name, kept):
    sources = []
    for repository in ("mine", "judge"):
        source = tmp_path / repository
        source.mkdir()
        (source / "file.txt").write_text("first")
        (source / ".gitignore").write_text(".venv\n")
        git("init", folder=source)
        git("add", ".", folder=source)
        git("commit", "-m", "first", folder=source)
        sources.append(source)
    steps = [s["with"] for s in STEPS[name] if "checkout" in s.get("uses", "")]
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    def run():
        for source, options in zip(sources, steps, strict=True):
            checked_out(workspace, source, options)

    run()
    environment = workspace / "judge" / ".venv"
    environment.mkdir()
    (environment / "python").write_text("several GB")
    (workspace / "submission" / "left.txt").write_text("by the run before")
    (workspace / "judge" / "file.txt").write_text("changed")
    (sources[1] / "file.txt").write_text("second")
    git("commit", "-am", "second", folder=sources[1])
    run()
    assert environment.exists() == kept  # GitHub's own runners are new each time
    assert not (workspace / "submission" / "left.txt").exists()
    assert (workspace / "judge" / "file.txt").read_text() == "second"


def test_the_cache_is_of_one_list_of_packages_and_one_python(tmp_path):
    steps = STEPS["cpu"]
    names = [step.get("name") or step["uses"].partition("@")[0] for step in steps]
    order = ["find Python", "actions/cache/restore", "set up the judge", "actions/cache/save"]
    assert [name for name in names if name in order] == order and names[-2] == "grade"
    restore, setup, save = (steps[names.index(name)] for name in order[1:])
    assert setup["if"] == save["if"] == "steps.cache.outputs.cache-hit != 'true'"
    assert save["with"]["path"] == restore["with"]["path"] == "judge/.venv"
    key = restore["with"]["key"]
    patterns = re.findall("'judge/(.*?)'", key)
    setup = (ROOT / "grader" / "commands" / "setup_environment.py").read_text()
    found = {path.name for pattern in patterns for path in ROOT.glob(pattern)}
    assert found == {"pyproject.toml", *(path.name for path in ROOT.glob("requirements*"))}
    assert {"requirements.txt", "requirements.lock", "requirements-course.lock"} <= found
    assert all(name in setup for name in ("requirements.txt", "requirements-course.lock"))
    output = tmp_path / "output"
    run = subprocess.run(
        ["bash", "-ec", script("cpu", "find Python")],
        env={**os.environ, "GITHUB_OUTPUT": str(output)},
        check=True,
        timeout=PROMPT_S,
    )
    assert run.returncode == 0
    assert re.fullmatch(r"version=3\.\d+\.\d+\n", output.read_text())
    assert "${{ steps.python.outputs.version }}" in key


def test_what_students_cache_is_not_set_up_again(tmp_path):
    """The script of their workflow, with a cache that is older than the checkout, and without."""
    text = STUDENTS.read_text(encoding="utf-8")
    (step,) = (s for s in parsed(text)["jobs"]["grade"]["steps"] if s.get("name") == "set up")
    for name in ("Makefile", "requirements.txt", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)

    def set_up():
        words = ["bash", "-ec", f"{step['run']} PYTHON=true"]  # sets up nothing, and says that
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout

    assert "nothing to be done" not in set_up().lower()
    assert not (tmp_path / ".venv").exists()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    os.utime(tmp_path / ".venv" / ".ready", (1, 1))
    assert "nothing to be done" in set_up().lower()


@pytest.mark.parametrize("job", STEPS)
def test_artifacts_are_kept_whatever_the_grade_is(job):
    (step,) = (s for s in STEPS[job] if s.get("uses", "").startswith("actions/upload-artifact"))
    assert step["if"] == "always()"
    assert step["with"]["path"] == "${{ runner.temp }}/record.json"
    assert step["with"]["name"] == f"grade-{job}"


@pytest.mark.parametrize("job", STEPS)
def test_packages_and_targets_of_the_setup_exist(job):
    assert script(job, "set up the judge") == "make -C judge setup"
    assert re.search(r"^setup:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if job == "cpu":
        text = script(job, "set up the jail")
        assert "install -y bubblewrap" in text
        assert "kernel.apparmor_restrict_unprivileged_userns=0" in text


@pytest.fixture
def job(tmp_path):
    """A checkout of a student's, the judge beside it, and the variables that GitHub sets."""
    checkout = tmp_path / "work" / "submission"
    write_answers(checkout / "problems", {"p02": "def weighted_row_sum(x):\n    return x\n"})
    (checkout / "grader").mkdir()  # a student's own, which nothing may take for the judge
    (checkout / "grader" / "__init__.py").write_text("raise SystemExit('not the judge')\n")
    binary = checkout.parent / "judge" / ".venv" / "bin" / "grader"
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
        cwd=checkout.parent / working_directory(name, "grade"),
        env=variables,
        capture_output=True,
        text=True,
        timeout=PROMPT_S,
    )
    assert done.returncode == code, done.stderr
    summary = Path(variables["GITHUB_STEP_SUMMARY"]).read_text()
    assert summary.startswith("# Grade\n") and "wrong signature" in summary
    record = json.loads((Path(variables["RUNNER_TEMP"]) / "record.json").read_text())
    assert [p["id"] for p in record["problems"]][:2] == ["p01", "p02"]
    assert record["mode"] == ("official" if shutil.which("bwrap") else "local")
    assert "::error file=problems/p02/weighted_row_sum.py,line=1," in done.stdout


def test_the_command_writes_it_where_github_looks(tmp_path, capfd):
    assert package("--output", tmp_path, "--judge", "cs99/judge", "--ref", COMMIT) == 0
    written = tmp_path / ".github" / "workflows" / "grade.yml"
    assert written.read_text() == TEXT.replace(" # v1", "")
    out = capfd.readouterr().out
    assert str(written) in out
    assert f"the judge is commit {COMMIT}: push it to cs99/judge first" in out


def test_a_branch_or_a_tag_becomes_the_commit_that_it_is_now(tmp_path, monkeypatch):
    for name in ("judge", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(command, "ROOT", tmp_path / "judge")
    git("init", folder=tmp_path / "judge")
    git("commit", "--allow-empty", "-m", "first", folder=tmp_path / "judge")
    git("tag", "-a", "v1", "-m", "first", folder=tmp_path / "judge")
    git("commit", "--allow-empty", "-m", "second", folder=tmp_path / "judge")
    first, second = (command.revision(name) for name in ("v1", "HEAD"))
    assert first != second == command.revision(second[:12])
    written = tmp_path / "out" / ".github" / "workflows" / "grade.yml"
    for options, line in (((), f'"{second}"'), (("--ref", "v1"), f'"{first}" # v1')):
        assert package("--output", tmp_path / "out", "--judge", "a/b", *options) == 0
        assert written.read_text().count(f"ref: {line}\n") == 2


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
        (["--judge", "a/b", "--ref", "no-such"], "--ref: got 'no-such', which this checkout does"),
        (["--judge", "a/b", "--ref", COMMIT[:39]], "expected one that it knows, or a commit's who"),
        (
            ["--judge", "a/b", "--ref", COMMIT, "--output", "/no/such"],
            "--output: got /no/such, which is not a fold",
        ),
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
    assert package("--output", tmp_path, "--judge", "a/b", "--ref", COMMIT) == 4
    assert "--output: cannot write" in capfd.readouterr().err
