"""The receipt of a submission: what `submit` writes into its archive, and a short code for it.

The code is computed from the files alone, so that student and instructor find the same one.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from grader.spec.grade_record import Record

NAME = "receipt.json"
MAX_BYTES = 64 * 1024
_CODE_DIGITS = 16

_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Receipt(Record):
    """receipt.json: of which version of the assignment the files are, their hashes, the day.

    `whole` is the hash of all names and bytes, of which `code` shows the beginning. The day is in
    UTC, by the clock of the machine that wrote the archive.
    """

    format: Literal["flash-attention-problems/receipt-1"] = "flash-attention-problems/receipt-1"
    version: Annotated[str, Field(max_length=40)]
    date: datetime.date
    files: Annotated[dict[str, _Sha256], Field(max_length=100)]
    whole: _Sha256

    @property
    def code(self) -> str:
        """The receipt code as it is printed."""
        return self.whole[:_CODE_DIGITS]


def receipt_of(files: Mapping[str, bytes], version: str, date: datetime.date) -> Receipt:
    """Return the receipt of these files, named as `pNN/<file>.py`."""
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    return Receipt(version=version, date=date, files=hashes, whole=_digest(files))


def code(files: Mapping[str, bytes]) -> str:
    """Return the receipt code of these files: 16 hexadecimal digits.

    It depends on names and bytes, not on the order or on the archive that they came in.
    """
    return _digest(files)[:_CODE_DIGITS]


def read_receipt(data: bytes) -> Receipt | None:
    """Return the receipt in these bytes, None where they are none."""
    try:
        return Receipt.model_validate_json(data) if len(data) <= MAX_BYTES else None
    except ValidationError:
        return None


def _digest(files: Mapping[str, bytes]) -> str:
    """Hash every name and content with its length before it, so that no two sets are alike."""
    digest = hashlib.sha256()
    for name in sorted(files):
        for part in (name.encode("utf-8", "surrogatepass"), files[name]):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()
