"""docs/instructors.md: its commands do what it says, its figures are those of the code."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess

from grader.commands import cli
from grader.commands.cli import parser_of
from grader.commands.release import command
from grader.source.intake import entries
from grader.source.intake.archives import read
from grader.spec.problem import ROOT
from tests.harness import model_answer
from tests.records import write_answers
from tests.releases import release

PAGE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def commands(title):
    """The words behind `python -m grader` of each command in a section."""
    found = re.findall(r"^python -m grader (.+)$", section(title), re.MULTILINE)
    return [shlex.split(line) for line in found]


def grader(words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        return cli.main(words), out.getvalue()


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
