"""Agents: the context they write through, and the ready-made ones."""
