"""An MCP server on standard input and output. ``python counting_server.py NOTES`` notes each call of its tool in a file."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("counting")


@server.tool()
def add(one: int, other: int) -> int:
    """The sum of two numbers."""
    with Path(sys.argv[1]).open("a", encoding="utf-8") as notes:
        notes.write(f"{one} + {other}\n")
    return one + other


if __name__ == "__main__":
    server.run()
