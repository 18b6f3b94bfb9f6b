"""Loops of p04 under the name that they had until 0.25, for files of that release."""

from given.loops import causal_loop

causal_walk = causal_loop
