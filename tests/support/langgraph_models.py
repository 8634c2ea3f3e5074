"""A chat model of LangChain whose answers a test chooses from the messages of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

Script = Callable[[list[BaseMessage]], AIMessage]


class ScriptedChat(BaseChatModel):
    """A model that streams the text of an answer in words. Its last piece has the tool calls and the usage."""

    script: Script

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.script(messages))])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        answer = self.script(messages)
        for word in str(answer.content).split(" "):
            space = "" if str(answer.content).startswith(word) else " "
            yield ChatGenerationChunk(message=AIMessageChunk(space + word))
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        last = AIMessageChunk("", tool_calls=answer.tool_calls, usage_metadata=usage)  # type: ignore[arg-type]
        yield ChatGenerationChunk(message=last)
