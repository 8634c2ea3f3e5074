"""The body of a request that accepts many prompts. Each line of a file for ``runyard enqueue`` is one of its prompts."""

from __future__ import annotations

from pydantic import ConfigDict, Field, SkipValidation

from runyard.client.prompts import Prompt as ClientPrompt
from runyard.ports.commands import MAX_PROMPTS_PER_CALL

from .field_types import Id
from .request_models import Prompt, StrictBody, as_message


class BatchedPrompt(Prompt):
    """A prompt and its thread."""

    thread_id: Id

    def prompt(self, run_id: str | None = None) -> ClientPrompt:
        """Return the prompt for ``client.enqueue_many``. ``run_id``: the id of the run if the body has no id."""
        return ClientPrompt(
            self.thread_id, as_message(self.message), self.run_id or run_id, parent_id=self.parent_id, **self.execution()
        )


class PromptBatch(StrictBody):
    """Prompts of any threads of the tenant."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"thread_id": "order-12", "message": "hello", "run_id": "greeting"}]}]}
    )

    # The route checks each prompt, so that a wrong prompt does not affect the others, and the event loop runs between them.
    items: list[SkipValidation[BatchedPrompt]] = Field(min_length=1, fail_fast=True, max_length=MAX_PROMPTS_PER_CALL)
