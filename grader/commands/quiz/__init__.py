"""The quiz of the course: questions with worked answers, asked in the terminal, never scored."""
