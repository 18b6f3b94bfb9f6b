"""`grade`: grades a submission, writes the files that were asked for and prints the report."""
