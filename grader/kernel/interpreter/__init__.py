"""Makes Triton's interpreter compute like the compiler, and keeps a kernel's Python in."""
