"""Books a trip. Then asks for another trip in a fork of the same conversation.

runyard dev app:app -- python plan.py
"""

import asyncio
import os

from runyard import Client


async def main() -> None:
    async with Client.connect(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
        handle = await client.enqueue("trip", "I want to go to Lisbon")
        asked = await handle.result(60)
        print("?", asked.requests[0].payload["question"])
        await client.respond("trip", True)
        print("trip:", (await handle.result(60)).messages[-1].text)

        fork = await client.fork("trip", after_run_id=handle.run_id)
        other = await client.enqueue(fork.thread_id, "And to Rome?")
        print("?", (await other.result(60)).requests[0].payload["question"])
        await client.respond(fork.thread_id, False)
        print("fork:", (await other.result(60)).messages[-1].text)


asyncio.run(main())
