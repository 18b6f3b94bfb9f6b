"""One grading of a class: what it is started with, how it ends, what of it counts, its version."""

import csv
import dataclasses
import io
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from classroom import grading
from classroom.grades import Standing, read_standing
from classroom.grading import BUSY, GradingOutcome, Settings, Task, judged
from classroom.outputs import GRADEBOOKS, canvas, moodle, write_gradebooks
from classroom.plan import versions as versions_of
from classroom.records import Student
from classroom.store import Store
from grader.base import scratch
from grader.commands.cli import parser_of
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import CheckResult, ComponentResult, Message, SpeedFigures, Verdict
from grader.spec.problem import ROOT, load_problem
from tests.classes import hand_in, key_of, result_of
from tests.environments import CPU, H200
from tests.fake_engine import problem_result, record_of, unfinished
from tests.harness import PROMPT_S, until

DATA = b"x = 1\n"
KEYS = {"p02": key_of("p02", DATA)}
TASK = Task({"p02": DATA}, Settings(device="cpu", limit_s=5.0))


@pytest.fixture
def scripted(monkeypatch):
    """Run this Python code in the place of a grading."""

    def use(code, start_s=0.0):
        monkeypatch.setattr(grading, "_START_S", start_s)
        monkeypatch.setattr(grading, "_GRACE_S", 1.0)

        def command(task, folder):
            return [sys.executable, "-c", code, str(folder / "record.json"), str(folder)]

        monkeypatch.setattr(grading, "command", command)

    return use


def test_a_grading_is_the_command_of_the_judge_with_what_was_set(tmp_path):
    settings = Settings("cuda", official=True, calibration="{}")
    command = grading.command(Task({"p02": b"", "p04": b""}, settings), tmp_path)
    assert command[1:4] == ["-m", "grader", "grade"]
    options = parser_of().parse_args(command[3:])
    assert options.official and options.exit_zero and not options.quick
    assert (options.only, options.device) == ("p02,p04", "cuda")
    assert options.submission == tmp_path / "submission" and options.json.parent == tmp_path
    assert options.calibration == tmp_path / "calibration.json"
    command = grading.command(Task({"p02": b""}, Settings("cpu", quick=True)), tmp_path)
    options = parser_of().parse_args(command[3:])
    assert options.quick and not options.official and options.calibration is None


def test_it_gets_exactly_the_bytes_and_leaves_nothing(scripted):
    scripted(
        "import sys, pathlib as p; folder = p.Path(sys.argv[2]);"
        "names = sorted(str(f.relative_to(folder)) for f in folder.rglob('*') if f.is_file());"
        f"data = (folder / 'submission/p02/{load_problem('p02').file}').read_bytes();"
        "open(sys.argv[1], 'w').write(repr((names, data)))"
    )
    outcome = grading.grade(dataclasses.replace(TASK, settings=Settings(calibration="{}")))
    names = ["calibration.json", f"submission/p02/{load_problem('p02').file}"]
    assert outcome.exit_code == 0 and eval(outcome.record) == (names, DATA)
    assert not os.listdir(scratch.folder())


def test_how_it_ended_and_its_last_words_are_told(scripted):
    scripted("import sys; print('x' * 100_000, file=sys.stderr); sys.exit('torch is missing')")
    outcome = grading.grade(TASK)
    assert (outcome.exit_code, outcome.record) == (1, None)
    assert outcome.last_words.endswith("torch is missing\n") and len(outcome.last_words) <= 4096
    scripted("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert grading.grade(TASK).exit_code == -signal.SIGKILL


def test_at_its_limit_it_is_killed_with_all_it_started_and_its_record_is_kept(scripted):
    scripted(
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1], 'w').write('so far');"
        "children = [subprocess.Popen(['sleep', '4711'], start_new_session=s) for s in (0, 1)];"
        "time.sleep(4711)"
    )
    quick = dataclasses.replace(TASK, settings=Settings(limit_s=1.5))
    began = time.monotonic()
    outcome = grading.grade(quick)
    assert (outcome.exit_code, outcome.record) == (None, "so far")
    assert time.monotonic() - began < PROMPT_S
    assert until(lambda: not _running("4711"))


def _running(word):
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if line.split()[-1:] == [word]]


def test_it_ends_when_the_worker_that_started_it_is_killed(tmp_path):
    code = (
        "import os, sys; from classroom import grading;"
        "grading.command = lambda *_: ['sleep', '4712'];"
        "print('now', flush=True);"
        "grading.grade(grading.Task({}, grading.Settings()))"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert worker.stdout.readline() == b"now\n"
        assert until(lambda: _running("4712"))
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    assert until(lambda: not _running("4712"))
    scratch.sweep()
    names = [path.name for path in scratch.folder().parent.glob(f"grader-{worker.pid}-*")]
    assert not names


def test_a_record_is_a_regular_file_of_bounded_size(scripted, monkeypatch):
    scripted("import os, sys; os.symlink('/etc/hostname', sys.argv[1])")
    assert grading.grade(TASK).record is None
    scripted("import os, sys; os.mkfifo(sys.argv[1])")
    assert grading.grade(TASK).record is None
    monkeypatch.setattr(grading, "MAX_RECORD_BYTES", 10)
    scripted("import sys; open(sys.argv[1], 'w').write('x' * 11)")
    assert grading.grade(TASK).record is None


def test_a_machine_without_torch_says_so(monkeypatch):
    def missing(device):
        raise EnvironmentFault("torch is not installed")

    monkeypatch.setattr(grading, "probe", missing)
    assert grading.look(Settings()) == "torch is not installed"
    monkeypatch.setattr(grading, "probe", lambda device: CPU)
    assert grading.look(Settings()) == CPU

    def broken(gpu):
        raise grading.inspection.JailFault("no bwrap")

    monkeypatch.setattr(grading.inspection, "inspect", broken)
    assert "can be jailed on this machine: no bwrap" in grading.look(Settings(official=True))


def outcome_of(*problems, exit_code=0, **fields):
    return GradingOutcome(exit_code, record_of(*problems, **fields).to_json(), "last words\n", 2.0)


def fault_of(outcome, machine=CPU, official=False):
    done = judged(KEYS, outcome, machine, official=official)
    assert not done.results
    (text,) = done.faults.values()
    return text


def test_a_finished_problem_is_a_result_also_where_points_were_lost():
    for verdict in (Verdict.PASS, Verdict.REJECTED, Verdict.CRASH, Verdict.NOT_IMPLEMENTED):
        problem = problem_result("p02", DATA, 3.0, verdict=verdict)
        done = judged(KEYS, outcome_of(problem, seed="abc"), CPU, official=False)
        (result,) = done.results
        assert not done.faults and result.result == problem and result.key == KEYS["p02"]
        assert (result.seed, result.mode, result.environment) == ("abc", "local", CPU)
    unread = problem_result("p02", DATA, verdict=Verdict.ERROR).model_copy(
        update={"source_sha256": None}  # an empty file has no bytes
    )
    assert judged(KEYS, outcome_of(unread), CPU, official=False).results


def test_what_is_no_result_says_why():
    good = problem_result("p02", DATA, 7.0)
    internal = ComponentResult(verdict=Verdict.INTERNAL, reason="no space")
    busy = ComponentResult(verdict=Verdict.NOT_MEASURED, reason=f"{BUSY} (two baselines 40 %)")
    waits = ComponentResult(verdict=Verdict.SKIPPED, reason="not run: interrupted")
    check = CheckResult(
        id="a", title="a", verdict=Verdict.INTERNAL, message=Message(headline="the judge failed")
    )
    for outcome, words in (
        (GradingOutcome(-9, None), "the grading was killed (signal 9)"),
        (GradingOutcome(None, None, "", 61.2), "the grading took longer than its limit (61 s)"),
        (GradingOutcome(4, None, "a\ntorch\x1b[2J is missing\n"), "exit code 4: torch is missing"),
        (GradingOutcome(0, None), "it wrote no record"),
        (GradingOutcome(0, "{}"), "its record is not valid: Field required"),
        (GradingOutcome(0, "x" * 100), "its record is not valid: Invalid JSON"),
        (outcome_of(), "it is not in the record"),
        (outcome_of(problem_result("p02", b"other", 7.0)), "other bytes were graded"),
        (outcome_of(unfinished("p02", DATA)), "it was not graded to its end"),
        (outcome_of(good.model_copy(update={"components": {"speed": waits}})), "not graded to its"),
        (outcome_of(good.model_copy(update={"components": {"speed": internal}}), exit_code=3),
         "fault of the judge: no space; the grading ended with exit code 3: last words"),
        (outcome_of(good.model_copy(update={"checks": (check,)})), "the judge failed"),
        (outcome_of(good.model_copy(update={"verdict": Verdict.INTERNAL})), "fault of the judge"),
        (outcome_of(good.model_copy(update={"components": {"speed": busy}})), "machine is busy"),
        (outcome_of(good, environment=H200), "graded on NVIDIA H200, expected x86_64"),
    ):  # fmt: skip
        assert words in fault_of(outcome)
    assert fault_of(outcome_of(good), official=True) == "graded in mode local"


def test_a_busy_machine_is_called_so_by_the_judge():
    from grader.judge.measurement import speed_evidence

    figures = SpeedFigures(worst_error_over_allowed=0.5, naive_drift_percent=40.0)
    assert speed_evidence(figures, "p01").reason.startswith(BUSY)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of all that grades."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("problems", "reference", "grader", "classroom"):
        ignored = shutil.ignore_patterns("__pycache__", "solution.py")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    return root


def versions(root, environment=CPU, **settings):
    return versions_of(environment, ("p02", "p04"), root=root, **settings)


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("problems/p04/test_p04.py", {"p04"}),
        ("problems/p04/problem.toml", {"p04"}),
        ("problems/p04/README.md", set()),
        ("problems/p04/causal_attention.py", set()),
        ("problems/given/tiles.py", {"p02", "p04"}),
        ("reference/naive.py", {"p02", "p04"}),
        ("grader/judge/problem_run.py", {"p02", "p04"}),
        ("grader/checks/outcome.py", {"p02", "p04"}),
        ("grader/timing/choice.py", {"p02", "p04"}),
        ("grader/commands/cli.py", set()),
        ("grader/report/terminal.py", set()),
        ("classroom/store.py", set()),
        ("grader/source/intake/zips.py", set()),
    ],
)
def test_a_version_changes_with_what_decides_points_and_with_nothing_else(checkout, path, changed):
    before, file = versions(checkout), checkout / path
    data = file.read_bytes()
    try:
        file.write_bytes(data + b"\n# more\n")
        after = versions(checkout)
    finally:
        file.write_bytes(data)
    assert {problem for problem in before if before[problem] != after[problem]} == changed
    assert versions(checkout) == before


def test_a_version_is_that_of_a_machine_a_mode_and_a_calibration():
    found = [
        versions(ROOT),
        versions(ROOT, H200),
        versions(ROOT, CPU.model_copy(update={"torch": "2.12.0"})),
        versions(ROOT, CPU.model_copy(update={"triton": "3.8.0"})),
        versions(ROOT, CPU.model_copy(update={"device_name": "arm"})),
        versions(ROOT, official=True),
        versions(ROOT, quick=True),
        versions(ROOT, calibration=""),
        versions(ROOT, calibration="{}"),
    ]
    assert len({v for each in found for v in each.values()}) == 2 * len(found)
    driver = CPU.model_copy(update={"driver": "580", "notes": ("n",), "python": "3.13.1"})
    assert versions(ROOT, driver) == found[0]


@pytest.fixture
def graded(tmp_path):
    with Store(tmp_path / "class.db") as store:
        store.set_students(
            [
                Student(id="ada", name='Lovelace, "Ada"', email="ada@x.edu", section="A"),
                Student(id="=1+1", name="@SUM(A1)", email="+49", section="-x"),
                Student(id="\teve", name="Eve\n=2", login="eve-git"),
            ]
        )
        hand_in(store, "ada", {"p02": b"x"})
        hand_in(store, "=1+1", {"p02": b"y"})
        store.save_results([result_of("p02", b"x", 6.55)])
        yield store


def test_canvas_and_moodle_get_points_and_blanks_and_no_formula(graded, tmp_path):
    graded.set_versions({"p02": "v1"})
    standing = read_standing(graded, problems=("p02", "p04"))
    text = canvas(standing)
    assert text.splitlines()[:4] == [
        "Student,ID,SIS Login ID,Section,p02 Weighted row sum,p04 Causal attention",
        "    Points Possible,,,,7.0,11.0",
        '"Lovelace, ""Ada""",ada,ada@x.edu,A,6.5,0.0',
        "'@SUM(A1),'=1+1,'+49,'-x,,0.0",
    ]
    assert text.splitlines()[4:] == ["Eve '=2, eve,eve-git,,0.0,0.0"]
    text = moodle(standing)
    assert text.startswith("Identifier,Full name,Email address,p02 Weighted row sum,p04 ")
    assert "\n'=1+1,'@SUM(A1),'+49,,0.0\n" in text
    paths = write_gradebooks(tmp_path, standing)
    written = [render(standing) for render in GRADEBOOKS.values()]
    assert [path.read_text(encoding="utf-8") for path in paths] == written


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", "\x1f", "\v"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_NONE])
def test_no_separator_makes_a_formula_of_a_part_of_a_name(separator, quoting):
    names = ["Kim;=1+1", "Kim\t+1", 'Kim;"-1"', "Kim| @A1", "=;=1", "Kim\x1f＝1", "Kim,\v-1", "-=1"]
    students = [Student(id=f"s{n};@x", name=name) for n, name in enumerate(names)]
    standing = Standing(tuple(students), (), {}, {})
    for text in (canvas(standing), moodle(standing)):
        lines = io.StringIO(text, newline="")
        cells = [c for row in csv.reader(lines, delimiter=separator, quoting=quoting) for c in row]
        assert not [cell for cell in cells if cell.lstrip(' "').startswith(tuple("=+-@＝"))]
    plain = [Student(id="a-1", name="Ann-Lee O'Hara", email="ann-lee+x@x.edu", section="C++")]
    assert "Ann-Lee O'Hara,a-1,ann-lee+x@x.edu," in canvas(Standing(tuple(plain), (), {}, {}))
