"""What every record is made of: frozen data, and text that any JSON file can hold."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _encodable(text: str) -> str:
    # A submission's text may hold lone surrogates, which no JSON file can.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# Characters that move a cursor or reverse a line on a terminal; JSON has them in strings alone.
_MOVING = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
Text = Annotated[str, AfterValidator(_encodable)]


class Record(BaseModel):
    """A frozen record with the fields it declares and no other."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def to_json(self) -> str:
        """Return the record as JSON text, which a terminal may show."""
        text = self.model_dump_json(indent=1) + "\n"
        return _MOVING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
