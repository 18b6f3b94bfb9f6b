"""What a kernel did, by the events of its launches: reads, products, stores, races, state."""
