"""All hostile submissions."""

from __future__ import annotations

from tests.hostile import (
    choosing,
    deaths,
    endless,
    gpu,
    hidden,
    inside,
    launches,
    leaking,
    leftovers,
    measured,
    meddling,
    modes,
    policy,
    reaching,
    returned,
    texts,
    unearned,
    walls,
    windows,
)
from tests.hostile.entry import Hostile, hosts

_CALLS = (*returned.TRICKS, *deaths.TRICKS)
CATALOGUE: tuple[Hostile, ...] = (
    # A share of the tricks in `make test`: each twelve take a run of the grader.
    *hosts((*_CALLS[::4], *leftovers.TRICKS[::3])),
    *hosts([trick for number, trick in enumerate(_CALLS) if number % 4], slow=True),
    *hosts([trick for number, trick in enumerate(leftovers.TRICKS) if number % 3], slow=True),
    *hosts(meddling.TRICKS),
    *hosts(meddling.STOPPED, slow=True),
    *hosts(meddling.STOPPED_AND_GARBAGE, slow=True),
    *meddling.LIMITED,
    *meddling.OTHERS,
    *meddling.WITH_ANSWER,
    *unearned.ENTRIES,
    *texts.ENTRIES,
    *measured.ENTRIES,
    *policy.ENTRIES,
    *hidden.ENTRIES,
    *leaking.ENTRIES,
    *inside.ENTRIES,
    *launches.ENTRIES,
    *endless.ENTRIES,
    *reaching.ENTRIES,
    *windows.ENTRIES,
    *choosing.ENTRIES,
    *modes.ENTRIES,
    *gpu.ENTRIES,
    *hosts(walls.REACHING[:12], jailed=True),
    *hosts(walls.REFUSED, jailed=True, slow=True),
    *hosts((*walls.REACHING[12:], *walls.TAKING), jailed=True, slow=True),
)
