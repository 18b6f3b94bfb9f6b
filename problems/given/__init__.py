"""What the assignment gives: the plumbing that stubs and model answers import, never the lesson.

The judge uses its own copy. A problem may import the modules that its problem.toml lists under
`given`; one that holds what an earlier problem taught opens with the problem after it.
"""
