"""Names a cause from what the judge saw a kernel do: which pairs, rows, heads and strides.

Every rule here states what was seen, in its own words, with the line; it is asked only about a call
whose result is wrong. What leaves the walk as it should be (scale, rescale, lse, delta, signs) is
not seen here: see `grader.causes.diagnose`. No name is better than a wrong one.
"""
