"""What every room may use: frozen records, text, files written in one step. Imports nothing."""
