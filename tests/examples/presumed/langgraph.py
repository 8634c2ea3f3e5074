from typing import Any

from langgraph.graph import StateGraph

builder: StateGraph[Any, Any, Any, Any]
