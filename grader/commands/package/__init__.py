"""Ready-made parts for course platforms: Gradescope's autograder, a workflow for GitHub."""
