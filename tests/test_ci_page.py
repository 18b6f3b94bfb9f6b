"""docs/ci.md: its commands are understood, and it lists what there is to write."""

import re
import shlex
from collections import defaultdict

from grader import exports
from grader.manifest import ROOT
from grader.options import parser_of
from grader.render import junit

PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^ *(?:\S+/bin/|python -m )grader (.+)$", re.MULTILINE)


def commands():
    """The commands of the page's blocks, as they are parsed."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found = COMMAND.findall(re.sub(r"\\\n *", "", "\n".join(blocks)))
    parser = parser_of(defaultdict(lambda: print))
    return [parser.parse_args(shlex.split(command)) for command in found]


def test_commands_have_the_options_that_are_named():
    job, jenkins, gradescope = commands()
    assert job.official and job.annotations and job.fail_under == 70
    assert job.json and job.markdown
    assert jenkins.junit and gradescope.gradescope
    assert jenkins.exit_zero and gradescope.exit_zero


def test_every_format_is_listed():
    listed = re.findall(r"^\| `--([a-z]+)(?: FILE)?` \|", PAGE, re.MULTILINE)
    assert listed == [*exports.FORMATS, "annotations"]
    assert list(exports.HELP) == list(exports.FORMATS)
    for name in exports.FORMATS:
        grading = (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")
        assert f"`--{name}" in grading or name == "json"


def test_what_is_a_failure_and_what_an_error_is_as_it_is_said():
    text = " ".join(PAGE.split())
    kinds = {
        kind: {v for v, k in junit.OUTCOMES.items() if k == kind} for kind in ("failure", "error")
    }
    assert "A wrong result, a file that the policy rejects and a stub are failures" in text
    assert kinds["failure"] == {"fail", "rejected", "not-implemented"}
    assert "An exception, a crash or a timeout is an error" in text
    assert kinds["error"] == {"error", "crash", "out-of-memory", "timeout", "internal"}
