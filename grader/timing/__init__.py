"""Clock, memory, device lock, and the targets that speed is scored by."""
