"""docs/errors, one page per cause that the judge can name: `python -m tests.errors` writes them."""
