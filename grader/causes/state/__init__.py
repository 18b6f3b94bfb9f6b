"""Follows one program of a kernel, tile by tile, and says where its state parts from the oracle."""
