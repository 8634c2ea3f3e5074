"""Prompt an agent of cubeloop in a worker and approve its tool call. Then continue the thread with an agent in this process.

runyard dev app:app -- python talk.py
"""

import asyncio
import os
from uuid import uuid4

from app import provider
from cubeloop import Agent

from runyard import Client
from runyard.adapters.cubeloop_checkpointer import RunyardCheckpointer


async def main() -> None:
    thread = f"order-{uuid4().hex[:6]}"
    async with Client.connect(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
        run = await client.enqueue(thread, "Please refund order A-7.", "refund")
        asked = (await run.result(60)).requests[0]
        print(f"{asked.payload['question']} {asked.payload['tool_call']['arguments']}")
        await client.respond(thread, True, asked.request_id)
        print((await run.result(60)).raise_for_status().text)

        checkpointer = RunyardCheckpointer(client)  # it replaces cubeloop's own checkpointer
        agent = Agent(model=provider.model("script"), checkpointer=checkpointer, thread_id=thread)
        await agent.prompt("How long is this conversation?")
        print(agent.state.messages[-1].content[0].text)

        await agent.fork(thread, f"{thread}-branch", after_run_id="refund")
        print(f"{thread}-branch has {len((await client.messages(f'{thread}-branch')).items)} messages")


asyncio.run(main())
