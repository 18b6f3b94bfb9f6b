"""`explain`: the page of a cause."""
