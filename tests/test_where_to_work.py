"""docs/where-to-work.md and the dev containers: what they name is there."""

import json
import re
from pathlib import Path

import pytest

from grader.commands.doctor import checks
from grader.spec.problem import ROOT

PAGE = (ROOT / "docs" / "where-to-work.md").read_text(encoding="utf-8")
CONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer/gpu/devcontainer.json")
# Of https://github.com/devcontainers/spec/blob/main/schemas/devContainer.base.schema.json
TYPES = {
    "name": str, "image": str, "postCreateCommand": str, "runArgs": list, "customizations": dict,
}  # fmt: skip


@pytest.mark.parametrize("path", CONTAINERS)
def test_dev_containers_have_keys_of_the_schema_and_set_up(path):
    found = json.loads((ROOT / path).read_text(encoding="utf-8"))
    for key, value in found.items():
        assert isinstance(value, TYPES[key]), key
    assert re.fullmatch(r"mcr\.microsoft\.com/devcontainers/python:3\.1[1-9]", found["image"])
    assert found["postCreateCommand"] == "make setup"
    assert ("runArgs" in found) == ("gpu" in path)
    if "runArgs" in found:
        assert found["runArgs"] == ["--gpus=all"] and "`--gpus=all`" in PAGE
        assert f"*{found['name']}*" in " ".join(PAGE.split())


def test_the_page_says_of_gpus_what_doctor_says():
    assert "7.5 or newer, and 8.0 for bf16" in PAGE
    doctor = Path(checks.__file__).read_text("utf-8")
    assert "(7, 5)" in doctor and "(8, 0)" in doctor
    for text in (doctor, PAGE):
        assert "neither speed nor memory can be measured" in text
