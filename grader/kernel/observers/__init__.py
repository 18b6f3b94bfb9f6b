"""What a kernel did, seen in the interpreter: reads, products, stores, races, state."""
