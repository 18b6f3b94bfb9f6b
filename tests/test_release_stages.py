"""Releases in stages are whole: each page, example and help names only what works in its stage."""

import posixpath
import re
import shutil
import subprocess
import sys

import pytest

from grader.commands.cli import in_words_of_make
from grader.commands.release import ledger, pages
from grader.commands.release.contents import opened_early
from grader.spec.problem import ROOT
from tests.releases import ALL, compiled, files_of, release

STAGES = [ALL[:n] for n in (1, 2, 3, 4, 5, 7, 9)] + [("p02",), ("p03", "p05"), ("p08", "p09")]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ID = re.compile(r"\b[pP]\d\d\b")
# Whatever names a problem of another stage here sends its reader to what is not there.
SETS = re.compile(
    r"README\.md|AGENTS\.md|Makefile|conftest\.py|\.devcontainer/.*|\.github/.*|notebooks/.*"
)


@pytest.fixture(scope="module", params=STAGES, ids=",".join)
def staged(request):
    return request.param, files_of(request.param)


def markdown(files):
    return {path: data.decode() for path, data in files.items() if path.endswith(".md")}


def test_what_sets_a_stage_up_names_its_problems_alone(staged):
    stage, files = staged
    checked = 0
    for path in filter(SETS.fullmatch, files):
        text = files[path].decode()
        if path == "README.md":  # says what comes later, and which modules hold what
            said = r"^(p\d\d.* later; |Modules in `problems/given`).*$"
            text = re.sub(said, "", text, flags=re.MULTILINE)
        assert {id.lower() for id in ID.findall(text)} <= set(stage), path
        checked += 1
    assert checked >= 7


def test_commands_have_their_targets_and_their_problems(staged):
    stage, files = staged
    targets = set(re.findall(r"^([a-z]+):", files["Makefile"].decode(), re.MULTILINE))
    for path, text in markdown(files).items():
        if path == "CHANGELOG.md":  # says what was
            continue
        blocks = "\n".join(body for language, body in FENCE.findall(text) if not language)
        lines = re.findall(r"^(?:make|pytest) .+$", blocks, re.MULTILINE)
        lines += re.findall(r"`((?:make|pytest) [^`]+)`", FENCE.sub("", text))
        for line in lines:
            named = re.findall(r"(?:P=|problems/|--only )(p\d\d(?:,p\d\d)*)", line)
            assert {id for ids in named for id in ids.split(",")} <= set(stage), (path, line)
            assert {id.lower() for id in re.findall(r"ID=(P\d\d)", line)} <= set(stage), (
                path,
                line,
            )
            if line.startswith("make "):
                assert line.split()[1] in targets, (path, line)
    assert pages.for_students("a\n<!-- with p05 -->\nb\n<!-- end of p05 -->\n", "x") == "a\n"


def test_links_lead_to_files_of_the_stage(staged):
    files = staged[1]
    folders = {posixpath.dirname(path) for path in files} | {"docs", "problems"}
    for path, text in markdown(files).items():
        for target in LINK.findall(re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))):
            if ":" in target or target.startswith("#"):
                continue
            place = posixpath.normpath(
                posixpath.join(posixpath.dirname(path), target.partition("#")[0])
            )
            assert place in files or place in folders, (path, target)


def test_modules_that_hold_an_answer_come_with_the_problem_after_it_and_are_named(staged):
    stage, files = staged
    held = opened_early(files)
    for name, id in held.items():
        assert not [p for p in stage if p <= id] or max(stage) > id, (name, id)
        assert f"`{name}.py` (what {id} asks for)" in files["README.md"].decode()
    if stage == ALL:
        assert set(held.values()) == {"p03", "p04", "p05", "p06", "p07", "p08"}


def test_every_module_that_holds_an_answer_says_so():
    """What `opened_early` reads: each module that opens later than the plumbing names a problem."""
    given = {path.stem: path.read_bytes() for path in (ROOT / "problems" / "given").glob("*.py")}
    texts = {f"problems/given/{name}.py": data for name, data in given.items()}
    named = {name for name, data in given.items() if b"Opens with p" in data}
    assert set(opened_early(texts)) == named and len(named) >= 6


def test_a_release_of_all_says_what_it_gives_away(tmp_path):
    code, out, _ = release(tmp_path / "all")
    said = " ".join(out.split())
    assert code == 0 and "softmax.py (p03)" in said
    assert "hand out in stages to keep it back" in said
    for problems in ("p01,p02,p03", "p04"):
        code, out, _ = release(tmp_path / "stages", "--problems", problems)
        assert code == 0 and "  opened  " not in out


@pytest.mark.parametrize("which", ["p01,p02", "p03,p05"])
def test_help_and_messages_of_a_stage_name_its_problems(tmp_path, which):
    folder = tmp_path / "course"
    shutil.copytree(compiled("stage" if which == "p01,p02" else "odd", which), folder)
    script = """
import contextlib, sys
sys.modules["classroom"] = None
from grader.commands import cli
names = [n for n in cli.COMMANDS if n not in ("class", "release", "package", "calibrate")]
for words in ([], *([name, "--help"] for name in names), ["explain"], ["race"], ["explain", "x"]):
    with contextlib.suppress(SystemExit):
        cli.main(words or ["--help"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    said = done.stdout + done.stderr
    assert "--only" in said and len(said) > 5000
    wrong = [line for line in said.splitlines() if set(ID.findall(line)) - ids_of(which)]
    assert not wrong
    listed = subprocess.run(["make", f"PY={sys.executable}"], cwd=folder, capture_output=True)
    assert set(ID.findall(listed.stdout.decode())) <= ids_of(which)


def ids_of(which):
    return {name for id in which.split(",") for name in (id, id.upper())}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["DIR=problems"], "DIR (DIR= of make): got problems, inside this checkout"),
        ([], "make: DIR= got nothing, expected a folder such as DIR=../course"),
        (["DIR=../x", "P=p77"], "--problems (P= of make): got p77"),
        (["DIR=../x", "ANSWERS_AFTER=x"], "--answers-after (ANSWERS_AFTER= of make): got 'x'"),
    ],
)
def test_a_message_names_the_variable_that_was_typed(words, said):
    done = subprocess.run(
        ["make", "release", *words, f"PY={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and said in done.stderr


def test_words_of_make_are_those_of_the_target():
    assert in_words_of_make("DIR: got x", "lint") == "DIR (SUBMISSION= of make): got x"
    assert in_words_of_make("--output: got x", "submit") == "--output (OUTPUT= of make): got x"
    assert in_words_of_make("--output: got x", "release") == "--output: got x"
    assert ledger.NAME == ".release.json"
