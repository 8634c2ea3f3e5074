"""Data for the console of `runyard demo --console`: siblings, a fan-out, open requests and failures."""

from __future__ import annotations

from typing import Final

from runyard import Client

from .chapters import FORK, MEASURED, PACK, RUN_SECONDS, THREAD, TRAIN

THREE_WAYS: Final = ("And a beach", "And a museum", "I would rather go by train")
PLAN: Final = """\
## Three days in Lisbon

1. **Friday** – tram 28, then tarts in *Belém*
2. **Saturday** – the tile museum, which is quiet in the mornings
3. **Sunday** – Cascais by train

| what | who pays | € |
| --- | --- | ---: |
| train | you | 120 |
| hotel | you | 310 |

```python
total = 120 + 310
```
"""


async def furnish(client: Client) -> None:
    """Replace the measured threads by runs and threads of every kind. Some runs wait for a human. Return when all other runs
    have ended."""
    await _delete_measured(client)
    await client.update_thread(THREAD, title="A trip to Lisbon", tags={"team": "travel", "tier": "gold"})
    handles = [
        await client.regenerate(THREAD, message=PLAN, agent="echo"),
        await client.enqueue("invoice-7", "The invoice of last month", agent="unlucky", run_id="invoice"),
        await client.enqueue("invoice-8", "The invoice of this month", agent="unlucky"),
        await client.enqueue("greeting", "Are you there?", agent="echo"),
    ]
    for handle in handles:
        await handle.result(RUN_SECONDS)
    await client.set_label(THREAD, "plan")
    await client.fork_many(
        THREAD, "first", messages=list(THREE_WAYS), agent="adviser", judge="shortest", run_id="three-ways", wait=RUN_SECONDS
    )
    night = await client.fork(FORK, "trip-by-night", title="By night train", tags={"team": "travel"})
    await (await client.enqueue(night.thread_id, TRAIN)).result(RUN_SECONDS)
    await client.fork(THREAD, "trip-packing", title="What to pack")
    await (await client.enqueue("trip-packing", PACK)).result(RUN_SECONDS)
    for thread_id, text, agent in (("trip-by-night", "Book the sleeper", None), ("hotel-3", "A room with a view", "doubtful")):
        await (await client.enqueue(thread_id, text, agent=agent)).result(RUN_SECONDS)
    await client.enqueue("trip-by-night", "And a beach")


async def _delete_measured(client: Client) -> None:
    """Delete the measured threads, because their large number would hide the other threads in the console."""
    page = await client.threads(newest_first=True, limit=200)
    for thread in page.items:
        if thread.thread_id.startswith(MEASURED):
            await client.delete_thread(thread.thread_id)
