"""Evidence in, findings out: correctness, speed and memory of one submission."""
