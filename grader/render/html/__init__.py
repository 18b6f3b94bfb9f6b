"""The report to look at: one file for a browser, see `grader.render.html.page`."""
