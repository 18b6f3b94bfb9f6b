"""What helps a student beside the grade: a look at the machine, hints, explanations of causes."""
