"""docs/instructors.md: its commands do what it says, its figures are those of the code."""

import contextlib
import hashlib
import io
import re
import shlex
import shutil
import subprocess
import tomllib

import pytest

from classroom import grade_class, outputs
from classroom.grading import GradingOutcome
from classroom.lateness import Policy, read_policy
from classroom.records import Decision
from classroom.store import Store
from grader.commands import cli
from grader.commands.cli import parser_of
from grader.commands.release import command
from grader.source.intake import entries
from grader.source.intake.archives import read
from grader.spec.problem import ROOT, load_problem
from tests.class_commands import give, students
from tests.classes import AT, packed, write
from tests.fake_engine import FakeEngine
from tests.harness import model_answer
from tests.records import write_answers
from tests.releases import release
from tests.test_identity import gradescope
from tests.whole_class import full, record

PAGE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
# What these do with a machine of your own is tested elsewhere: here their options are read.
ELSEWHERE = ("calibrate", "grade --official --submission solutions")
# All others end with 0: somebody's data is only deleted with --yes.
CODES = {"class forget --course fall --student s1042": 1}


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def words_of(title):
    return " ".join(section(title).split())


def blocks(title, language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", section(title), re.M | re.S)


def grader(words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        return cli.main(words), out.getvalue()


def commands(title):
    """The words behind `python -m grader` of each command in a section."""
    found = re.findall(r"^python -m grader (.+)$", section(title), re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_the_commands_of_hand_out_run(tmp_path):
    folder = tmp_path / "course"
    stages = []
    for words in commands("Hand out"):
        places = [str(folder) if word == "../course" else word for word in words]
        later = [re.sub(r"^20\d\d-", "2999-", word) for word in places]
        assert later[0] == "release"
        code, out, _ = release(*later[1:])
        assert code == 0 and "not before 2999-02-" in out
        stages.append(sorted(p.name for p in (folder / "problems").glob("p*")))
    assert stages == [["p01", "p02"], *[["p01", "p02", "p03", "p04"]] * 2]
    assert not (folder / "solutions").exists()


def test_the_command_of_make_is_that_of_the_grader():
    (line,) = re.findall(r"^make .+$", section("Hand out"), re.MULTILINE)
    done = subprocess.run(
        [*shlex.split(line), "-n", "--no-print-directory", "PY=python3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    words = shlex.split(done.stdout.replace("\\\n", " "))
    options = parser_of().parse_args(words[words.index("release") :])
    assert (str(options.dir), options.problems) == ("../course", "p05")
    assert options.answers_after == "2027-03-07"


def test_the_command_of_hand_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_answers(tmp_path / "problems", {"p02": model_answer("p02")})
    (words,) = commands("What students hand in")
    assert grader(words)[0] == 0
    assert list(read(tmp_path / "submission.zip").files) == ["p02/weighted_row_sum.py"]
    shutil.rmtree(tmp_path / "problems" / "p02")


def test_figures_are_those_of_the_code():
    assert f"more than {entries.MAX_ENTRIES} entries" in TEXT
    assert f"or {entries.MAX_ARCHIVE_BYTES // 2**20} MiB" in TEXT
    assert ".release.json" in TEXT and command.ledger.NAME == ".release.json"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A class as on the page, where the commands of the page find it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fall").mkdir()
    with Store(tmp_path / "fall" / "class.db") as store:
        students(store, "s1042", "s1043")
        give(store, "s1042", full("p04"))
        give(store, "s1043", full("p04"))
        asked = {"problem": "p04", "author": "s1042", "reason": "line 40 masks it", "at": AT}
        store.add(Decision(kind="request", student="s1042", **asked))
    return tmp_path / "fall"


def test_the_files_are_those_that_are_written(course):
    grader(["class", "report", "--course", "fall"])
    listed = re.findall(r"^\| `([^`]+)` \|", section("Read the results"), re.MULTILINE)
    for name in listed:
        assert (course / name.replace("ID", "s1042")).is_file(), name
    assert [name for name in listed if "/" not in name] == [outputs.CLASS_PAGE]
    text = words_of("Regrade and publish")
    assert all(name in text for name in outputs.GRADEBOOKS)


def test_tools_that_compare_files_read_those_that_are_written(course):
    text = section("Near-identical submissions")
    assert grader(["class", "report", "--course", "fall", "--files", "compare"])[0] == 0
    names = {path.name for path in (course.parent / "compare" / "p04").iterdir()}
    assert names == {"s1042.py", "s1043.py"}
    assert "compare/p04/s1042.py" in text
    (stub,) = re.findall(r"-i (\S+)", text)
    assert (ROOT / stub).name == load_problem(
        "p04"
    ).file and f"-bc {stub.rpartition('/')[0]} " in text


def test_the_policy_for_late_days_is_one(tmp_path):
    (policy,) = blocks("Regrade and publish", "toml")
    (tmp_path / "course.toml").write_text(policy)
    late = read_policy(tmp_path)
    assert (late.late_days, late.percent_per_day, late.last_day) == (5, 10, 7)
    assert set(tomllib.loads(policy)) == set(Policy.model_fields)


def test_forget_does_what_is_said(course):
    grader(["class", "report", "--course", "fall"])
    grader(["class", "publish", "--course", "fall", "--author", "kim"])
    lines = re.findall(r"^python -m grader (.+ forget .+)$", PAGE, re.MULTILINE)
    _, would = grader(shlex.split(lines[0]))
    _, done = grader(shlex.split(lines[1]))
    for name in ("reports/s1042.html", "class.html", *outputs.GRADEBOOKS):
        assert name in would and name in done and not (course / name).exists()
    assert (course / "reports" / "s1043.html").exists()
    assert b"s1042" not in (course / "class.db").read_bytes()


def graded_in_full(task):
    """A grading on the machine of the record, with full marks for every file."""
    results = [
        full(problem).model_copy(update={"source_sha256": hashlib.sha256(data).hexdigest()})
        for problem, data in task.files.items()
    ]
    made = record().model_copy(update={"problems": tuple(results), "mode": "official"})
    return GradingOutcome(0, made.to_json(), "", 1.0)


def test_an_instructors_walk_from_the_first_command_to_the_last(tmp_path, monkeypatch):
    """Every command of the page, in its order, in one folder, up to adding a problem."""
    home = tmp_path / "home"
    write(home, {"problems/p02/weighted_row_sum.py": model_answer("p02")})
    monkeypatch.chdir(home)
    monkeypatch.setattr(grade_class.grading, "look", lambda settings: record().environment)
    monkeypatch.setattr(grade_class.grading, "grade", graded_in_full)
    monkeypatch.setattr(grade_class, "check_set", lambda problems: None)
    monkeypatch.setattr(grade_class, "make_engine", lambda options: FakeEngine())
    listed = [(11, "s1043", "b@x.edu", "B"), (12, "s1042", "a@x.edu", "A")]
    handed_in = {f"submission_{n}/p04/causal_attention.py": f"# of {n}" for n, *_ in listed} | {
        "submission_metadata.yml": gradescope(*listed)
    }
    handed_in["submission_12/regrade.md"] = "# p04\nline 40 masks it\n"
    (policy,) = blocks("Regrade and publish", "toml")
    files = {"submissions.zip": packed(handed_in), "roster.csv": "id\ns1042\ns1043\n"}
    write(home, files | {"slurm.toml": "", "fall/course.toml": policy})
    done = []
    for line in re.findall(r"^python -m grader (.+)$", PAGE.split("\n## Add a problem")[0], re.M):
        words = shlex.split(re.sub(r"\b20\d\d-(?=\d\d-\d\d)", "2999-", line))
        if line in ELSEWHERE:
            parser_of(words[0]).parse_args(words)
        elif words[0] == "release":
            assert release(*words[1:])[0] == 0, line
        else:
            code, out = grader(words)
            assert code == CODES.get(line, 0), (line, out)
        done.append(line)
    assert set(ELSEWHERE) | CODES.keys() <= set(done) and len(done) >= 24
    assert (tmp_path / "course" / "problems" / "p04").is_dir()
    with Store(home / "fall" / "class.db") as store:  # s1042 is forgotten, what was published stays
        assert set(store.hand_ins()) == {"s1043"} and not store.decisions()
        assert {g.points for g in store.last_publication().grades} >= {15}
