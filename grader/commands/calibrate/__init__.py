"""Speed targets: calibrated on a GPU, stated in problem.toml, or implied by a GPU's rates."""
