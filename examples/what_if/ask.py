"""Try several answers on one conversation, side by side, without changing it.

runyard dev app:app -- python ask.py
"""

import asyncio
import os
from uuid import uuid4

from runyard import Client


async def main() -> None:
    thread = f"trip-{uuid4().hex[:6]}"
    async with Client.connect(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
        plan = await client.enqueue(thread, "Plan three days in Lisbon.", "plan")
        print(f"{thread}: {(await plan.result(60)).raise_for_status().text}\n")

        probes = await client.fork_many(
            thread,
            after_run_id="plan",
            messages=["What if we went by train?", "What if we had half the money?", "What if it rains?"],
            judge="cheapest",
            wait=120,
        )
        for n, probe in enumerate(probes.results):
            print(f"{'→' if n == probes.winner else ' '} {probe.messages[0].text}\n    {probe.text}")

        question = probes.results[probes.winner or 0].messages[0].text
        chosen = await client.fork(thread, f"{thread}-chosen", "plan", message=question, run_id="chosen")  # kept
        await client.handle(chosen.thread_id, "chosen").result(60)
        for name in (thread, chosen.thread_id):
            print(f"\n{name} has {len((await client.messages(name)).items)} messages")


asyncio.run(main())
