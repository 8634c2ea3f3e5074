from typing import Any

from cubeloop.hitl import InMemoryChannel
from cubeloop.middleware import GoalMiddleware

from runyard import Client

client: Client
channel: InMemoryChannel
model: Any
evaluator: Any
refund: Any
