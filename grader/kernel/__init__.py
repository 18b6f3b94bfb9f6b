"""Kernels: what runs, watches and compiles them."""
