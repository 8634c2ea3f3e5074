"""A chat backend. It enqueues prompts in its own transaction, streams answers to the browser, and forks a chat after an answer.

runyard dev app:app -- uvicorn web:web --port 8080
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel, Field

from runyard import Client, RunyardError, new_id
from runyard_api.hosts.starlette import sse_response

POSTGRES, REDIS = os.environ["RUNYARD_POSTGRES_URL"], os.environ["RUNYARD_REDIS_URL"]
TABLE = """
CREATE TABLE IF NOT EXISTS chats (
    id text PRIMARY KEY, title text NOT NULL, parent text REFERENCES chats, made_at timestamptz NOT NULL DEFAULT now()
)"""


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncGenerator[None]:
    async with asyncpg.create_pool(POSTGRES) as pool, Client.connect(POSTGRES, redis=REDIS) as client:
        await pool.execute(TABLE)
        web.state.pool, web.state.client = pool, client
        yield


web = FastAPI(lifespan=lifespan)


class Prompt(BaseModel):
    """A prompt. The browser generates ``run_id``, so that a request that it repeats after a timeout finds the same run."""

    text: str = Field(min_length=1, max_length=4000)
    run_id: str = Field(default_factory=new_id)


@web.post("/chats/{chat}/prompts", status_code=202)
async def prompt(chat: str, prompt: Prompt) -> dict[str, str]:
    """Create the chat and the run in one transaction: both exist or neither."""
    async with web.state.pool.acquire() as connection, connection.transaction():
        await connection.execute("INSERT INTO chats (id, title) VALUES ($1, $2) ON CONFLICT DO NOTHING", chat, prompt.text[:60])
        await web.state.client.enqueue(chat, prompt.text, prompt.run_id, connection=connection)
    return {"chat": chat, "run": prompt.run_id}


@web.get("/chats/{chat}/runs/{run}/events")
async def events(chat: str, run: str, request: Request) -> Response:
    """Stream the events until the run stops. A browser that reconnects sends the last id that it received and continues
    there."""
    return await sse_response(web.state.client.handle(chat, run), request)


@web.post("/chats/{chat}/runs/{run}/branch", status_code=202)
async def branch(chat: str, run: str, prompt: Prompt) -> dict[str, str]:
    """Fork the chat after the run of an answer, and prompt the fork. No message is copied."""
    new = f"branch-{prompt.run_id}"
    await web.state.client.fork(chat, new, after_run_id=run, message=prompt.text, run_id=prompt.run_id)
    await web.state.pool.execute(
        "INSERT INTO chats (id, title, parent) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", new, prompt.text[:60], chat
    )
    return {"chat": new, "run": prompt.run_id}


@web.get("/chats")
async def chats() -> list[dict[str, str | None]]:
    return [dict(row) for row in await web.state.pool.fetch("SELECT id, title, parent FROM chats ORDER BY made_at")]


@web.get("/chats/{chat}")
async def chat(chat: str) -> dict[str, object]:
    """Return the messages of a chat, and the id of its run that has not ended, or null."""
    messages = (await web.state.client.messages(chat)).items
    newest = (await web.state.client.runs(chat, limit=1)).items
    shown = [
        {"role": message.role, "text": message.text, "run": message.run_id, "tools": [call.name for call in message.tool_calls]}
        for message in messages
    ]
    return {"messages": shown, "running": newest[0].run_id if newest and not newest[0].ended else None}


@web.exception_handler(RunyardError)
async def refused(request: Request, error: RunyardError) -> JSONResponse:
    """Answer with the HTTP status of the error."""
    return JSONResponse(error.to_dict(), error.http_status)


@web.get("/", include_in_schema=False)
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_name("page.html"))
