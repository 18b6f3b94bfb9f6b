def failure_text(verdict, message, candidates):
    return f"{verdict}: {message}\n{candidates}"
