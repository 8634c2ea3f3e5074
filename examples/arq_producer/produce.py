"""Enqueue prompts and forks with arq's own client, and read their results. This program does not import runyard.

runyard dev app:app --arq-queue conversations -- python produce.py
"""

import asyncio
import os
from uuid import uuid4

import msgpack
from arq import create_pool
from arq.connections import RedisSettings
from arq.jobs import SerializationError

QUEUE = "conversations"


async def main() -> None:
    thread, prefix = f"arq-{uuid4().hex[:6]}", uuid4().hex[:6]
    redis = await create_pool(
        RedisSettings.from_dsn(os.environ["RUNYARD_REDIS_URL"]),
        job_serializer=msgpack.packb,
        job_deserializer=msgpack.unpackb,
        default_queue_name=QUEUE,
    )
    prompt = await redis.enqueue_job("prompt", thread, "How is the weather?", _job_id=f"{prefix}-prompt")
    fork = await redis.enqueue_job("fork", thread, f"{thread}-b", f"{prefix}-prompt", _job_id=f"{prefix}-fork")
    print("prompt:", (await prompt.result(60))["text"])
    print("fork:", (await fork.result(60))["value"])

    probe = await redis.enqueue_job("fork_once", f"{thread}-b", "And tomorrow's weather?", _job_id=f"{prefix}-probe")
    print("probe:", (await probe.result(60))["value"]["text"])

    later = await redis.enqueue_job("prompt", thread, "Hello again.", _job_id=f"{prefix}-later", _defer_by=0.5)
    print("deferred:", await later.status())
    print("prompt:", (await later.result(60))["text"], await later.status())

    wrong = await redis.enqueue_job("prompt", thread, "Hi", priority="urgent", _job_id=f"{prefix}-wrong")
    try:
        await wrong.result(60)
    except SerializationError as error:
        print("refused:", error.args[0]["message"])
    await redis.aclose()


asyncio.run(main())
