"""`trace`: one program of a kernel, tile by tile."""
