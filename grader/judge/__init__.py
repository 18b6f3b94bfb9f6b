"""Grades one problem: cases, calls, findings, results and points."""
