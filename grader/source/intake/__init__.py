"""What students hand in: read from whatever it came in, and known by its receipt."""
