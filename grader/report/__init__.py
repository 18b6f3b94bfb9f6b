"""Views of a grade record: one file a format, each a pure function from record to text."""
