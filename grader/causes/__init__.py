"""Names the cause of a failure: rules over evidence, and who decides between them."""
