"""What the source of a submission may contain: a rule of the assignment, docs/source-policy.md."""
