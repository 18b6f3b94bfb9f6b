"""All hostile submissions."""

from __future__ import annotations

from tests.hostile import deaths, leftovers, meddling, returned, texts, unearned
from tests.hostile.entry import Hostile, hosts

CATALOGUE: tuple[Hostile, ...] = (
    *hosts((*returned.TRICKS, *deaths.TRICKS)),
    *hosts(leftovers.TRICKS),
    *hosts(meddling.TRICKS),
    *hosts(meddling.STOPPED),
    *hosts(meddling.STOPPED_AND_GARBAGE),
    *meddling.LIMITED,
    *meddling.OTHERS,
    *meddling.WITH_ANSWER,
    *unearned.ENTRIES,
    *texts.ENTRIES,
)
