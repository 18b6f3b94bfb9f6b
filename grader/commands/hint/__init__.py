"""`hint`: the next hint of the first step that is not solved."""
