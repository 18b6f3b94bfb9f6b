"""`lint`: what the source policy refuses."""
