"""Figures of one NVIDIA H200, each with its source.

Read from the device on 2026-11-22 (driver 580.159.04), with torch's `get_device_properties` and
`nvidia-smi`: SMS, REGISTER_BYTES, SHARED_BYTES, L2_BYTES, MAX_CLOCK. Shared memory is that of
NVIDIA, *Hopper Tuning Guide*; the 50 MB of L2 that are often quoted are an H100's.
NVIDIA, *H200 Tensor Core GPU* data sheet: HBM_BYTES, HBM_RATE, BF16_RATE (dense: half of
the figure with sparsity).
Measured the same day with torch 2.11.0 and Triton 3.6.0: L2_RATE, a kernel that reads one buffer
again and again past the L1 cache (`cache_modifier=".cg"`, 4 programs per SM, 4096 fp32 per load):
8.5 to 8.7 TB/s for buffers of 8 to 48 MiB, 4.5 TB/s from 96 MiB on.
`SHARED_RATE` is 128 bytes per clock and SM at the highest clock: a bound, not a measurement.
"""

KIB, MIB = 2**10, 2**20

SMS = 132
REGISTER_BYTES = 65536 * 4  # per SM
SHARED_BYTES = 228 * KIB  # per SM
L2_BYTES = 60 * MIB
HBM_BYTES = 141e9
MAX_CLOCK = 1.98e9

SHARED_RATE = SMS * 128 * MAX_CLOCK
L2_RATE = 8.6e12
HBM_RATE = 4.8e12
BF16_RATE = 989e12
