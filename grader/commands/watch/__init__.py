"""`make watch`: grades one problem again at each save."""
