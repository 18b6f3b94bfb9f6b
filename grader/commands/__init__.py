"""The commands of `python -m grader`, each with its options and its view."""
