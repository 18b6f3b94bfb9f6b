"""`predict`: how long kernels would take on GPUs that need not be there."""
