"""Follows one program of a kernel, tile by tile, and says where it diverges from the reference."""
