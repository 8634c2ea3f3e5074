"""Limits of a deployment."""

from __future__ import annotations

from typing import Final, Literal, Self, get_args

from pydantic import Field, model_validator

from .base_models import StrictModel

LimitName = Literal[
    "queued", "queued_per_tenant", "queued_per_lane", "queued_seconds", "message_bytes", "running_per_agent",
    "running_per_tenant",
]  # fmt: skip

LIMITS: Final = get_args(LimitName)


class Limit(StrictModel):
    """A limit of the deployment (R16).

    ``subject``: the tenant or the agent of the limit. If ``subject`` is None, the limit applies to each tenant or agent without
    its own limit. Only a limit per tenant or per agent has a subject. ``most``: the maximum that the limit allows, in runs,
    seconds or bytes.
    """

    name: LimitName
    subject: str | None = None
    most: int = Field(ge=0, lt=2**48)

    @model_validator(mode="after")
    def _names_what_it_can(self) -> Self:
        if self.subject is not None and not self.name.endswith(("_per_tenant", "_per_agent")):
            raise ValueError(f"the limit {self.name} has no subject, got {self.subject!r}; leave it out")
        return self
