"""The model answers timed beside library kernels, all in one process on one GPU.

`python -m benchmarks` compares; `python -m benchmarks.variants` tries launch configurations.
Rooms, each knowing only those before it: `shapes` <- `inputs` <- `contenders` <- `timing` <- `run`
<- `sweep`, `variants` <- `cli`. `record`, `table` and `plots` know results as plain data only.
"""
