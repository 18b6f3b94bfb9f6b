"""The model answers timed beside library kernels, all in one process on one GPU.

`python -m benchmarks` compares; `python -m benchmarks.variants` tries launch configurations.
Rooms, each knowing only those before it: `shapes` <- `inputs` <- `peers` <- `contenders` <-
`timing` <- `run` <- `precompile` <- `variants`, `cli`. `record`, `table`, `plots` and `sweep` know
results as plain data only.
"""
