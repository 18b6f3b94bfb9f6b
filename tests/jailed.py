"""Skips a test where no submission can be jailed."""

from tests.needs import a_jail as require_jail

__all__ = ["require_jail"]
