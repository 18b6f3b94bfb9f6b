"""The report to look at: one file for a browser, see `grader.report.html.page`."""
