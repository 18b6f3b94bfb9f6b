"""Hand in: the one archive that a student uploads."""
