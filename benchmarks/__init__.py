"""Times the model answers beside library kernels, all in one process on one GPU.

`python -m benchmarks` compares; `python -m benchmarks.variants` tries launch configurations;
`python -m benchmarks.chips` compiles for chips that need not be there.
Modules, each importing only those before it: `shapes` <- `inputs` <- `peers` <- `contenders` <-
`timing` <- `run` <- `precompile` <- `variants`, `cli`. `record`, `table`, `plots` and `sweep` know
results only as plain data, and `chips_table` those of `chips`. `limits` has kernels for one chip,
which `contenders` times beside the answers.
"""
