"""One machine at a time: no process, no socket, no clock."""
