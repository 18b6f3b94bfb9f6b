"""The model answers timed beside library kernels, all in one process on one GPU.

`python -m benchmarks` compares; `python -m benchmarks.variants` tries launch configurations;
`python -m benchmarks.chips` compiles for chips that need not be there.
Rooms, each knowing only those before it: `shapes` <- `inputs` <- `peers` <- `contenders` <-
`timing` <- `run` <- `precompile` <- `variants`, `cli`. `record`, `table`, `plots` and `sweep` know
results as plain data only, `chips_table` those of `chips`. `limits` holds kernels for one chip,
which `contenders` shows beside the answers; it knows none of the others.
"""
