"""Hostile submissions: what each tries, what may become of it, and a runner that grades them.

`python -m tests.hostile` grades them all and prints a table; tests/test_hostile.py runs the quick
ones. None of them needs a sandbox or a source policy to be held (JUDGE.md, section 9).
"""
