"""Names a cause from what the judge saw a kernel do, or from the numbers of a wrong result.

Rules judge only calls with a wrong result, and state what was seen, with its line. Many mistakes of
arithmetic (scale, rescale, lse, delta, signs) show in no access: `grader.causes.known_mistakes` and
fits find these. Naming no cause is better than a wrong one.
"""
