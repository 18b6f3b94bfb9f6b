"""Observers of launches: each is called with the events of grader/kernel/machine/events.py.

Bounds need none: the machine compares every active lane with its tensor.
"""
