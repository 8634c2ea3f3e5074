"""Adapters of other frameworks' agents, sessions and checkpointers. A process imports only the modules of its frameworks."""
