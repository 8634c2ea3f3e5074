import pydantic_ai
from pydantic import BaseModel


class Shop:
    def __init__(self, thread_id: str) -> None: ...


my_pydantic_agent: pydantic_ai.Agent[Shop, str]


class Kind(BaseModel):
    title: str


async def look_up(order: str) -> str: ...
async def open_ticket(title: str) -> int: ...
