"""Kernels at the limit of one chip, beside the model answers: see README.md."""
