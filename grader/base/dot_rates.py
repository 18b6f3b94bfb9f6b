"""How many 16-bit dots a multiprocessor computes per clock, by compute capability."""

# Operations (two per multiply-add) of 16-bit dots with fp32 sums, per multiprocessor and clock,
# dense: NVIDIA's architecture papers (A100, GA102, AD102, H100, Blackwell). Triton does not use the
# tensor cores of 7.5. There a fourth of its 64 fp32 multiply-adds is assumed, since their operands
# come through shared memory.
DOTS = {
    (7, 5): 32,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
    (12, 0): 1024,
}
