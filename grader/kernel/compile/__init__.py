"""Kernels compiled for chips, on a machine that need not have one."""
