"""Releases as `grader release` makes them, for its tests."""

import compileall
import contextlib
import functools
import io
import json
import shutil

import pytest

from grader.commands import cli
from grader.commands.release import command, contents, ledger
from grader.spec.problem import ROOT, problem_ids
from tests import once

command.check_set = lambda stage: None  # tests/test_checking.py checks the set, and is about it
STUB = "problems/p02/weighted_row_sum.py"
ALL = problem_ids()


_built = functools.cache(contents.build)  # a checkout does not change while it is tested


def files_of(problems, answers=(), root=ROOT, ids=ALL):
    """The files of a release, built once in a process."""
    return dict(_built(root, (*problems,), (*answers,), (*ids,)))


command.build = lambda root, problems, answers, ids: files_of(problems, answers, root, ids)


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
    """The files of a folder, by path, without the ledger and what Python compiled."""
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if not p.is_dir()}
    ours = {path: p for path, p in found.items() if path != ledger.NAME and p.suffix != ".pyc"}
    return {path: p.read_bytes() for path, p in ours.items()}


def past(folder):
    """Let the date of all answers be past, as if the course had gone on."""
    path = folder / ledger.NAME
    record = json.loads(path.read_text())
    record["answers_after"] = dict.fromkeys(record["answers_after"], "2026-01-01T00:00:00Z")
    path.write_text(json.dumps(record))


@pytest.fixture(scope="session")
def whole():
    """All problems. Nothing is changed in it."""
    return once.folder("whole", made)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """p01 and p02 alone."""
    folder = tmp_path_factory.mktemp("stage") / "course"
    return shutil.copytree(compiled("stage", "p01,p02"), folder)


def compiled(name, problems):
    """A release of these problems, its modules compiled: several processes will import them."""

    def make(folder):
        made(folder, "--problems", problems)
        assert compileall.compile_dir(folder, quiet=2)

    return once.folder(f"compiled-{name}", make)


@pytest.fixture(scope="session")
def answered():
    """p01 to p03, of which p02 is over. Nothing is changed in it."""

    def make(folder):
        made(folder, "--problems", "p02", "--answers-after", "2999-01-01")
        made(folder, "--problems", "p01,p03")
        past(folder)
        made(folder)

    return once.folder("answered", make)
