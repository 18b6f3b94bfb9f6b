"""When answers may be handed out: the date that an instructor gives, and what it means now."""

from __future__ import annotations

import datetime
import re

from grader.commands.release.contents import ReleaseError
from grader.commands.release.ledger import Ledger

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_date(text: str) -> datetime.datetime:
    """Read an ISO date; without a time it is the end of that day, without a zone local time.

    Raises:
        ReleaseError: it is none.
    """
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ReleaseError(
            f"--answers-after: got {text!r}, expected a date such as 2027-01-31,"
            " 2027-01-31T18:00 or 2027-01-31T18:00+01:00"
        ) from None
    if _DAY.fullmatch(text.strip()):
        moment += datetime.timedelta(days=1)
    return moment.astimezone()


def with_date(
    before: Ledger, problems: tuple[str, ...], moment: datetime.datetime, now: datetime.datetime
) -> dict[str, datetime.datetime]:
    """Return when each problem is over, `problems` at `moment`.

    Raises:
        ReleaseError: that is past, for a problem that nobody was given before.
    """
    new = [id for id in problems if id not in before.problems]
    if new and moment <= now:
        raise ReleaseError(
            f"--answers-after: got {shown(moment)}, which is past, for {new[0]}, which is new;"
            " expected a time to come"
        )
    return before.answers_after | dict.fromkeys(problems, moment)


def over(
    problems: tuple[str, ...],
    before: Ledger,
    dates: dict[str, datetime.datetime],
    now: datetime.datetime,
) -> tuple[str, ...]:
    """Return the problems whose answers may be handed out now, and those that already were."""
    return tuple(
        id for id in problems if id in before.answers or (id in dates and dates[id] <= now)
    )


def shown(moment: datetime.datetime) -> str:
    """Return a moment as 2027-01-31 18:00 +01:00."""
    return moment.strftime("%Y-%m-%d %H:%M ") + f"{moment:%z}"[:3] + ":" + f"{moment:%z}"[3:5]
