"""What the tests of several stores share."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from tests.conftest import Databases, for_role
from tests.support.shared_database import SharedDatabase

CONNECTIONS = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_database(databases: Databases, migrated_template: str, app_role: str) -> AsyncIterator[SharedDatabase]:
    """A database for the tests of one module, with the rights of workers and API processes."""
    owner_url = await databases.create(migrated_template)
    try:
        async with SharedDatabase.open(owner_url, for_role(owner_url, app_role), CONNECTIONS) as shared:
            yield shared
    finally:
        await databases.drop(owner_url)


@pytest_asyncio.fixture(loop_scope="module")
async def shared_database(module_database: SharedDatabase) -> AsyncIterator[SharedDatabase]:
    """The same database, emptied for one test. At the end, cancel the tasks that the test has left."""
    await module_database.empty()
    before = asyncio.all_tasks()
    yield module_database
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
