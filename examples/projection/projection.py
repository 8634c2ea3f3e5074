"""Keep the threads, their messages and their heads in SQLite. The feed says which threads have changed.

runyard dev app:app -- python projection.py
runyard prompt t1 "I am Devansh"
runyard fork t1 t2 --message "what is my name"
sqlite3 projection.db "SELECT * FROM messages WHERE thread_id = 't2'"
"""

import asyncio
import os
import sqlite3
import sys
from contextlib import suppress

from runyard import Client, Message, Thread
from runyard.errors import BackendUnavailableError, CursorExpiredError, ThreadNotFoundError

TABLES = """
CREATE TABLE IF NOT EXISTS threads (
    thread_id TEXT PRIMARY KEY, created_at TEXT, parent_thread_id TEXT, from_event_number INTEGER
);
CREATE TABLE IF NOT EXISTS messages (
    thread_id TEXT, event_number INTEGER, message_id TEXT, run_id TEXT, role TEXT, text TEXT,
    PRIMARY KEY (thread_id, event_number)
);
CREATE TABLE IF NOT EXISTS heads (thread_id TEXT PRIMARY KEY, event_number INTEGER, message_id TEXT);
CREATE TABLE IF NOT EXISTS position (cursor TEXT);
"""
"""``position`` has a row as soon as every thread has been read once. Its cursor is null at the beginning of the feed."""
POLL_SECONDS, OUTAGE_SECONDS = 0.25, 1.0


def opened(path: str) -> sqlite3.Connection:
    """Return the database at ``path`` with its tables. Other programs can read it meanwhile."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(TABLES)
    return database


async def read(
    client: Client, database: sqlite3.Connection, thread_id: str, whole: bool = False
) -> tuple[Thread, list[Message], int] | None:
    """Return a thread, the messages to write, and the number of the last event to keep. Return None for a deleted thread.

    The history is read from its end back to the first inherited message that the projection has. What a thread inherited
    changes only if an ancestor is erased, which only ``whole`` finds. Its own messages are read again as a whole, because a
    failed run that is redriven brings earlier ones back.
    """
    try:
        thread = await client.thread(thread_id)
        inherited = thread.forked_at_seq or 0 if has_thread(database, thread) and not whole else 0
        found: list[Message] = []
        cursor = None
        while True:
            page = await client.messages(thread_id, limit=1000, cursor=cursor, newest_first=True)
            for message in page.items:
                if message.seq <= inherited and has_message(database, thread_id, message):
                    return thread, found, message.seq
                found.append(message)
            if (cursor := page.next) is None:
                return thread, found, 0
    except ThreadNotFoundError:
        return None


def has_thread(database: sqlite3.Connection, thread: Thread) -> bool:
    """Return whether the projection has this thread, and not a deleted one that had its id."""
    found = database.execute(
        "SELECT 1 FROM threads WHERE (thread_id, created_at) = (?, ?)", (thread.thread_id, str(thread.created_at))
    )
    return found.fetchone() is not None


def has_message(database: sqlite3.Connection, thread_id: str, message: Message) -> bool:
    place = (thread_id, message.seq, message.id)
    found = database.execute("SELECT 1 FROM messages WHERE (thread_id, event_number, message_id) = (?, ?, ?)", place)
    return found.fetchone() is not None


def write(database: sqlite3.Connection, thread_id: str, known: tuple[Thread, list[Message], int] | None) -> None:
    """Replace what the projection has of a thread. A thread without messages has no rows."""
    thread, found, kept = known or (None, [], 0)
    database.execute("DELETE FROM messages WHERE thread_id = ? AND event_number > ?", (thread_id, kept))
    database.execute("DELETE FROM threads WHERE thread_id = ?", (thread_id,))
    database.execute("DELETE FROM heads WHERE thread_id = ?", (thread_id,))
    database.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", [row(thread_id, message) for message in found])
    if thread is not None and (found or kept):
        lineage = (thread_id, str(thread.created_at), thread.parent_thread_id, thread.forked_at_seq)
        database.execute("INSERT INTO threads VALUES (?, ?, ?, ?)", lineage)
        database.execute(
            "INSERT INTO heads SELECT thread_id, event_number, message_id FROM messages"
            " WHERE thread_id = ? ORDER BY event_number DESC LIMIT 1",
            (thread_id,),
        )


def row(thread_id: str, message: Message) -> tuple[object, ...]:
    text = message.text.encode(errors="replace").decode()  # an agent may have stored text that is not valid Unicode
    return thread_id, message.seq, message.id, message.run_id, message.role, text


async def step(client: Client, database: sqlite3.Connection) -> int:
    """Project the threads that a page of the feed names. Return the number of its entries.

    The cursor is written last. A program that is killed before reads the same entries again, and replaces the same rows.
    """
    [cursor] = database.execute("SELECT cursor FROM position").fetchone() or [None]
    page = await client.feed(cursor)
    for thread_id in dict.fromkeys(entry.thread_id for entry in page.items):
        await project(client, database, thread_id)
    if page.items:
        move(database, page.next)
    return len(page.items)


async def project(client: Client, database: sqlite3.Connection, thread_id: str, whole: bool = False) -> None:
    known = await read(client, database, thread_id, whole)
    with database:  # one transaction
        write(database, thread_id, known)


def move(database: sqlite3.Connection, cursor: str | None) -> None:
    with database:
        database.execute("DELETE FROM position")
        database.execute("INSERT INTO position VALUES (?)", (cursor,))


async def survey(client: Client, database: sqlite3.Connection) -> None:
    """Project all of each thread, since threads may be older than the feed keeps entries. Then begin at its oldest entry."""
    gone = {thread_id for (thread_id,) in database.execute("SELECT thread_id FROM threads")}
    cursor = None
    while True:
        page = await client.threads(cursor=cursor)
        for thread in page.items:
            gone.discard(thread.thread_id)
            await project(client, database, thread.thread_id, True)
        if (cursor := page.next) is None:
            break
    for thread_id in gone:
        await project(client, database, thread_id)
    move(database, None)


async def follow(client: Client, database: sqlite3.Connection) -> None:
    """Project the changes of all threads, without end."""
    while True:
        try:
            if database.execute("SELECT 1 FROM position").fetchone() is None:
                await survey(client, database)
                print("all threads are projected; following the feed")
            if not await step(client, database):
                await asyncio.sleep(POLL_SECONDS)
        except CursorExpiredError:  # the program did not run for a week
            with database:
                database.execute("DELETE FROM position")
        except BackendUnavailableError as error:
            print(f"trying again: {error}")
            await asyncio.sleep(OUTAGE_SECONDS)


async def main() -> None:
    database = opened(sys.argv[1] if len(sys.argv) > 1 else "projection.db")
    async with Client.connect(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
        await follow(client, database)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
