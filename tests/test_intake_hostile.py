"""grader/source/intake: archives that are damaged, too large, or made to do harm."""

import gzip
import os
import random
import re
import stat
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib

import pytest

from grader.source.intake import archives, entries, tars
from grader.source.intake.archives import ArchiveError, read
from grader.source.submission import MAX_SOURCE_BYTES
from tests.shares import drawn
from tests.submissions import (
    MAKERS,
    P02,
    P04,
    TWO,
    each_form,
    make_folder,
    make_tar,
    make_zip,
    refusal,
)


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


@pytest.mark.parametrize("kind", drawn(["zip", "tar", "folder"], 3))
def test_fifty_thousand_entries(tmp_path, monkeypatch, kind):
    files = {f"{number}": b"" for number in range(50_000)}
    if kind == "tar":
        path = tmp_path / "s.tar"
        path.write_bytes(tarfile.TarInfo("x").tobuf() * 50_000 + bytes(1024))
    elif kind == "folder":
        monkeypatch.setattr(archives.folders, "MAX_ENTRIES", 500)
        path = make_folder(tmp_path / "many", dict.fromkeys(list(files)[:501], b""))
    else:
        path = MAKERS[kind](tmp_path, files)
    with _Bounds():
        assert "more than 10000 entries" in refusal(path)


def test_a_long_directory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "s.zip", {f"{number}" * 9: b"" for number in range(30_000)})
    data = bytearray(path.read_bytes())
    data[-22 + 8 : -22 + 12] = struct.pack("<HH", 3, 3)
    path.write_bytes(data)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert "more than 10000 entries" in refusal(path)


def test_zip64(tmp_path):
    path = make_zip(tmp_path / "s.zip", TWO)
    data = path.read_bytes()
    path.write_bytes(data[:-22] + b"PK\6\7" + bytes(16) + data[-22:])
    assert "got zip64" in refusal(path)


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
        assert re.search("attributes|damaged", refusal(path))  # of this or that Python


def test_a_chain_of_attributes(tmp_path):
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 0
    path = tmp_path / "s.tar"
    path.write_bytes(header.tobuf() * 5000)
    with _Bounds():
        assert "damaged" in refusal(path)


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


def test_a_zip_entry_without_a_name(tmp_path):
    path = make_zip(tmp_path / "s.zip", [("%", b""), *TWO.items()])
    data = bytearray(path.read_bytes().replace(b"%", b""))
    for signature, offset in ((b"PK\3\4", 26), (b"PK\1\2", 28)):
        at = data.find(signature)
        data[at + offset : at + offset + 2] = b"\0\0"
    path.write_bytes(data)
    try:
        assert dict(read(path).files) == TWO
    except ArchiveError as error:
        assert "damaged" in str(error)


@pytest.mark.parametrize("form", [form for form in MAKERS if form != "folder"])
def test_whatever_the_bytes_are_it_is_read_or_refused(tmp_path, form):
    path = MAKERS[form](tmp_path, TWO | {"long" * 30 + "/a": b"", "receipt.json": b"{}"})
    whole, draw = path.read_bytes(), random.Random(form)
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(draw.choice((1, 2, 20))):
            place = draw.randrange(len(data))
            data[place : place + draw.choice((0, 1, 30))] = draw.randbytes(draw.choice((0, 1, 9)))
        path.write_bytes(data)
        try:
            assert set(read(path).files) <= set(TWO)
        except ArchiveError as error:
            assert "\n" not in str(error)
