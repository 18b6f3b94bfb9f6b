"""The report of `make grade`: written without being asked for by name, and never at a cost."""

import datetime
import json
import subprocess
import types
from functools import partial

import pytest

from grader.commands.release import contents
from grader.judge import surroundings
from grader.report import exports, history
from grader.spec.problem import ROOT
from tests.environments import CPU
from tests.exports import record
from tests.records import write_answers

WRONG = {"p02": "def weighted_row_sum(x):\n    return x  # my own\n"}


@pytest.fixture
def run(grader, monkeypatch, tmp_path):
    """Grade a wrong answer in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.setattr(surroundings, "probe", lambda device: CPU)
    monkeypatch.chdir(tmp_path)
    write_answers(tmp_path / "answers", WRONG)
    return partial(grader, *"grade --device cpu --submission answers --only p02".split())


def test_the_report_is_written_and_the_last_line_says_so(run, tmp_path):
    code, out, err = run("--report")
    assert code == 1 and "grader:" not in err
    assert out.splitlines()[-2:] == ["1 problem: 0 passed, 1 error", "report report.html"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "error[P02-ERROR]: wrong signature" in page
    assert "my own" in page and "p02/weighted_row_sum.py" in page
    assert sorted(p.name for p in tmp_path.iterdir()) == [".cache", "answers", "report.html"]
    assert [p.name for p in (tmp_path / ".cache").iterdir()] == ["history.jsonl"]


def test_the_points_of_earlier_runs_are_in_the_report_whatever_the_clock_says(
    run, tmp_path, monkeypatch
):
    class Clock(datetime.datetime):
        years = iter((2026, 1970, 2099))

        @classmethod
        def now(cls, zone):
            return cls(next(cls.years), 1, 2, 3, 4, tzinfo=zone)

    clock = types.SimpleNamespace(datetime=Clock, UTC=datetime.UTC)
    monkeypatch.setattr(exports, "datetime", clock)
    for _ in range(3):
        run("--report")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    places = [page.index(f">{year}-01-02 03:04<") for year in (2099, 1970, 2026)]
    assert places == sorted(places)  # the last run first
    lines = (tmp_path / ".cache" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["points"] for line in lines] == 3 * [{"p02": [0, 7]}]


def test_without_the_option_nothing_is_written(run, tmp_path):
    _, out, _ = run()
    assert [p.name for p in tmp_path.iterdir()] == ["answers"]
    assert "report.html" not in out


@pytest.mark.parametrize("what", ["a folder", "a full disk", "a fault of the page"])
def test_a_report_that_cannot_be_written_is_a_note_and_costs_nothing(
    run, tmp_path, monkeypatch, what
):
    def write_whole(path, text):
        if path.name == "report.html":
            raise OSError(28, "No space left on device")
        path.write_text(text)

    def fail(*_, **__):
        raise RuntimeError("no such template")

    told = {"a full disk": "No space left on device", "a fault of the page": "no such template"}
    if what == "a folder":
        (tmp_path / "report.html").mkdir()
        told[what] = "Is a directory"
    elif what == "a full disk":
        monkeypatch.setattr(exports, "write_whole", write_whole)
    else:
        monkeypatch.setattr(exports.page, "render", fail)
    code, out, err = run("--report", "--json", "record.json")
    assert code == 1 and (tmp_path / "record.json").exists()
    assert f"grader: report.html was not written: {told[what]}\n" in err
    assert out.splitlines()[-1] == "1 problem: 0 passed, 1 error"


@pytest.mark.parametrize("damage", ["a file", "a folder"])
def test_a_history_that_cannot_be_kept_is_a_note_and_the_report_is_written(run, tmp_path, damage):
    if damage == "a file":
        (tmp_path / ".cache").write_text("")
    else:
        (tmp_path / ".cache" / "history.jsonl").mkdir(parents=True)
    code, out, err = run("--report")
    assert code == 1
    assert "grader: the points of this run were not kept in .cache/history.jsonl: " in err
    assert out.splitlines()[-1] == "report report.html" and (tmp_path / "report.html").exists()


def test_a_run_for_credit_and_one_that_was_interrupted_leave_no_points(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graded = record("full marks on the CPU")
    exports.write_page(graded, {})
    exports.write_page(record("interrupted"), {})
    assert len(history.read(exports.HISTORY, graded.submission)) == 1
    assert "Points over the runs" in exports.PAGE.read_text()
    exports.write_page(graded.model_copy(update={"mode": "official"}), {})
    assert len(history.read(exports.HISTORY, graded.submission)) == 1
    assert "Points over the runs" not in exports.PAGE.read_text()


@pytest.mark.parametrize("name", ["--json", "--html", "--markdown"])
def test_the_file_of_the_report_is_no_other_options_file(run, name, capfd):
    assert run("--report", name, "./report.html")[0] == 2


def test_the_page_is_an_export_like_the_others(run, tmp_path):
    code, out, err = run("--html", "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert code == 1 and "my own" in page and "Points over the runs" not in page
    assert not (tmp_path / ".cache").exists()
    code, out, err = run("--html", "no/such/page.html")
    assert code == 2 and "--html: no such folder" in err and out == ""


@pytest.mark.parametrize(
    ("given", "wanted"), [([], True), (["REPORT=no"], False), (["REPORT=yes"], True)]
)
def test_make_grade_asks_for_the_report(given, wanted):
    command = ["make", "-n", "-C", str(ROOT), "grade", "PY=python3", *given]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("--report" in shown.split()) is wanted


def test_a_release_for_students_has_what_the_report_is_made_with(tmp_path):
    needed = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("grader/report/html/**/*.*")}
    needed = {path for path in needed if "__pycache__" not in path}
    assert {"page.html.j2", "style.css", "script.js"} <= {path.split("/")[-1] for path in needed}
    assert needed <= contents.build(ROOT, ["p01"]).keys()
