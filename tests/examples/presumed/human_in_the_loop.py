from pydantic_ai.models import Model

from runyard.ports.stores import Checkpointer

cp: Checkpointer
model: Model


async def refund(order: str, amount: int) -> str: ...
