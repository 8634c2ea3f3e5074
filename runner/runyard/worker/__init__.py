"""The worker claims runs, executes them in slots, and sends heartbeats. The leader also reconciles."""
