"""The base class of the models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A model that refuses unknown fields. Readers of stored data validate with ``extra="ignore"``.

    Processes of an older version can therefore read the data that processes of a newer version stored.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
