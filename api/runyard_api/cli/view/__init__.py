"""Output on the terminal."""
