"""What is asked and answered: problem.toml, cases and inputs, verdicts, the grade record, causes."""
