"""Real node processes on loopback."""
