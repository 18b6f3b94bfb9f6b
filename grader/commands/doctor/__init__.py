"""`doctor`: checks this machine and says what to type where something is wrong."""
