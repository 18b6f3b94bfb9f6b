"""What every record is made of: frozen data, and text that any JSON file can hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def _encodable(text: str) -> str:
    # A submission's text may hold lone surrogates, which no JSON file can.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


Text = Annotated[str, AfterValidator(_encodable)]


class Record(BaseModel):
    """A frozen record with the fields it declares and no other."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")
