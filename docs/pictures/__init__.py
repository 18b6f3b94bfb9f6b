"""The pictures of the handouts, drawn from the rules that the reference uses.

`python -m docs.pictures` writes every SVG of this folder anew. Masks, kinds of tiles and bounds
are counted in `reference.visible_keys`, worked numbers are computed, and figures of the hardware
stand in `hardware.py` with their source.
"""
