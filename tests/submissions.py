"""Submissions in every form that grader/source/intake reads, for its tests."""

import io
import tarfile
import warnings
import zipfile

import pytest

from grader.source.intake.archives import ArchiveError, read

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
