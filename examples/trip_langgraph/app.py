"""A graph of LangGraph that looks for a train, asks a human, and books a trip. It needs no model and no key."""

import re
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from runyard import App, step

TRAINS = {"Lisbon": "21:34, 95 €", "Rome": "19:10, 120 €"}


class Trip(MessagesState):
    city: str
    booked: bool


async def understand(state: Trip) -> dict[str, Any]:
    """Find the city in the last message, and call the tool."""
    said = str(state["messages"][-1].content)
    city = next((city for city in TRAINS if re.search(city, said, re.IGNORECASE)), "Lisbon")
    call = {"name": "find_train", "args": {"city": city}, "id": f"find-{len(state['messages'])}"}
    return {"city": city, "messages": [AIMessage("", tool_calls=[call])]}


async def find_train(state: Trip) -> dict[str, Any]:
    answer = state["messages"][-1]
    assert isinstance(answer, AIMessage)
    found = [ToolMessage(TRAINS[call["args"]["city"]], tool_call_id=call["id"]) for call in answer.tool_calls]
    return {"messages": found}


async def book(state: Trip) -> dict[str, Any]:
    """Ask a human before the booking. The node starts again after the answer. The step is not repeated."""
    train = str(state["messages"][-1].content)
    if not interrupt({"question": f"Book {train} to {state['city']}?", "answer_schema": {"type": "boolean"}}):
        return {"booked": False, "messages": [AIMessage("Nothing is booked.")]}
    number = await buy(state["city"])
    return {"booked": True, "messages": [AIMessage(f"Booked to {state['city']}: ticket {number}.")]}


@step
async def buy(city: str) -> str:
    """Buy the ticket and return its number. A later attempt of the run gets the number and does not buy another ticket."""
    return f"{city[:3].upper()}-{len(city) * 1000 + 7}"


graph = StateGraph(Trip)
graph.add_node("understand", understand)
graph.add_node("find_train", find_train)
graph.add_node("book", book)
graph.add_edge(START, "understand")
graph.add_edge("understand", "find_train")
graph.add_edge("find_train", "book")
graph.add_edge("book", END)

app = App(agents={"trip": graph.compile()}, version="1")
