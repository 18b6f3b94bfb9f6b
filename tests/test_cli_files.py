"""The files that `grader grade` writes: whole, after each problem, and whatever happens."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from grader.api import Grader
from grader.base.atomic_write import write_whole
from grader.commands.grade import command
from grader.report import classroom50, exports
from grader.spec.grade_record import GradeRecord
from tests import test_cli

run = test_cli.run
wrong = test_cli.wrong


def test_the_record_is_written_in_one_step_and_before_the_report(run, wrong, tmp_path, monkeypatch):
    path = tmp_path / "out" / "record.json"
    path.parent.mkdir()
    path.write_text("old")
    seen = []
    replace, render = os.replace, command.terminal.render

    def watch_replace(source, target):
        seen.append((path.read_text(), json.loads(Path(source).read_text())["schema_version"]))
        replace(source, target)

    def watch_render(*arguments, **options):
        seen.append(json.loads(path.read_text())["schema_version"])
        return render(*arguments, **options)

    monkeypatch.setattr(os, "replace", watch_replace)
    monkeypatch.setattr(command.terminal, "render", watch_render)
    run("--submission", wrong, "--only", "p02", "--json", path)
    first, (unfinished, version), rendered = seen
    assert first == ("old", 2) and (version, rendered) == (2, 2)
    assert json.loads(unfinished)["interrupted"]  # written when the problem was done
    assert not json.loads(path.read_text())["interrupted"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


def test_a_record_that_cannot_be_written_does_not_cost_the_report(
    run, wrong, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    path = tmp_path / "record.json"
    code, out, err = run("--submission", wrong, "--only", "p02", "--json", path)
    assert code == 4
    assert f"--json (JSON= of make): cannot write {path}: No space left on device" in err
    assert "wrong signature" in out and "Traceback" not in err
    assert not [p for p in tmp_path.iterdir() if "record" in p.name]


def test_every_file_that_can_be_written_is_written_after_each_problem(
    run, wrong, tmp_path, monkeypatch
):
    paths = {name: tmp_path / f"{name}.txt" for name in exports.HELP}
    seen = []
    for name in classroom50.REQUIRED.values():
        monkeypatch.setenv(name, "x")

    def failing(path, text):
        seen.append(path.stem)
        if path.stem == "json":
            raise OSError(28, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(exports, "write_whole", failing)
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    code, out, err = run("--submission", wrong, "--only", "p02", *options)
    assert code == 4 and "wrong signature" in out
    assert f"--json (JSON= of make): cannot write {paths['json']}: No space left on device" in err
    assert seen == 2 * list(exports.HELP)  # after the problem, and at the end
    for name in set(paths) - {"json"}:
        told = "p02 Weighted row sum" if name == "classroom50" else "P02-ERROR"
        assert told in paths[name].read_text(), name
        assert f"--{name}" not in err


def test_annotations_follow_the_report_in_which_nothing_is_a_command(
    run, wrong, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "wrong"
    _, plain, _ = run("--submission", folder, "--only", "p02", "--seed", "1")
    tokens = set()
    for _ in range(2):
        options = ("--only", "p02", "--seed", "1", "--annotations")
        code, out, _ = run("--submission", folder, *options)
        lines = out.splitlines()
        token = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", lines[0])[1]
        end = lines.index(f"::{token}::")
        assert code == 1 and lines[1:end] == plain.splitlines()
        (command,) = lines[end + 1 :]
        assert command.startswith("::error file=wrong/p02/weighted_row_sum.py,line=1,title=p02")
        tokens.add(token)
    assert len(tokens) == 2


def test_a_view_that_cannot_be_made_costs_neither_the_record_nor_the_report(
    run, wrong, tmp_path, monkeypatch, capfd
):
    def broken(record):
        raise RuntimeError("the judge's own")

    monkeypatch.setitem(exports.FORMATS, "markdown", broken)
    options = ("--json", tmp_path / "record.json", "--markdown", tmp_path / "a.md")
    with pytest.raises(RuntimeError, match="the judge's own"):
        run("--submission", wrong, "--only", "p02", *options)
    assert "wrong signature" in capfd.readouterr().out
    assert not GradeRecord.model_validate_json(options[1].read_text()).interrupted


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError("the judge's own")])
def test_the_record_is_written_whatever_happens(run, wrong, tmp_path, monkeypatch, fault):
    def fail(self):
        raise fault

    monkeypatch.setattr(Grader, "_grade_performance", fail)
    path = tmp_path / "record.json"
    try:
        code, out, _ = run("--submission", wrong, "--only", "p02,p03", "--json", path)
        assert code == 130 and "interrupted" in out
    except RuntimeError:
        assert fault is not KeyboardInterrupt
    record = GradeRecord.model_validate_json(path.read_text())
    assert [problem.verdict for problem in record.problems] == ["error", "error"]
    assert record.interrupted is (fault is KeyboardInterrupt)


def test_an_interrupt_before_anything_was_graded_says_so(run, wrong, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "jobs", interrupt)
    code, out, err = run("--submission", wrong)
    assert (code, out) == (130, "")
    assert err == "grader: interrupted before anything was graded\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_file_that_is_half_written_leaves_the_old_one_alone(tmp_path, monkeypatch, error):
    path = tmp_path / "record.json"
    path.write_text("old")

    def replace(*_):
        raise error

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(type(error)) as raised:
        write_whole(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"] and path.read_text() == "old"
    assert getattr(raised.value, "filename", str(path)) == str(path)
