"""The page about near-identical submissions, for those who run a course."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from classroom.fingerprints import RUN
from classroom.pages import page
from classroom.similar import MIN_LINES, NEAR_SHARE, RENAMED_SHARE, Copy, Found

_MOST = 100  # pairs of a problem that are shown line by line
_LINES = 200


def render(found: Sequence[Found], names: Mapping[str, str]) -> str:
    """Return the page as HTML; `names` has what students are called by id."""

    def who(copy: Copy) -> list[str]:
        owners = [f"{names[id]} ({id})" if names.get(id) else id for id in copy.students]
        return ["the model answer"] * copy.is_model + owners

    return page(
        "similar.html",
        found=found,
        who=who,
        most=_MOST,
        most_lines=_LINES,
        near=NEAR_SHARE,
        renamed=RENAMED_SHARE,
        min_lines=MIN_LINES,
        run=RUN,
    )
