"""Runs a submission in a process of its own: worker, walls, protocol, jail, watchdog."""
