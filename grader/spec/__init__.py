"""What is asked and answered: problem.toml, cases, inputs, verdicts, the grade record, causes."""
