"""`race`: an answer beside library kernels."""
