"""Observers of what a kernel does in its launches: reads, products, stores, races, state."""
