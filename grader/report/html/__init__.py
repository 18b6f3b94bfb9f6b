"""The report for a browser, as one file: see `grader.report.html.page`."""
