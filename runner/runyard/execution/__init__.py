"""Execution of one attempt of a run: the context for its agent, and the end of the attempt."""
