"""Runs a submission in a process of its own: worker, protocol, jail, watchdog."""
