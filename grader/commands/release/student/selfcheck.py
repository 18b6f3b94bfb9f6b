"""Checks this repository: its judge runs, and is the one that was handed out."""

import hashlib
import json
import subprocess
import sys

from grader.spec.problem import ROOT, load_problem, problem_ids

JUDGE = ("grader/", "reference/", "problems/given/", "conftest.py")
OF_PROBLEMS = ("problem.toml", ".py")


def test_the_judge_is_the_one_that_was_handed_out():
    release = json.loads((ROOT / ".release.json").read_text(encoding="utf-8"))
    own = {f"problems/{p.id}/{p.file}" for p in map(load_problem, problem_ids())}
    changed = []
    for path, sha256 in release["files"].items():
        judges = path.startswith(JUDGE) or (path.startswith("problems/p") and path not in own)
        if judges and path.endswith(OF_PROBLEMS):
            file = ROOT / path
            data = file.read_bytes() if file.is_file() else b""
            if hashlib.sha256(data).hexdigest() != sha256:
                changed.append(path)
    assert not changed, (
        "changed here: your instructor grades with the files as they were handed out"
    )


def test_the_judge_runs_an_answer_and_finds_it_wrong(tmp_path):
    problem = load_problem(problem_ids()[0])
    (tmp_path / problem.id).mkdir()
    answer = f"def {problem.signature}:\n    raise ValueError('checking the judge')\n"
    (tmp_path / problem.id / problem.file).write_text(answer, encoding="utf-8")
    record = tmp_path / "record.json"
    options = ["--only", problem.id, "--device", "cpu", "--quick", "-x", "--json", str(record)]
    done = subprocess.run(
        [sys.executable, "-m", "grader", "grade", "--submission", str(tmp_path), *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "checking the judge" in done.stdout
    (result,) = json.loads(record.read_text(encoding="utf-8"))["problems"]
    assert result["verdict"] == "error"
    assert result["points"]["earned"] == 0
