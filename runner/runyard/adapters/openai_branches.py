"""Branches of a session of the OpenAI Agents SDK. A branch is a label of the thread (B9).

The methods have the names and arguments of the SDK's own session with branches. A turn is a message of the user and the
messages after it, up to the user's next message. Turns are numbered from 1 along the branch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ..domain.messages import Message
from ..domain.size_limits import JsonObject
from ..domain.validation import ROOT_ID, new_id
from ..errors import InvalidInputError, ThreadNotFoundError
from .openai_items import to_items

if TYPE_CHECKING:
    from ..client.client import Client
    from .openai_session import Marks, Place

MAIN: Final = "main"
"""The label that a branch without a label gets when a session moves from this branch to another branch."""
PREVIEW: Final = 100
"""Number of characters that a list of turns shows of each turn's content."""


class BranchCalls(ABC):
    """The methods of a session for branches. ``branch``: the label of the session's branch, None for the head."""

    session_id: str
    branch: str | None

    @abstractmethod
    async def client(self) -> Client: ...

    @abstractmethod
    async def place(self, branch: str | None) -> Place: ...

    @abstractmethod
    async def marks(self) -> Marks: ...

    @abstractmethod
    async def save_mark(self, marks: Marks, branch: str | None, mark: JsonObject | None) -> bool: ...

    async def create_branch_from_message(self, message_id: str, branch_name: str | None = None) -> str:
        """Begin a branch in place of a message, and move the session to the branch. Return the name of the branch.

        The branch has the messages before ``message_id``. The next item that is added to the session, for example an edited
        question, takes the place of this message. ``branch_name``: the label of the branch, or None to generate a label. The
        branch that the session leaves gets the label ``main`` if no branch of the thread has this label.

        Raises MessageNotFoundError. Raises InvalidInputError for a name that is taken or is not a valid label.
        """
        client = await self.client()
        path = (await client.messages(self.session_id, message_id, limit=2, newest_first=True)).items
        name = f"branch-{new_id()}" if branch_name is None else branch_name
        if not 0 < len(name.strip()) <= 64 or not name.isprintable():
            raise InvalidInputError("the name of a branch must have 1 to 64 printable characters", field="branch_name")
        taken = {branch["branch_id"] for branch in await self.list_branches()}
        if name in taken:
            raise InvalidInputError(f"the thread has a branch {name!r}; choose another name", field="branch_name")
        if self.branch is None and MAIN not in taken:
            place = await self.place(None)
            await client.set_label(self.session_id, MAIN)
            if place.marked:
                while not await self.save_mark(await self.marks(), MAIN, place.mark):
                    pass
        begun = path[1].id if len(path) > 1 else ROOT_ID
        mark = {"over": None, "leaf": begun, "dropped": 0}
        while not await self.save_mark(await self.marks(), name, mark):
            pass
        self.branch = name
        return name

    async def create_branch_from_turn(self, turn_number: int, branch_name: str | None = None) -> str:
        """Begin a branch in place of a turn. Call :meth:`create_branch_from_message` with the turn's first message.

        Raises InvalidInputError if the branch has no such turn, and the errors of :meth:`create_branch_from_message`.
        """
        turns = await self.get_conversation_turns()
        for turn in turns:
            if turn["turn"] == turn_number:
                return await self.create_branch_from_message(turn["message_id"], branch_name)
        raise InvalidInputError(f"the branch has {len(turns)} turns; it has no turn {turn_number}", field="turn_number")

    async def create_branch_from_content(self, search_term: str, branch_name: str | None = None) -> str:
        """Begin a branch in place of the first turn whose text contains ``search_term``.

        Raises InvalidInputError if no turn contains the text, and the errors of :meth:`create_branch_from_message`.
        """
        found = await self.find_turns_by_content(search_term)
        if not found:
            raise InvalidInputError("no turn of the branch contains this text", field="search_term")
        return await self.create_branch_from_message(found[0]["message_id"], branch_name)

    async def switch_to_branch(self, branch_id: str) -> None:
        """Move the session to the branch with this name. Raises InvalidInputError for an unknown branch."""
        if branch_id not in {branch["branch_id"] for branch in await self.list_branches()}:
            raise InvalidInputError(f"thread {self.session_id} has no branch {branch_id!r}", field="branch_id")
        self.branch = branch_id

    async def delete_branch(self, branch_id: str, force: bool = False) -> None:
        """Remove the name of a branch. The messages of the branch stay in the thread.

        ``force``: True to remove the name even if the session is on the branch. The session then moves to ``main``. Raises
        InvalidInputError for ``main``, for the session's branch without ``force``, and for an unknown branch.
        """
        if branch_id == MAIN:
            raise InvalidInputError("the branch 'main' cannot be deleted", field="branch_id")
        if branch_id not in {branch["branch_id"] for branch in await self.list_branches()}:
            raise InvalidInputError(f"thread {self.session_id} has no branch {branch_id!r}", field="branch_id")
        if branch_id == self.branch:
            if not force:
                raise InvalidInputError(
                    f"the session is on branch {branch_id!r}; call switch_to_branch first", field="branch_id"
                )
            await self.switch_to_branch(MAIN)
        client = await self.client()
        await client.remove_label(self.session_id, branch_id)
        while not await self.save_mark(await self.marks(), branch_id, None):
            pass

    async def list_branches(self) -> list[dict[str, Any]]:
        """Return the named branches of the thread, each as a dict.

        ``branch_id``: the name. ``message_id``: the last message of the branch. ``message_count``: the number of messages from
        the first message of the thread to ``message_id``. ``created_at``: the time of this message. For a new branch without
        messages, ``message_id`` is the message after which the branch begins. ``message_count`` and ``created_at`` are then
        None. ``is_current``: whether the session is on the branch.
        """
        client = await self.client()
        try:
            leaves = (await client.branches(self.session_id, labelled=True)).items
            marks = await self.marks()
        except ThreadNotFoundError:
            return []
        found: dict[str, dict[str, Any]] = {
            label: {"message_count": leaf.depth, "message_id": leaf.message_id, "created_at": leaf.created_at}
            for leaf in leaves
            for label in leaf.labels
        }
        for name, mark in marks.of.items():
            if name and isinstance(mark, dict) and mark.get("over") is None:
                found.setdefault(name, {"message_count": None, "message_id": mark.get("leaf"), "created_at": None})
        return [{"branch_id": name, **about, "is_current": name == self.branch} for name, about in found.items()]

    async def get_conversation_turns(self, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return the turns of a branch, by default of the session's branch, each as a dict.

        ``turn``: the number of the turn. ``message_id``: the first message. ``content``: the beginning of the message's text.
        ``full_content``: the text. ``timestamp``: the time of the message. ``can_branch``: True.

        Raises InvalidInputError for an unknown branch.
        """
        return [
            {
                "turn": number,
                "message_id": message.id,
                "content": message.text if len(message.text) <= PREVIEW else f"{message.text[:PREVIEW]}...",
                "full_content": message.text,
                "timestamp": message.created_at,
                "can_branch": True,
            }
            for number, message in enumerate((m for m in await self._path(branch_id) if m.role == "user"), 1)
        ]

    async def find_turns_by_content(self, search_term: str, branch_id: str | None = None) -> list[dict[str, Any]]:
        """Return the turns whose text contains ``search_term``. The search ignores case.

        The returned dicts have the keys of :meth:`get_conversation_turns`.
        """
        term = search_term.casefold()
        return [turn for turn in await self.get_conversation_turns(branch_id) if term in turn["full_content"].casefold()]

    async def get_conversation_by_turns(self, branch_id: str | None = None) -> dict[int, list[dict[str, str | None]]]:
        """Return the items of each turn, by the number of the turn. Items before the first turn have the number 0.

        An item is a dict with its ``type`` and its ``tool_name`` (or None).
        """
        turns: dict[int, list[dict[str, str | None]]] = {}
        number = 0
        for message in await self._path(branch_id):
            number += message.role == "user"
            for item in to_items(message):
                type_ = str(item.get("type", "message"))
                kind = str(item.get("role")) if type_ == "message" else type_
                turns.setdefault(number, []).append({"type": kind, "tool_name": item.get("name")})
        return turns

    async def get_tool_usage(self, branch_id: str | None = None) -> list[tuple[str, int, int]]:
        """Return a tuple for each turn and each tool that the turn called.

        A tuple has the tool's name, the number of calls, and the number of the turn.
        """
        used: Counter[tuple[str, int]] = Counter()
        number = 0
        for message in await self._path(branch_id):
            number += message.role == "user"
            used.update((call.name, number) for call in message.tool_calls)
        return [(name, count, turn) for (name, turn), count in used.items()]

    async def _path(self, branch_id: str | None) -> list[Message]:
        place = await self.place(self.branch if branch_id is None else branch_id)
        client = await self.client()
        return [] if place.empty else (await client.messages(self.session_id, place.leaf)).items
