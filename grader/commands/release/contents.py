"""Chooses the files of a release from the checkout, by a list of what students need.

A file that is not listed is left out, so that no new file is handed out by mistake. Left out on
purpose: solutions/ and the links to it; tests/, whose mutants and unusual answers are answers;
benchmarks/; docs/trust.md, docs/ci.md and docs/records, for instructors. docs/causes.md is made
anew, with the causes of the released problems.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from grader.commands.explain import page as causes_page
from grader.commands.release import pages
from grader.source.steps import step_regions, steps_begun
from grader.spec.problem import ManifestError, Problem, read_problem
from grader.spec.trace_record import TRACED

_TOP = {
    "LICENSE", "CHANGELOG.md", "README.md", "Makefile", "pyproject.toml", "requirements.txt",
    "requirements.lock", "conftest.py", ".gitignore", "problems/one.mk",
    ".devcontainer/devcontainer.json",
    ".devcontainer/gpu/devcontainer.json", "notebooks/flash-attention.ipynb",
}  # fmt: skip
_DOCS = {
    "docs/grading.md", "docs/glossary.md", "docs/making-it-fast.md", "docs/source-policy.md",
    "docs/record.schema.json", "docs/tracing.md", "docs/triton-on-a-page.md",
    "docs/where-to-work.md", "docs/playground.html",
}  # fmt: skip
_WHOLE = re.compile(
    r"(grader|reference)/[\w/]+\.(py|html)|docs/quiz/[\w-]+\.(md|toml)"
    r"|grader/report/html/templates/[\w.]+|grader/spec/causes/\w+\.toml"
)
_OF_PROBLEM = ("README.md", "HINTS.md", "ANSWERS.md", "problem.toml", "Makefile")
_CAUSES = "docs/causes.md"
_NOTEBOOK = "notebooks/flash-attention.ipynb"
_STUDENT = "grader/commands/release/student/"  # files of the release alone; _PLACES says where
_PLACES = {
    "grade.yml": ".github/workflows/grade.yml",
    "selfcheck.py": "tests/test_release.py",
    "agents.txt": "AGENTS.md",
}
_GIVEN_FOLDER = "problems/given/"
_TELLING_LINES = 3
_HOLDS = re.compile(r'"""[^"]*?\b(p\d\d)\b[^"]*?\bOpens with p\d\d\.', re.DOTALL)
_SKIPPED = {".git", ".venv", ".cache", "__pycache__", "build", "submissions"}
_GIVEN = re.compile(r"from given\.(\w+) import|import given\.(\w+)|from given import ([\w, ]+)")


def build(
    checkout: Path, problems: Sequence[str], answers: Sequence[str] = (), known: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the contents, by path, of a release with these problems and answers.

    `known` are all problems of the checkout, in order.

    Raises:
        ManifestError: a stub of the checkout is solved, or a page's marks do not match.
    """
    tracked = list_files(checkout)
    manifests = {id: read_problem(checkout / "problems" / id / "problem.toml") for id in problems}
    wanted = {path for path in tracked if path in _TOP | _DOCS or _WHOLE.fullmatch(path)}
    wanted = {path for path in wanted if not path.startswith(_STUDENT)}
    for problem in manifests.values():
        names = (*_OF_PROBLEM, f"test_{problem.id}.py", problem.file)
        wanted |= {f"problems/{problem.id}/{name}" for name in names}
    wanted |= _given(checkout, manifests.values())
    if not set(problems) & set(TRACED):  # `make trace` has nothing to show yet
        wanted.discard("docs/tracing.md")
    files = {path: _read(checkout, path) for path in sorted(wanted)}
    for problem in manifests.values():
        _expect_stub(problem, files[f"problems/{problem.id}/{problem.file}"])
    for name, place in _PLACES.items():
        files[place] = _read(checkout, _STUDENT + name)
    files[_CAUSES] = causes_page.text(problems).encode()
    files["Makefile"] = pages.makefile_for_students(files["Makefile"].decode()).encode()
    _expect_no_answers(checkout, files, manifests)
    files |= _answers(checkout, manifests, answers)
    _make_pages(checkout, files, problems, answers, known)
    return files


def list_files(checkout: Path) -> list[str]:
    """Return the tracked files of a checkout, or without git all of its files."""
    if (checkout / ".git").exists():
        command = ["git", "-C", str(checkout), "ls-files", "-z"]
        try:
            done = subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pass  # no git on this machine, or a checkout of another user's
        else:
            names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
            return sorted(name for name in names if name and (checkout / name).exists())
    return sorted(_walk(checkout))


def _walk(checkout: Path) -> Iterator[str]:
    for folder, names, found in os.walk(checkout):
        names[:] = [name for name in names if name not in _SKIPPED]
        for name in found:
            yield Path(folder, name).relative_to(checkout).as_posix()


def _read(checkout: Path, path: str) -> bytes:
    try:
        return (checkout / path).read_bytes()
    except OSError as error:
        raise ManifestError(
            f"{path} of this checkout cannot be read: {error.strerror}; restore it, then run again"
        ) from None


def _given(checkout: Path, problems: Iterable[Problem]) -> set[str]:
    """Return the modules of `given` that these problems may import, and those they import.

    Modules of later problems are left out: they hold answers to earlier ones.
    """
    wanted = [name for problem in problems for name in problem.given]
    found = {"__init__"}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            text = _read(checkout, f"{_GIVEN_FOLDER}{name}.py").decode()
            for groups in _GIVEN.findall(text):
                wanted += [part.strip() for group in groups for part in group.split(",") if part]
    return {f"{_GIVEN_FOLDER}{name}.py" for name in found}


def opened_early(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the modules of `given` that hold an answer, each with the problem it answers.

    Their docstrings say so: "... of p03 ... Opens with p04."
    """
    found = {}
    for path, data in sorted(files.items()):
        if path.startswith(_GIVEN_FOLDER) and (match := _HOLDS.match(data.decode())):
            found[Path(path).stem] = match[1]
    return found


def _expect_stub(problem: Problem, data: bytes) -> None:
    """Refuse to hand out a stub that somebody has solved in this checkout."""
    begun = steps_begun(data.decode("utf-8", "replace"))
    if begun:
        path = f"problems/{problem.id}/{problem.file}"
        raise ManifestError(
            f"{path}: got step {begun[0]} filled in, expected the stub:"
            f" git checkout {path}, then run again"
        )


def _answers(
    checkout: Path, manifests: dict[str, Problem], answers: Sequence[str]
) -> dict[str, bytes]:
    """Return the model answers and cases of these problems, and a page that lists them."""
    files: dict[str, bytes] = {}
    text = "The answers of the problems that are over, and what is said of them."
    lines = ["# Answers", "", text]
    for id in answers:
        problem = manifests[id]
        place = f"solutions/{id}/{problem.file}"
        files[place] = _read(checkout, place)
        lines += ["", f"## {id}, {problem.title}", ""]
        lines.append(f"- [{problem.file}]({id}/{problem.file}): the model answer")
        about = "which checks each fails, and what it keeps"
        lines.append(f"- [known mistakes](../{_CAUSES}): {about}")
        cases = f"solutions/{id}/cases.toml"
        if (checkout / cases).is_file():
            files[cases] = _read(checkout, cases)
            lines.append(f"- `make case P={id}`: kernels with one bug, made of it, to investigate")
    if answers:
        files["solutions/README.md"] = ("\n".join(lines) + "\n").encode()
    return files


def _make_pages(
    checkout: Path,
    files: dict[str, bytes],
    problems: Sequence[str],
    answers: Sequence[str],
    known: Sequence[str],
) -> None:
    """Adapt the Markdown among `files` to students, and add the pictures it shows."""
    texts = {path: data.decode("utf-8") for path, data in files.items() if path.endswith(".md")}
    texts = {path: pages.for_students(text, path, problems) for path, text in texts.items()}
    for path, text in texts.items():
        for picture in pages.pictures(text, path):
            if (checkout / picture).is_file():
                files[picture] = _read(checkout, picture)
    later = [id for id in known if id not in problems]
    more = []
    if answers:
        more = [f"The answers of {pages.spoken(answers)} are in [solutions](solutions/README.md)."]
    if opened := {n: id for n, id in opened_early(files).items() if id not in answers}:
        some = ", ".join(f"`{name}.py` (what {id} asks for)" for name, id in opened.items())
        more.append(
            f"Modules in `problems/given` hold what an earlier problem asks for, for those after"
            f" it: {some}. Read one when you have solved that problem."
        )
    readme = texts["README.md"]
    if known and known[0] not in problems:
        ends = [read_problem(checkout / "problems" / id / "problem.toml")
                for id in (known[0], problems[0])]  # fmt: skip
        readme = pages.with_start(readme, *ends)
    texts["README.md"] = pages.with_table(readme, problems, later, more)
    notebook = files[_NOTEBOOK].decode().replace("p02", problems[:2][-1])
    files[_NOTEBOOK] = notebook.encode()
    index = texts[_CAUSES]
    for path, text in texts.items():
        text = pages.with_links(text, path, files)
        if path != "CHANGELOG.md":  # history, whose commands stay
            text = pages.with_cause(pages.with_commands(text, problems), problems, index)
        files[path] = text.encode("utf-8")
    makefile = pages.with_examples(files["Makefile"].decode("utf-8"), problems)
    files["Makefile"] = pages.with_cause(makefile, problems, index).encode("utf-8")


def _expect_no_answers(
    checkout: Path, files: dict[str, bytes], manifests: dict[str, Problem]
) -> None:
    """Refuse to hand out the code of an answer, whatever the file's name.

    Exempt are modules of `given` that open with a later problem: they hold answers to earlier
    ones by design, which is why problems are handed out in stages.
    """
    texts = {path: _stripped(data) for path, data in files.items() if path.endswith(".py")}
    for id in manifests:
        early = _given(checkout, (p for p in manifests.values() if p.id <= id))
        for answer in sorted((checkout / "solutions" / id).glob("*.py")):
            for body in _steps_of(answer.read_text(encoding="utf-8")):
                for path, text in texts.items():
                    may_hold = path.startswith(_GIVEN_FOLDER) and path not in early
                    if body in text and not may_hold:
                        raise ManifestError(f"{path}: got a step of {id}'s answer, expected none")


def _steps_of(answer: str) -> Iterator[str]:
    """Give the code of each step that is long enough to be recognised."""
    lines = answer.split("\n")
    for first, last in step_regions(answer).values():
        body = _stripped("\n".join(lines[first : last - 1]).encode())
        if body.count("\n") >= _TELLING_LINES:
            yield body


def _stripped(data: bytes) -> str:
    """Return lines of code without indentation, comments and blank lines."""
    lines = (line.strip() for line in data.decode("utf-8").split("\n"))
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("#"))
