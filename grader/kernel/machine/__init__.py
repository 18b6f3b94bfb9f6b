"""Executes what Triton's front end makes of a kernel, without a GPU: the tile machine.

capture.py turns launches into TTIR, parse.py reads its text, program.py translates it into steps
over arrays of all programs of the grid, and observers/ look at the events of a launch.
"""
