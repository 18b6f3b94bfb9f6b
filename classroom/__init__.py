"""A class: collects submissions, grades them on an engine, and keeps what came out of it."""
