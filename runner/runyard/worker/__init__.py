"""The worker: claims runs, executes them in slots, sends heartbeats, and as the leader reconciles."""
