"""The judge: runs a submission, scores it and says what is wrong with it."""

__version__ = "0.37.0"
