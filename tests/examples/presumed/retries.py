from pydantic_ai import Agent

from runyard import Client

client: Client
support: Agent
writer: Agent
