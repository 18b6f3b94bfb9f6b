"""`doctor`: looks at this machine and says what to type where something is amiss."""
