"""Base classes of the models: one refuses unknown fields, one ignores them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class StoredModel(BaseModel):
    """A stored model. It ignores unknown fields, so that older processes can read the messages of newer ones."""

    model_config = ConfigDict(extra="ignore")
