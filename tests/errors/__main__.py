"""`python -m tests.errors` writes docs/errors anew after causes or their texts have changed."""

from tests.errors.pages import write

write()
