"""`python -m grader stability`: how points vary when the same files are graded again."""
