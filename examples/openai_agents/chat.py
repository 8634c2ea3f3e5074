"""Prompt an agent in a worker and approve its refund. Then use the SDK's own Runner on a branch of the same thread.

runyard dev app:app -- python chat.py
"""

import asyncio
import os
from uuid import uuid4

from agents import Runner
from app import agent

from runyard import Client
from runyard.adapters.openai_session import RunyardSession


async def main() -> None:
    thread = f"support-{uuid4().hex[:6]}"
    async with Client.connect(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
        run = await client.enqueue(thread, "Order A-7 arrived broken. Please refund it.")
        parked = await run.result(60)
        for request in parked.requests:
            print(f"{request.payload['question']} {request.payload['tool_call']['arguments']}")
            await client.respond(thread, True, request.request_id)
        print((await run.result(60)).raise_for_status().text)

        session = RunyardSession(client, thread)  # the session has the worker's messages as items
        print(f"The session has {len(await session.get_items())} items.")
        await session.create_branch_from_turn(1, "edited")
        answer = await Runner.run(agent, "My order arrived broken.", session=session)
        print(f"On the branch: {answer.final_output}")
        await session.switch_to_branch("main")
        print(f"The main branch still has {len(await session.get_items())} items.")


asyncio.run(main())
