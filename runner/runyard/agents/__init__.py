"""Agents: the ready-made Agent, and the engine that runs pydantic-ai agents durably."""
