"""Detective cases: finished kernels, each with one bug that the student has to find."""
