"""Follows one program of a kernel, tile by tile, and says where it parts from the reference."""
