"""grader/intake: submissions in folders, zips and tars, the odd and the hostile among them."""

import datetime
import errno
import gzip
import io
import os
import socket
import stat
import struct
import tarfile
import time
import tracemalloc
import warnings
import zipfile
import zlib

import pytest

from grader.intake import archives, entries, receipt, tars
from grader.intake.archives import ArchiveError, read
from grader.source import MAX_SOURCE_BYTES

P02, P04 = "p02/weighted_row_sum.py", "p04/causal_attention.py"
TWO = {P02: b"two = 2\n", P04: b"four = 4\n"}
EVIL = "a\x1b[31m\nb<script>|`x`[l](javascript:0)\u202e.py"


def make_zip(path, files, **options):
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in files if isinstance(files, list) else files.items():
            archive.writestr(name, data)
    return path


def make_tar(path, files, mode="w:gz", form=tarfile.PAX_FORMAT):
    with tarfile.open(path, mode, format=form) as archive:
        for name, data in files if isinstance(files, list) else files.items():
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if info.isreg() and not info.size:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def make_folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


MAKERS = {
    "folder": lambda path, files: make_folder(path / "folder", files),
    "zip": lambda path, files: make_zip(path / "s.zip", files),
    "deflated": lambda path, files: make_zip(
        path / "s.zip", files, compression=zipfile.ZIP_DEFLATED
    ),
    "tar": lambda path, files: make_tar(path / "s.tar", files, "w"),
    "tar.gz": lambda path, files: make_tar(path / "s.tar.gz", files),
    "old tar": lambda path, files: make_tar(path / "s.tgz", files, form=tarfile.USTAR_FORMAT),
    "gnu tar": lambda path, files: make_tar(path / "s.tgz", files, form=tarfile.GNU_FORMAT),
}
each_form = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def refusal(path):
    with pytest.raises(ArchiveError) as caught:
        read(path)
    text = str(caught.value)
    assert "\n" not in text and "\x1b" not in text and "<" not in text and len(text) < 1000
    return text


# -- where answers are found ----------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("prefix", ["", "problems/", "Jane Doe/hw 1/", "x" * 150 + "/", "Übung/"])
def test_one_prefix_of_any_kind(tmp_path, make, prefix):
    found = read(make(tmp_path, {prefix + name: data for name, data in TWO.items()}))
    assert dict(found.files) == TWO
    assert found.notes == ()


@each_form
def test_two_prefixes_are_two_submissions(tmp_path, make):
    path = make(tmp_path, {"mine/" + P02: b"2", "yours/" + P04: b"4"})
    assert "two submissions in one, in mine and in yours" in refusal(path)


@each_form
@pytest.mark.parametrize(
    "name",
    [
        "causal_attention.py",
        "causal_attention-1.py",
        "causal_attention (2).py",
        "doejane_LATE_123_4567_causal_attention-3.py",
        "Jane Doe_12345_assignsubmission_file_/causal_attention.py",
    ],
)
def test_flat_files_by_their_own_names(tmp_path, make, name):
    assert dict(read(make(tmp_path, {name: b"4"})).files) == {P04: b"4"}


def test_a_name_inside_another_is_not_taken_for_it(tmp_path):
    path = make_zip(tmp_path / "s.zip", {"my_gqa_attention.py": b"5", "causal_attention.py": b"4"})
    found = read(path)
    assert list(found.files) == [P04]
    assert found.notes == ("my_gqa_attention.py: not graded",)


def test_flat_names_do_not_count_where_a_problem_folder_is(tmp_path):
    path = make_folder(tmp_path / "s", {P02: b"2", "causal_attention.py": b"4"})
    assert list(read(path).files) == [P02]
    wrong = make_folder(tmp_path / "t", {"p05/causal_attention.py": b"4"})
    assert "got no answer (p05/causal_attention.py: not graded)" in refusal(wrong)


def test_two_flat_files_for_one_problem(tmp_path):
    path = make_zip(tmp_path / "s.zip", {"causal_attention.py": b"", "causal_attention-1.py": b""})
    assert "got two files for p04/causal_attention.py" in refusal(path)
    apart = {"a/causal_attention.py": b"", "b/causal_attention.py": b""}
    assert "two submissions in one, in a and in b" in refusal(make_zip(path, apart))


def test_a_single_file(tmp_path):
    path = tmp_path / "causal_attention.py"
    path.write_bytes(b"4")
    assert dict(read(path).files) == {P04: b"4"}
    path = path.rename(tmp_path / "homework.py")
    assert "expected files such as p01/flash_attention.py" in refusal(path)


def test_what_systems_leave_behind_is_ignored_silently(tmp_path):
    junk = ["__MACOSX/._p04", "__MACOSX/p04/._causal_attention.py", "p04/.DS_Store", ".git/HEAD"]
    junk += ["p04/__pycache__/causal_attention.pyc", "p04/._causal_attention.py"]
    for make in MAKERS.values():
        found = read(make(tmp_path, TWO | dict.fromkeys(junk, b"x")))
        assert (dict(found.files), found.notes) == (TWO, ())


def test_what_is_not_graded_has_a_note(tmp_path):
    more = [
        "p04/helpers.py",
        "given/tiles.py",
        "notes.txt",
        "old/inner.zip",
        "P04/Causal_attention.py",
    ]
    found = read(make_zip(tmp_path / "s.zip", TWO | dict.fromkeys(more, b"x")))
    assert dict(found.files) == TWO
    assert set(found.notes) == {
        "p04/helpers.py, notes.txt: not graded",
        "given/tiles.py: not used, the judge has its own copy",
        "old/inner.zip: an archive in the submission, not opened",
        f"P04/Causal_attention.py: not graded, expected the name {P04}",
    }


def test_many_files_have_one_note(tmp_path):
    found = read(make_zip(tmp_path / "s.zip", TWO | {f"{n}.txt": b"" for n in range(3000)}))
    assert found.notes == ("0.txt, 1.txt, 2.txt, 3.txt and 2996 more: not graded",)


def test_names_are_harmless_in_notes(tmp_path):
    for make in (MAKERS["zip"], MAKERS["tar.gz"]):
        (note,) = read(make(tmp_path, TWO | {EVIL: b""})).notes
        assert note == "a b?script???x??l?(javascript?0).py: not graded"
    long = read(make_zip(tmp_path / "s.zip", TWO | {"y" * 5000: b""})).notes[0]
    assert len(long) < 120


@each_form
def test_nothing_to_grade(tmp_path, make):
    text = refusal(make(tmp_path, {"readme.txt": b"hello", "inner.tar.gz": b"x"}))
    assert "readme.txt: not graded" in text and "inner.tar.gz" in text and "make submit" in text


def test_empty_submissions(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "got no answer (nothing)" in refusal(empty)
    assert "got no answer (nothing)" in refusal(make_zip(tmp_path / "e.zip", {}))
    assert "got no answer (nothing)" in refusal(make_tar(tmp_path / "e.tar", {}, "w"))
    assert "got no answer (nothing)" in refusal(make_tar(tmp_path / "e.tgz", {}))


def test_files_that_are_no_submission(tmp_path):
    path = tmp_path / "s.rar"
    path.write_bytes(b"Rar!\x1a\x07")
    assert "expected a folder, a .zip, a .tar, a .tar.gz or a .py file" in refusal(path)
    path.write_bytes(b"")
    assert "got an empty file" in refusal(path)
    assert "No such file" in refusal(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    assert "something else than a regular file" in refusal(tmp_path / "fifo")
    (tmp_path / "link.zip").symlink_to(make_zip(tmp_path / "s.zip", TWO))
    assert "got a link" in refusal(tmp_path / "link.zip")


# -- sizes and damage -----------------------------------------------------------------------------


@each_form
def test_a_file_too_long_is_cut_where_the_judge_sees_it(tmp_path, make):
    found = read(make(tmp_path, {P02: b"2", P04: b"#" * (3 * MAX_SOURCE_BYTES)}))
    assert len(found.files[P04]) == MAX_SOURCE_BYTES + 1
    assert found.notes == (f"{P04} is too long, expected at most 128 KiB of source",)
    exact = read(make(tmp_path, {P02: b"2", P04: b"#" * MAX_SOURCE_BYTES}))
    assert len(exact.files[P04]) == MAX_SOURCE_BYTES and exact.notes == ()


@pytest.mark.parametrize("make", [MAKERS["deflated"], MAKERS["tar"], MAKERS["tar.gz"]])
def test_damage_never_passes_for_a_whole_submission(tmp_path, make):
    path = make(tmp_path, {P02: os.urandom(3000), P04: os.urandom(3000)})
    data = path.read_bytes()
    for cut in (1, 100, 700, 3000, 5000):
        path.write_bytes(data[:cut])
        assert refusal(path)
    if path.suffix == ".tar":
        return  # a plain tar has checksums of headers alone
    for place in range(200, 2800, 97):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        assert "damaged" in refusal(path)


def test_a_damaged_header_is_not_the_end_of_a_tar(tmp_path):
    path = make_tar(tmp_path / "s.tar", TWO, "w", tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    data[1024 + 148] ^= 1  # checksum of the second header
    path.write_bytes(data)
    assert "a header in it cannot be read" in refusal(path)


def test_a_large_archive_is_not_opened(tmp_path):
    path = tmp_path / "s.zip"
    with open(path, "wb") as file:
        file.write(b"PK\3\4")
        file.truncate(entries.MAX_ARCHIVE_BYTES + 1)
    assert "expected at most 32 MiB" in refusal(path)


class _Bounds:
    """Fails where its block takes more than 10 s or 160 MiB."""

    def __enter__(self):
        tracemalloc.start()
        self.begin = time.process_time()

    def __exit__(self, *_):
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert time.process_time() - self.begin < 10
        assert peak < 160 * 2**20


def _zeros(count):
    """A gzip stream of `count` MiB of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(2**20)
    return b"".join([*(packer.compress(block) for _ in range(count)), packer.flush()])


def test_a_zip_bomb(tmp_path):
    path = make_zip(tmp_path / "s.zip", {P04: bytes(2**29 // 4)}, compression=zipfile.ZIP_DEFLATED)
    with _Bounds():
        assert len(read(path).files[P04]) == MAX_SOURCE_BYTES + 1


def test_a_zip_whose_sizes_lie(tmp_path):
    path = make_zip(tmp_path / "s.zip", {P04: b"4" * 90_000}, compression=zipfile.ZIP_DEFLATED)
    data = path.read_bytes().replace(struct.pack("<L", 90_000), struct.pack("<L", 5))
    path.write_bytes(data)
    assert "damaged" in refusal(path)


def test_a_tar_bomb(tmp_path):
    path = tmp_path / "s.tar.gz"
    info = tarfile.TarInfo("zeros")
    info.size = 2**31
    path.write_bytes(gzip.compress(info.tobuf()) + _zeros(300))
    with _Bounds():
        assert "MiB unpacked" in refusal(path)


def test_the_unpacked_bytes_are_bounded_by_the_packed_ones(tmp_path):
    path = tmp_path / "s.tgz"
    path.write_bytes(_zeros(20))
    assert "MiB unpacked" in refusal(path)
    assert tars.MAX_UNPACKED_BYTES > 20 * 2**20


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "folder"])
def test_fifty_thousand_entries(tmp_path, kind):
    files = {f"{number}": b"" for number in range(50_000)}
    if kind == "folder":
        path = tmp_path / "many"
        path.mkdir()
        for number in range(entries.MAX_ENTRIES + 1):
            os.close(os.open(path / str(number), os.O_CREAT))
    else:
        path = MAKERS[kind](tmp_path, files)
    with _Bounds():
        assert "more than 10000 entries" in refusal(path)


def test_a_zip_whose_directory_says_that_it_is_short(tmp_path):
    path = make_zip(tmp_path / "s.zip", {f"{number}": b"" for number in range(50_000)})
    data = bytearray(path.read_bytes())
    data[-22 + 8 : -22 + 12] = struct.pack("<HH", 3, 3)
    path.write_bytes(data)
    with _Bounds():
        assert "more than 10000 entries" in refusal(path)


@pytest.mark.parametrize("count", [1, 40])
def test_long_attributes_of_a_tar(tmp_path, count):
    """A search in these takes quadratic time in a `tarfile` of 2024."""
    info = tarfile.TarInfo("x")
    size = 100_000 if count == 1 else 8_000
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, size
    block = header.tobuf() + (b"1" * size).ljust(-(-size // 512) * 512, b"\0") + info.tobuf()
    path = tmp_path / "s.tar"
    path.write_bytes(block * count + bytes(1024))
    with _Bounds():
        assert "attributes" in refusal(path)


def test_a_chain_of_attributes(tmp_path):
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 0
    path = tmp_path / "s.tar"
    path.write_bytes(header.tobuf() * 5000)
    with _Bounds():
        assert "damaged" in refusal(path)


# -- entries that are no files --------------------------------------------------------------------


def test_an_encrypted_zip(tmp_path):
    path = make_zip(tmp_path / "s.zip", TWO)
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            data[at + offset] |= 1
    path.write_bytes(data)
    assert f"{P02} is encrypted" in refusal(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression(tmp_path, method):
    path = make_zip(tmp_path / "s.zip", TWO, compression=method)
    assert "expected deflate" in refusal(path)


@pytest.mark.parametrize("name", ["../" + P04, "/" + P04, "C:\\" + P04, "a/../../" + P04])
@pytest.mark.parametrize("form", ["zip", "tar"])
def test_names_that_lead_out_are_not_read(tmp_path, name, form):
    found = read(MAKERS[form](tmp_path, {P02: b"2", name: b"evil"}))
    assert dict(found.files) == {P02: b"2"}
    assert found.notes[0].endswith("a name that leads out of the submission, not read")


def test_backslashes_separate_as_in_old_windows_archives(tmp_path):
    found = read(make_zip(tmp_path / "s.zip", {"hw\\" + P04.replace("/", "\\"): b"4"}))
    assert dict(found.files) == {P04: b"4"}


def test_a_name_with_a_zero_byte_is_not_its_beginning(tmp_path):
    path = make_zip(tmp_path / "s.zip", {P02: b"2", P04 + "%.txt": b"4"})
    path.write_bytes(path.read_bytes().replace(b".py%", b".py\0"))
    assert list(read(path).files) == [P02]


def test_names_in_other_encodings(tmp_path):
    path = make_zip(tmp_path / "s.zip", {"XX/" + P04: b"4", "XX/YY": b""})
    path.write_bytes(path.read_bytes().replace(b"XX", b"\xdc\xe9").replace(b"YY", b"\x82\xa0"))
    assert dict(read(path).files) == {P04: b"4"}
    tar = make_tar(tmp_path / "s.tar", {"XX/" + P04: b"4"}, "w", tarfile.GNU_FORMAT)
    data = bytearray(tar.read_bytes())
    data[0:2] = b"\xdc\xe9"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    tar.write_bytes(data)
    assert dict(read(tar).files) == {P04: b"4"}


def test_one_name_twice(tmp_path):
    path = make_zip(tmp_path / "s.zip", [(P04, b"4"), (P04, b"5")])
    assert f"got 2 entries {P04}, expected one" in refusal(path)
    path = make_tar(tmp_path / "s.tgz", [(P04, b"4"), ("./" + P04, b"5")])
    assert f"got 2 entries {P04}, expected one" in refusal(path)


def _zip_entry(name, mode):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_zip_entries_that_are_no_files(tmp_path, mode):
    special = _zip_entry(P04, mode | 0o644)
    found = read(make_zip(tmp_path / "s.zip", [(P02, b"2"), (special, b"/etc/passwd")]))
    assert dict(found.files) == {P02: b"2"}
    assert P04 in found.notes[0] and "expected the file itself" in found.notes[0]


TYPES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


@pytest.mark.parametrize("kind", TYPES)
def test_tar_entries_that_are_no_files(tmp_path, kind):
    info = tarfile.TarInfo(P04)
    info.type, info.linkname = kind, P02
    found = read(make_tar(tmp_path / "s.tgz", [(P02, b"2"), (info, b"")]))
    assert dict(found.files) == {P02: b"2"}
    assert P04 in found.notes[0] and "expected the file itself" in found.notes[0]


def test_a_sparse_file_in_a_tar(tmp_path):
    info = tarfile.TarInfo(P04)
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": P04,
                        "GNU.sparse.size": str(2**50), "GNU.sparse.map": "0,1"}  # fmt: skip
    found = read(make_tar(tmp_path / "s.tgz", [(P02, b"2"), (info, b"4")]))
    assert dict(found.files) == {P02: b"2"}


def test_only_links_is_nothing(tmp_path):
    (tmp_path / "s" / "p04").mkdir(parents=True)
    (tmp_path / "s" / P04).symlink_to("/etc/passwd")
    assert "a link, not followed" in refusal(tmp_path / "s")


# -- folders --------------------------------------------------------------------------------------


def test_a_folder_with_all_kinds_of_files(tmp_path):
    folder = make_folder(tmp_path / "s", TWO | {"deep/" * 40 + "x.py": b""})
    (folder / "p01").symlink_to(folder / "p04")
    (folder / "p03").mkdir()
    os.mkfifo(folder / "p03" / "noncausal_attention.py")
    (folder / "p05").mkdir()
    there = os.getcwd()
    os.chdir(folder)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("p05/gqa_attention.py")
    finally:
        os.chdir(there)
    found = read(folder)
    assert dict(found.files) == TWO
    notes = " ".join(found.notes)
    assert "p03/noncausal_attention.py, p05/gqa_attention.py: no regular file" in notes
    assert "p01: a link, not followed" in notes
    assert "a folder that was not looked into" in notes


def test_files_and_folders_that_cannot_be_read(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "s", TWO | {"secret/x": b""})
    real = os.open

    def refusing(path, *args, **options):
        if path in ("secret", "causal_attention.py"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    found = read(folder)
    assert list(found.files) == [P02]
    assert f"{P04}: cannot be read: Permission denied" in found.notes
    assert "secret: a folder that was not looked into" in found.notes


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path):
    folder = make_folder(tmp_path / "s", TWO)
    with archives.folders.opened(folder, "s") as (found, _):
        (folder / P04).unlink()
        (folder / P04).symlink_to("/etc/passwd")
        entry = next(e for e in found if e.name == P04)
        with pytest.raises(OSError):
            entry.read()


# -- receipts -------------------------------------------------------------------------------------


def test_the_code_depends_on_names_and_bytes_alone():
    code = receipt.code(TWO)
    assert len(code) == 16 and int(code, 16) >= 0
    assert receipt.code(dict(reversed(TWO.items()))) == code
    assert receipt.code({P02: TWO[P02]}) != code
    assert receipt.code({P02: TWO[P04], P04: TWO[P02]}) != code
    assert receipt.code({"ab": b"c"}) != receipt.code({"a": b"bc"})
    made = receipt.receipt_of(TWO, "0.7.0", datetime.date(2026, 11, 23))
    assert made.code == code
    assert receipt.read_receipt(made.model_dump_json().encode()) == made


@each_form
def test_a_receipt_of_other_files_is_told(tmp_path, make):
    made = receipt.receipt_of(TWO, "0.7.0", datetime.date(2026, 11, 23)).model_dump_json().encode()
    assert read(make(tmp_path, {**TWO, "receipt.json": made})).notes == ()
    other = TWO | {P04: b"changed"}
    (note,) = read(make(tmp_path, {**other, "receipt.json": made})).notes
    assert receipt.code(TWO) in note and receipt.code(other) in note


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"files":' + b"1" * 9**5])
def test_a_receipt_that_is_none(tmp_path, data):
    found = read(make_zip(tmp_path / "s.zip", {**TWO, "receipt.json": data}))
    assert dict(found.files) == TWO
    assert found.notes == ("receipt.json is not one that `make submit` writes, ignored",)
