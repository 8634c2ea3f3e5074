"""Adapters for agents, sessions and checkpointers of other frameworks. A process imports only the modules of its frameworks."""
