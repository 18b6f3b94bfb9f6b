"""Compiles kernels for chips, on a machine that need not have one."""
