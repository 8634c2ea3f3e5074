from agents import Agent, RunConfig

agent: Agent
config: RunConfig


class Shop:
    def __init__(self, thread_id: str) -> None: ...
