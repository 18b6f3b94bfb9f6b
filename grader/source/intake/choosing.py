"""Chooses the entries of a submission that are its answers, and makes notes on the others."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grader.base.text import clean
from grader.source.intake import receipt, requests
from grader.source.intake.entries import ADVICE, IGNORED, ArchiveError, Entry, Kind, shown
from grader.source.submission import MAX_SOURCE_BYTES
from grader.spec.problem import GIVEN, load_problem, problem_ids

_FOLDER = re.compile(r"[pP]\d{1,2}")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar")
_MOST_NAMED = 4
_LEDGER = ".release.json"
_OF_PROBLEM = ("README.md", "HINTS.md", "ANSWERS.md", "problem.toml", "Makefile", "test_{}.py")
_OF_ALL = ("one.mk",)
# Canvas delivers name_12345_67890_file-1.py (name, ids, attempt); browsers make "file (1).py".
_RENAMED = r"(?:[^/]*_\d+_\d+_)?{stem}(?:-\d+| ?\(\d+\))?\.py"

_Parts = tuple[str, ...]


@dataclass(frozen=True)
class Contents:
    """The answers of a submission, as `pNN/<file>.py`, and what is odd about it.

    A file longer than a source may be is cut one byte behind that: the judge refuses it as too
    long. Each note is one sentence, safe to show anywhere. `version` is that of the assignment, if
    the receipt is one of just these files. `requests` has, by problem, the student's reason to ask
    for a second grading.
    """

    files: Mapping[str, bytes]
    notes: tuple[str, ...]
    version: str = ""
    requests: Mapping[str, str] = field(default_factory=dict)


class _Notes:
    """Collects notes on entries: one sentence for all entries with the same reason."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = defaultdict(list)
        self._sentences: list[str] = []

    def add(self, reason: str, name: str) -> None:
        self._names[reason].append(name)

    def say(self, sentence: str) -> None:
        self._sentences.append(sentence)

    def sentences(self) -> tuple[str, ...]:
        return (
            *self._sentences,
            *(f"{named(names)}: {reason}" for reason, names in self._names.items()),
        )


def named(names: Sequence[str]) -> str:
    """Return the first of these names, and how many more there are."""
    some = ", ".join(map(shown, names[:_MOST_NAMED]))
    more = len(names) - _MOST_NAMED
    return f"{some} and {more} more" if more > 0 else some


def choose(entries: Iterable[Entry], what: str, *, or_requests: bool = False) -> Contents:
    """Pick and read the answers; `what` names the submission in messages.

    With `or_requests` a file of requests may stand alone.

    Raises:
        ArchiveError: there is no answer, there are two submissions, or an answer twice.
    """
    notes = _Notes()
    usable = dict[_Parts, list[Entry]]()
    for entry in entries:
        parts = _parts(entry.name)
        if parts is None:
            notes.add("a name that leads out of the submission, not read", entry.name)
        elif entry.kind is Kind.UNOPENED:
            notes.add("a folder that was not looked into", entry.name)
        elif parts and not _is_ignored(parts):
            usable.setdefault(parts, []).append(entry)
    depth, matches = _matches(usable)
    places = _answers(matches, usable, notes)
    if not places:
        if or_requests and [parts[-1] for parts in usable] == [requests.NAME]:
            asked = requests.found(_bytes(*usable.values()), notes.say)
            if asked:
                return Contents({}, notes.sentences(), requests=asked)
        raise ArchiveError(_nothing(what, usable, notes))
    prefixes = sorted({parts[:-depth] for parts in places})
    if len(prefixes) > 1:
        one, two = (shown("/".join(prefix) or ".") for prefix in prefixes[:2])
        raise ArchiveError(
            f"{what}: got two submissions in one, in {one} and in {two}; expected one: {ADVICE}"
        )
    files = _read(places, usable, notes)
    if not files:
        raise ArchiveError(f"{what}: none of its answers can be read: {notes.sentences()[0]}")
    root = prefixes[0]
    version = _compare_receipt(usable.pop((*root, receipt.NAME), []), files, notes)
    asked = requests.found(_bytes(usable.pop((*root, requests.NAME), [])), notes.say)

    def read(parts: _Parts) -> bytes | None:
        return _bytes(usable.get(parts, []))

    handed_out = _handed_out(read((*root[:-1], _LEDGER)), root, read)
    others = [parts for parts in usable if parts not in matches and parts not in handed_out]
    _note_others(others, usable, notes)
    return Contents(dict(sorted(files.items())), notes.sentences(), version, asked)


def holds_answers(entries: Iterable[Entry]) -> bool:
    """Whether entries are named as answers are, whatever is in them."""
    parts = (_parts(entry.name) for entry in entries if entry.kind is not Kind.UNOPENED)
    return bool(_matches([p for p in parts if p and not _is_ignored(p)])[1])


def _wanted() -> dict[_Parts, str]:
    """Return folder and file of each answer, with its name in `Contents`."""
    problems = map(load_problem, problem_ids())
    return {(p.id, p.file): f"{p.id}/{p.file}" for p in problems}


def _matches(usable: Collection[_Parts]) -> tuple[int, dict[_Parts, str]]:
    """Return the names of answers, and how many parts at their ends identify them."""
    wanted = _wanted()
    has_folders = any(_FOLDER.fullmatch(part) for parts in usable for part in parts[:-1])
    matches = {parts: wanted[parts[-2:]] for parts in usable if parts[-2:] in wanted}
    if matches or has_folders:
        return 2, matches
    return 1, _flat(usable, wanted)


def _parts(name: str) -> _Parts | None:
    """Split a name into folders and file; None for one that leads out of the submission."""
    name = name.replace("\\", "/")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:(/|$)", name):
        return None
    return parts


def _is_ignored(parts: _Parts) -> bool:
    return not IGNORED.isdisjoint(parts) or parts[-1].startswith("._")


def _flat(usable: Iterable[_Parts], wanted: Mapping[_Parts, str]) -> dict[_Parts, str]:
    """Find answers by their own names, as upload forms deliver them."""
    patterns = {
        name: re.compile(_RENAMED.format(stem=re.escape(file.removesuffix(".py"))))
        for (_, file), name in wanted.items()
    }
    return {
        parts: name
        for parts in usable
        for name, pattern in patterns.items()
        if pattern.fullmatch(parts[-1])
    }


def _answers(
    matches: Mapping[_Parts, str], usable: Mapping[_Parts, list[Entry]], notes: _Notes
) -> dict[_Parts, str]:
    """Return the places of answers that can be read; refuse two of one name in one place."""
    places: dict[_Parts, str] = {}
    seen: dict[tuple[_Parts, str], _Parts] = {}
    for parts, name in matches.items():
        if len(usable[parts]) > 1:
            got = shown("/".join(parts))
            raise ArchiveError(f"got {len(usable[parts])} entries {got}, expected one: {ADVICE}")
        kind = usable[parts][0].kind
        if kind is not Kind.FILE:
            what = "a link, not followed" if kind is Kind.LINK else "no regular file, not read"
            notes.add(f"{what}; expected the file itself", "/".join(parts))
            continue
        other = seen.setdefault((parts[:-1], name), parts)
        if other != parts:
            both = named(["/".join(other), "/".join(parts)])
            raise ArchiveError(f"got two files for {name}: {both}; expected one: {ADVICE}")
        places[parts] = name
    return places


def _read(
    places: Mapping[_Parts, str], usable: Mapping[_Parts, list[Entry]], notes: _Notes
) -> dict[str, bytes]:
    files = {}
    for parts, name in places.items():
        try:
            data = files[name] = usable[parts][0].read()
        except OSError as error:
            notes.add(f"cannot be read: {error.strerror}", "/".join(parts))
            continue
        if len(data) > MAX_SOURCE_BYTES:
            limit = f"{MAX_SOURCE_BYTES // 1024} KiB"
            notes.say(f"{name} is too long, expected at most {limit} of source")
    return files


def _bytes(entries: Sequence[Entry]) -> bytes | None:
    """Return what is in a file that is there once; None for none, b"" where it cannot be read."""
    if len(entries) != 1 or entries[0].kind is not Kind.FILE:
        return None
    try:
        return entries[0].read()
    except (ArchiveError, OSError):
        return b""


def _compare_receipt(entries: Sequence[Entry], files: Mapping[str, bytes], notes: _Notes) -> str:
    """Return the version in the archive's receipt; make a note if that is of other files."""
    data = _bytes(entries)
    if data is None:
        return ""
    found, own = receipt.read_receipt(data), receipt.code(files)
    if found is None:
        notes.say(f"{receipt.NAME} is not one that `make submit` writes, ignored")
    elif found.code != own:
        notes.say(f"{receipt.NAME} has the code {found.code}, but the files have {own}")
    else:
        return clean(found.version, 40)
    return ""


def _handed_out(
    ledger: bytes | None, root: Sequence[str], read: Callable[[tuple[str, ...]], bytes | None]
) -> set[tuple[str, ...]]:
    """Return the names of files that the course handed out: nobody needs a note on those.

    The release's own list names them, if it was handed in too; a problem's folder holds the same
    files in any case. A changed module of `given` gets a note all the same: the judge has its own
    copy. `root` holds the folders pNN; `read` returns the bytes of a file of the submission.
    """
    root = tuple(root)
    found = {(*root, id, name.format(id)) for id in problem_ids() for name in _OF_PROBLEM}
    found |= {(*root, name) for name in _OF_ALL}
    try:
        listed = json.loads(ledger or b"{}")
        hashes = dict(listed.get("files", {}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        hashes = {}
    for path, sha256 in (hashes | ({_LEDGER: ""} if ledger else {})).items():
        parts = (*root[:-1], *str(path).split("/"))
        data = read(parts) if GIVEN.name in parts[:-1] else None
        if data is None or hashlib.sha256(data).hexdigest() == sha256:
            found.add(parts)
    return found


def _note_others(
    others: Iterable[_Parts],
    usable: Mapping[_Parts, list[Entry]],
    notes: _Notes,
) -> None:
    alike = {name.casefold(): name for name in _wanted().values()}
    for parts in others:
        name = "/".join(parts)
        meant = alike.get("/".join(parts[-2:]).casefold())
        if usable[parts][0].kind is Kind.LINK:
            notes.add("a link, not followed", name)
        elif usable[parts][0].kind is Kind.SPECIAL:
            notes.add("no regular file, not read", name)
        elif meant:
            notes.add(f"not graded, expected the name {meant}", name)
        elif GIVEN.name in parts[:-1]:
            notes.add("not used, the judge has its own copy", name)
        elif os.path.splitext(name)[1].lower() in _ARCHIVES:
            notes.add("an archive in the submission, not opened", name)
        else:
            notes.add("not graded", name)


def _nothing(what: str, usable: Mapping[_Parts, list[Entry]], notes: _Notes) -> str:
    _note_others(usable, usable, notes)
    got = "; ".join(notes.sentences()[:_MOST_NAMED]) or "nothing"
    some = named(list(_wanted().values())[:2])
    return f"{what}: got no answer ({got}); expected files such as {some}: {ADVICE}"
