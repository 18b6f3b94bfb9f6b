"""`grader release`: what students get and what not, stages, updates, answers, errors."""

import contextlib
import datetime
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict

import pytest

from grader import __version__, cli
from grader.manifest import ROOT, load_problem, problem_ids
from grader.model import GradeRecord, Verdict
from grader.options import parser_of
from grader.release import command, contents, dates, ledger, pages, writing
from grader.release.contents import ReleaseError, build
from grader.source import examine, step_regions
from tests.harness import model_answer

ALL = problem_ids()
STUB = "problems/p02/weighted_row_sum.py"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PY = f"PY={sys.executable}"


def release(folder, *options):
    """Run `grader release` here; return exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["release", str(folder), *options])
    assert all(len(line) <= 80 for line in out.getvalue().splitlines())
    return code, out.getvalue(), err.getvalue()


def made(folder, *options):
    code, out, err = release(folder, *options)
    assert (code, err) == (0, "")
    return out


def tree(folder):
    """The files of a folder, by path, without the ledger."""
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if not p.is_dir()}
    return {path: p.read_bytes() for path, p in found.items() if path != ledger.NAME}


def past(folder):
    """Let the date of all answers be past, as if the course had gone on."""
    path = folder / ledger.NAME
    record = json.loads(path.read_text())
    record["answers_after"] = dict.fromkeys(record["answers_after"], "2026-01-01T00:00:00Z")
    path.write_text(json.dumps(record))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "course"
    made(folder)
    return folder


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """p01 and p02 alone."""
    folder = tmp_path_factory.mktemp("stage") / "course"
    made(folder, "--problems", "p01,p02")
    return folder


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """p01 to p03, of which p02 is over."""
    folder = tmp_path_factory.mktemp("answered") / "course"
    made(folder, "--problems", "p02", "--answers-after", "2999-01-01")
    made(folder, "--problems", "p01,p03")
    past(folder)
    made(folder)
    return folder


every_release = pytest.mark.parametrize("which", ["whole", "stage", "answered"])


# -- what is in it --------------------------------------------------------------------------------


def test_it_holds_what_a_student_needs(whole):
    files = tree(whole)
    for problem in map(load_problem, ALL):
        names = ("README.md", "HINTS.md", "ANSWERS.md", "problem.toml", f"test_{problem.id}.py")
        assert {f"problems/{problem.id}/{name}" for name in (*names, problem.file)} <= set(files)
    assert {"Makefile", "conftest.py", "LICENSE", "docs/grading.md", "grader/cli.py"} <= set(files)
    assert {"reference/naive.py", "docs/quiz/level0.md", ".github/workflows/grade.yml"} <= set(
        files
    )


def test_it_holds_nothing_else(whole):
    files = tree(whole)
    folders = {path.split("/")[0] for path in files if "/" in path}
    assert folders == {".github", "docs", "grader", "problems", "reference", "tests"}
    assert [path for path in files if path.startswith("tests/")] == ["tests/test_release.py"]
    forbidden = (
        "solution",
        "mutant",
        "steps",
        "mistakes.md",
        "trust",
        "ci.md",
        "records",
        "unusual",
    )
    named = [p for p in files if any(word in p for word in forbidden)]
    assert named == []
    assert not [path for path in whole.rglob("*") if path.is_symlink()]
    assert not [path for path in files if path.startswith("grader/release/student")]


def steps_of(problem_id):
    """The code of each step of the model answer, of three lines and more."""
    lines = model_answer(problem_id).split("\n")
    for first, last in step_regions(model_answer(problem_id)).values():
        code = [s for s in map(str.strip, lines[first : last - 1]) if s and not s.startswith("#")]
        if len(code) >= 3:
            yield "\n".join(code)


@pytest.mark.parametrize("last", ALL)
def test_no_stage_holds_code_of_its_answers(last):
    """Not even in `given`, whose modules for later problems hold what earlier ones taught."""
    number = ALL.index(last) + 1
    files = build(ROOT, ALL[:number], (), ALL)
    texts = {
        path: "\n".join(s for s in map(str.strip, data.decode().split("\n")) if s)
        for path, data in files.items()
        if path.endswith((".py", ".md"))
    }
    for step in steps_of(last):
        assert not [path for path, text in texts.items() if step in text]


def test_given_opens_with_its_problems(stage, whole):
    def given(folder):
        return {path.stem for path in (folder / "problems" / "given").glob("*.py")}

    assert given(stage) == {"__init__", "arguments", "products", "launch"}
    assert given(whole) == {path.stem for path in (ROOT / "problems" / "given").glob("*.py")}


def test_stubs_are_stubs(whole):
    for problem in map(load_problem, ALL):
        data = (whole / "problems" / problem.id / problem.file).read_bytes()
        assert examine(problem, data).verdict is Verdict.NOT_IMPLEMENTED


def test_a_solved_stub_in_the_checkout_is_not_handed_out(tmp_path):
    """Nor is anything that an answer was copied into; a copy without git is walked."""
    copy = tmp_path / "checkout"
    for path in contents.list_files(ROOT):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, copy / path, follow_symlinks=False)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "x.py").touch()
    assert contents.list_files(copy) == contents.list_files(ROOT)
    assert build(copy, ALL, (), ALL) == build(ROOT, ALL, (), ALL)
    (copy / "grader" / "cache.py").write_text(model_answer("p04"))
    with pytest.raises(ReleaseError, match=r"grader/cache\.py: got a step of p04's answer"):
        build(copy, ALL, (), ALL)
    (copy / STUB).write_text(model_answer("p02"))
    with pytest.raises(ReleaseError, match="got step 1 filled in, expected the stub: git checkout"):
        build(copy, ALL, (), ALL)
    (copy / "docs" / "grading.md").unlink()
    (copy / "LICENSE").write_text("x")
    (copy / STUB).unlink()
    with pytest.raises(ReleaseError, match="of this checkout cannot be read"):
        build(copy, ALL, (), ALL)


# -- pages ----------------------------------------------------------------------------------------


def anchors(text):
    """The anchors that GitHub makes of the headings of a page."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


@every_release
def test_every_link_leads_somewhere(request, which):
    folder, checked = request.getfixturevalue(which), 0
    for page in folder.rglob("*.md"):
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            path, _, anchor = target.partition("#")
            if ":" in target:
                continue
            there = page.parent / path if path else page
            assert there.exists(), (page, target)
            assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), (
                page,
                target,
            )
            checked += 1
    assert checked > 60


@every_release
def test_every_command_on_a_page_is_one_that_works_here(request, which):
    folder, checked = request.getfixturevalue(which), 0
    targets = set(re.findall(r"^([a-z]+):", (folder / "Makefile").read_text(), re.MULTILINE))
    here = set(json.loads((folder / ledger.NAME).read_text())["problems"])
    for page in folder.rglob("*.md"):
        if page.name == "CHANGELOG.md":  # says what was
            continue
        text = page.read_text(encoding="utf-8")
        blocks = "\n".join(body for language, body in FENCE.findall(text) if not language)
        lines = re.findall(r"^(?:make|pytest|python) .+$", blocks, re.MULTILINE)
        lines += re.findall(r"`((?:make|pytest|python) [^`]+)`", FENCE.sub("", text))
        for line in lines:
            words = shlex.split(re.sub(r"\bN\b", "3", line), comments=True)
            named = re.findall(r"(?:P=|problems/|--only )(p\d\d(?:,p\d\d)*)", line)
            assert {id for ids in named for id in ids.split(",")} <= here, (page, line)
            if words[0] == "make":
                assert words[1] in targets, (page, line)
            elif words[:3] == ["python", "-m", "grader"]:
                parser_of(defaultdict(lambda: print)).parse_args(words[3:])
            elif words[0] == "python":
                assert words[:3] == ["python", "-m", "grader.quiz.pages"], (page, line)
            assert "solutions" not in line or which == "answered", (page, line)
            checked += 1
    assert checked > 10


def test_marks_of_the_course_are_gone(whole):
    for path, data in tree(whole).items():
        if path.endswith(".md") or path == "Makefile":
            assert b"course -->" not in data and b"<!-- students" not in data, path
            assert b"# course" not in data and b"#students:" not in data, path
    readme = (whole / "README.md").read_text()
    assert "You grade." not in readme and "You solve the problems." in readme
    assert "make submit   # pack your answers" in readme


@pytest.mark.parametrize(
    "text",
    ["<!-- course -->\nfor you\n", "a <!-- end of course -->", "<!-- students:\nfor them\n"],
)
def test_a_mark_without_its_counterpart_is_no_page(text):
    with pytest.raises(pages.PageError, match=r"page\.md: got <!-- "):
        pages.for_students(text, "page.md")


def test_parts_leave_no_gap():
    part = "<!-- course -->\nx\n<!-- end of course -->\n"
    assert pages.for_students(f"a\n\n{part}\nb\n", "p") == "a\n\nb\n"
    assert pages.for_students(f"a\n{part}\nb\n", "p") == "a\n\nb\n"
    assert pages.for_students("a<!-- course --> x\ny<!-- end of course -->, b\n", "p") == "a, b\n"


def test_a_stage_says_what_comes_later(stage, whole):
    readme = (stage / "README.md").read_text()
    assert re.findall(r"^\| \[(p\d\d)\]", readme, re.MULTILINE) == ["p01", "p02"]
    assert "\n\np03 to p09 come later.\n\n" in readme
    assert "later" not in (whole / "README.md").read_text()
    quiz = "".join(p.read_text() for p in (stage / "docs" / "quiz").glob("*.md"))
    assert "(comes later)" in quiz


def test_links_to_what_is_not_there_are_words():
    text = "[a](../problems/p04/README.md) [b](c.md#d) ![e](f.svg)[g](#h)\n```\n[i](j.md)\n```\n"
    shown = pages.with_links(text, "docs/x.md", {"docs/y.md"})
    assert shown == "a (comes later) b [g](#h)\n```\n[i](j.md)\n```\n"


# -- it works -------------------------------------------------------------------------------------


def run(folder, *words, **environment):
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | environment,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_stages_make_targets_work(stage, tmp_path):
    listed = run(stage, "make", PY)
    targets = re.findall(r"^  make ([a-z]+)", listed.stdout, re.MULTILINE)
    assert targets == ["help", "setup", "grade", "lint", "quiz", "submit", "test", "clean"]
    graded = run(stage, "make", "grade", "QUICK=1", "DEVICE=cpu", PY)
    assert graded.returncode == 0
    assert "required 0 / 19 available here (30 in all)" in graded.stdout
    assert "bonus" not in graded.stdout
    assert run(stage, "make", "lint", PY).stdout.count(": ok") == 2
    output = tmp_path / "out.zip"
    packed = run(stage, "make", "submit", PY, f"OUTPUT={output}")
    assert packed.returncode == 0 and "2 not started" in packed.stdout


def test_the_release_checks_itself(stage, tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(stage, copy)
    done = run(copy, "make", "test", PY)
    assert done.returncode == 0, done.stdout
    with open(copy / "grader" / "scoring.py", "a") as file:
        file.write("# mine\n")
    done = run(copy, sys.executable, "-m", "pytest", "-q", "tests", "-k", "handed_out")
    assert done.returncode == 1
    assert "grader/scoring.py" in done.stdout


def test_the_workflow_is_green_with_the_stubs(stage, tmp_path):
    text = (stage / ".github" / "workflows" / "grade.yml").read_text()
    single = re.findall(r"^        run: (\w.*)$", text, re.MULTILINE)
    assert single == ["make setup", "make test"]  # both are tried above
    (script,) = re.findall(r"^        run: \|\n((?:          .*\n)+)", text, re.MULTILINE)
    assert script.count(".venv/bin/python") == 1
    script = script.replace(".venv/bin/python", sys.executable)
    script = script.replace("record.json", str(tmp_path / "record.json"))
    done = run(stage, "bash", "-e", "-c", script, GITHUB_STEP_SUMMARY=str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr
    assert "p02" in (tmp_path / "page.md").read_text()
    assert (
        GradeRecord.model_validate_json((tmp_path / "record.json").read_bytes()).totals.earned == 0
    )


def test_the_judge_grades_as_in_the_checkout(stage, tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(stage, copy)
    (copy / STUB).write_text(model_answer("p02"))
    options = ["--quick", "--only", "p02", "--device", "cpu", "--json", str(tmp_path / "r.json")]
    done = run(copy, sys.executable, "-m", "grader", "grade", *options)
    assert done.returncode == 0, done.stdout
    record = GradeRecord.model_validate_json((tmp_path / "r.json").read_bytes())
    assert record.totals.earned == record.totals.available == 7
    assert str(ROOT) not in done.stdout
    for path, data in tree(stage).items():
        if path.startswith(("grader/", "reference/", "problems/")) and not path.endswith(".md"):
            assert data == (ROOT / path).read_bytes(), path


def test_what_needs_answers_says_so(stage):
    done = run(stage, sys.executable, "-m", "grader", "calibrate", "--device", "cpu")
    assert done.returncode == 2
    assert "--submission: got solutions, which is not a folder" in done.stderr
    done = run(stage, sys.executable, "-m", "grader", "release", "../other")
    assert done.returncode == 2
    assert "which is a release itself; run it in the course's checkout" in done.stderr


# -- again ----------------------------------------------------------------------------------------


def test_nothing_changes_when_nothing_has(stage):
    before, when = tree(stage), (stage / ledger.NAME).stat().st_mtime_ns
    out = made(stage)
    assert "nothing has changed for students" in out
    assert tree(stage) == before
    assert (stage / ledger.NAME).stat().st_mtime_ns == when


def test_more_problems_are_added(tmp_path, whole):
    assert "30 points" in made(tmp_path / "c", "--problems", "1 2")
    out = made(tmp_path / "c", "--problems", "p03")
    assert "p01, p02, p03, 50 points" in out
    assert "stubs       problems/p03/noncausal_attention.py" in out
    assert "CHANGELOG" not in out
    out = made(tmp_path / "c", "--problems", ",".join(ALL))
    assert "100 points and 50 bonus" in out
    assert tree(tmp_path / "c") == tree(whole)


@pytest.fixture
def newer(monkeypatch):
    """Let the checkout be of another version, with these files changed or gone (None)."""

    def change(**files):
        def changed(*arguments):
            found = build(*arguments) | {k: v for k, v in files["files"].items() if v is not None}
            return {k: v for k, v in found.items() if files["files"].get(k, b"") is not None}

        monkeypatch.setattr(command, "build", changed)
        monkeypatch.setattr(command, "__version__", files.get("version", "0.8.0"))

    return change


def test_a_new_version_says_what_has_changed(tmp_path, newer):
    folder = tmp_path / "c"
    made(folder, "--problems", "p01,p02")
    newer(
        files={
            "problems/p02/README.md": b"handout\n", "problems/p02/test_p02.py": b"test\n",
            "grader/scoring.py": b"judge\n", "problems/given/launch.py": b"given\n",
            STUB: b"stub\n", "requirements.txt": b"torch\n", "docs/record.schema.json": None,
        }
    )  # fmt: skip
    out = made(folder)
    assert "version 0.8.0" in out
    for row in (
        "handouts    problems/p02/README.md", f"stubs       {STUB}",
        "judge       grader/scoring.py", "tests       problems/p02/test_p02.py",
        "given       problems/given/launch.py",
        "set-up      requirements.txt", "removed     docs/record.schema.json",
    ):  # fmt: skip
        assert row in out
    assert (folder / STUB).read_bytes() == b"stub\n"  # nobody had begun it
    assert not (folder / "docs" / "record.schema.json").exists()
    assert json.loads((folder / ledger.NAME).read_text())["version"] == "0.8.0"


def test_what_somebody_changed_is_kept(tmp_path, newer):
    folder = tmp_path / "c"
    made(folder, "--problems", "p01,p02")
    mine = {
        "README.md": b"our course\n", "docs/record.schema.json": b"{}\n", STUB: b"my answer\n",
        "problems/p01/notes.txt": b"mine\n", "grader/scoring.py": b"mine too\n",
    }  # fmt: skip
    for path, data in mine.items():
        (folder / path).write_bytes(data)
    (folder / "LICENSE").unlink()
    out = made(folder)
    assert "kept        README.md, docs/record.schema.json, grader/scoring.py" in out
    assert "differ from this version's" not in out and not (folder / f"{STUB}.new").exists()
    assert (folder / "LICENSE").exists()
    newer(files={STUB: b"new stub\n", "README.md": b"new page\n", "docs/record.schema.json": None})
    for _ in range(2):
        out = made(folder)
        assert {path: (folder / path).read_bytes() for path in mine} == mine
        assert (folder / f"{STUB}.new").read_bytes() == b"new stub\n"
        assert "README.md, differ from this version's" in " ".join(out.split())
    assert "beside" not in out  # said once
    newer(files={STUB: b"newest stub\n"}, version="0.9.0")
    assert f"beside      {STUB}.new" in made(folder)
    assert (folder / f"{STUB}.new").read_bytes() == b"newest stub\n"
    (folder / STUB).write_bytes(b"newest stub\n")
    made(folder)
    assert not (folder / f"{STUB}.new").exists()


def test_a_full_disk_is_repaired_by_the_next_run(tmp_path, monkeypatch, stage, newer):
    folder, real, count = tmp_path / "c", writing.write_whole_bytes, 0

    def full(path, data):
        nonlocal count
        count += 1
        if count > 40:
            raise OSError(28, "No space left on device")
        real(path, data)

    def cut_short():
        nonlocal count
        count = 0
        with monkeypatch.context() as patch:
            patch.setattr(writing, "write_whole_bytes", full)
            code, out, err = release(folder, "--problems", "p01,p02")
        assert (code, out) == (4, "")
        assert "No space left on device; run it again" in err and str(folder) in err

    cut_short()
    assert 30 < len(tree(folder)) < 60
    made(folder, "--problems", "p01,p02")
    assert tree(folder) == tree(stage)
    # An update that is cut short, then one to a still newer version.
    files = {path: data + b"\n" for path, data in tree(stage).items()}
    newer(files=files)
    cut_short()
    newer(files={path: data + b"\n\n" for path, data in tree(stage).items()}, version="0.9.0")
    assert "kept" not in made(folder)
    assert all(data.endswith(b"\n\n") for data in tree(folder).values())


# -- answers --------------------------------------------------------------------------------------


def test_answers_wait_for_their_date(tmp_path):
    folder = tmp_path / "c"
    out = made(folder, "--problems", "p02", "--answers-after", "2999-01-01T18:00+01:00")
    moment = datetime.datetime.fromisoformat("2999-01-01T18:00+01:00").astimezone()
    for _ in range(2):
        assert f"of p02: not before {moment:%Y-%m-%d %H:%M}" in " ".join(out.split())
        assert not (folder / "solutions").exists() and not (folder / "docs" / "steps").exists()
        out = made(folder)


def test_answers_come_with_what_is_said_of_them(answered):
    files = tree(answered)
    assert files["solutions/p02/weighted_row_sum.py"].decode() == model_answer("p02")
    assert files["docs/steps/p02.md"] == (ROOT / "docs" / "steps" / "p02.md").read_bytes()
    mistakes = files["docs/mistakes.md"].decode()
    assert re.findall(r"^## (p\d\d)", mistakes, re.MULTILINE) == ["p02"]
    assert "tests.test_mistakes" not in mistakes
    assert "[step by step](../docs/steps/p02.md)" in files["solutions/README.md"].decode()
    assert (
        "The answers of p02 are in [solutions](solutions/README.md)." in files["README.md"].decode()
    )
    closed = ("p01", "p03")
    assert not [p for p in files if p.startswith("solutions/p") and p.split("/")[1] in closed]
    assert b"p01" not in files["docs/steps/p02.md"]


def test_answers_that_are_out_stay_out(answered, tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(answered, copy)
    made(copy, "--answers-after", "2999-01-01", "--problems", "p02")
    assert tree(copy) == tree(answered)


def test_a_date_without_a_time_is_the_end_of_the_day():
    day = dates.read_date("2027-01-31")
    assert day == datetime.datetime(2027, 2, 1).astimezone()
    assert dates.read_date("2027-01-31T18:00").replace(tzinfo=None).hour == 18
    assert dates.read_date("2027-01-31T18:00Z").astimezone(datetime.UTC).hour == 18


def test_a_past_date_is_for_problems_that_were_handed_out(tmp_path):
    folder = tmp_path / "c"
    code, _, err = release(folder, "--problems", "p02", "--answers-after", "2020-01-01")
    assert code == 2 and "which is past, for p02, which is new" in err
    assert not folder.exists()
    made(folder, "--problems", "p02")
    out = made(folder, "--answers-after", "2020-01-01")
    assert "answers     of p02: handed out now" in out
    assert (folder / "solutions" / "p02").exists()


# -- what cannot be used --------------------------------------------------------------------------


def refused(folder, *options):
    code, out, err = release(folder, *options)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    return err


def test_folders_that_cannot_be_used(tmp_path, stage, monkeypatch):
    assert "inside this checkout" in refused(ROOT / "course")
    assert "inside this checkout" in refused(ROOT)
    (tmp_path / "here").symlink_to(ROOT / "docs")
    assert "inside this checkout" in refused(tmp_path / "here")
    file = tmp_path / "file"
    file.write_text("x")
    assert "which is not a folder" in refused(file)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("years of work")
    assert "not empty and has no .release.json" in refused(full)
    assert os.listdir(full) == ["thesis.txt"]
    with monkeypatch.context() as patch:
        patch.setattr(command, "__version__", "0.1.0")
        assert f"of version {__version__}, which is newer than this checkout's 0.1.0" in refused(
            stage
        )


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 9999, b"\xff", b'{"version": 3}'])
def test_a_ledger_that_is_none(tmp_path, data):
    (tmp_path / ledger.NAME).write_bytes(data)
    assert "is not one that this version" in refused(tmp_path)


@pytest.mark.parametrize(
    "path", ["../thesis.txt", "/etc/hostname", "a/../../thesis.txt", "./x", ""]
)
def test_a_ledger_that_names_files_outside(tmp_path, path):
    folder, thesis = tmp_path / "c", tmp_path / "thesis.txt"
    made(folder, "--problems", "p02")
    thesis.write_text("years of work")
    record = json.loads((folder / ledger.NAME).read_text())
    record["files"][path] = ledger.digest(thesis.read_bytes())
    (folder / ledger.NAME).write_text(json.dumps(record))
    assert "is not one that this version" in refused(folder)
    assert thesis.exists()


def test_a_folder_with_git_alone_is_empty(tmp_path):
    (tmp_path / ".git").mkdir()
    made(tmp_path, "--problems", "p02")


def test_options_that_cannot_be_used(tmp_path):
    assert "--problems (P= of make): got p10, expected some of p01" in refused(
        tmp_path / "c", "--problems", "p01,p10"
    )
    assert "got nothing" in refused(tmp_path / "c", "--problems", "")
    for text in ("soon", "2027-02-30", "31.1.2027", "", "2027-01-31T25:00"):
        assert "--answers-after: got" in refused(tmp_path / "c", "--answers-after", text)
    assert not (tmp_path / "c").exists()


def test_links_in_a_release_are_not_written_through(tmp_path):
    folder, outside = tmp_path / "c", tmp_path / "outside"
    made(folder, "--problems", "p02")
    outside.mkdir()
    (folder / "LICENSE").unlink()
    (folder / "LICENSE").symlink_to(outside / "LICENSE")
    assert "kept        LICENSE" in made(folder)
    shutil.rmtree(folder / "docs")
    (folder / "docs").symlink_to(outside)
    assert "expected a folder; move it away" in refused(folder)
    assert os.listdir(outside) == []
    (folder / "docs").unlink()
    (folder / "docs").write_text("x")
    assert "expected a folder; move it away" in refused(folder)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refusing(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command.Path, "mkdir", refusing)
    code, _, err = release(tmp_path / "c")
    assert code == 4 and "Permission denied" in err
