"""Stream tokens: what a browser's EventSource, which cannot send headers, puts into the query (semantics: A1).

A token is JSON under an HMAC. The HMAC's key is derived from a secret of the server and from what it is for, so nobody who
holds an API key, or its row, can make one, and a secret that signs other things too signs no tokens. There is one algorithm,
and a token names none. It says who asked for it and what it opens; what that caller may do is looked up at each use.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

from itsdangerous import BadData, URLSafeSerializer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from runner.errors import InvalidInputError
from runner.models import check_id

SKEW: Final = 30.0
"""Seconds by which the clocks of servers may differ."""
LONGEST: Final = 16_000
"""Characters of a token; the longest ids take less."""
VERSION: Final = 1
PURPOSE: Final = b"runyard stream token"
_FORM: Final = re.compile(r"\.?[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
"""One text for each signature: the decoder of base64 takes several for the same bytes, also with characters that are none."""

_Id = Annotated[str, AfterValidator(lambda value: check_id(value, "id"))]
_Text = Annotated[str, Field(max_length=1000)]


class _Claims(BaseModel):
    """``thread_id``, ``run_id``: whose stream is opened; None: the thread's. ``expires``: milliseconds of Unix time."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: int = Field(ge=VERSION, le=VERSION)
    thread_id: _Id
    run_id: _Id | None
    expires: int = Field(ge=0, lt=2**53)


class ByKey(_Claims):
    """Asked for with an API key, whose row says the rest."""

    by: Literal["key"] = "key"
    key_id: str = Field(pattern="^[0-9a-f]{16}$")


class ByHost(_Claims):
    """Asked for by somebody whom the host's own scheme knows. There is no row: the signature vouches for who that is."""

    by: Literal["host"] = "host"
    tenant: _Text
    id: _Text
    name: _Text | None


class ByAnyone(_Claims):
    """Asked for where no keys are taken."""

    by: Literal["anyone"] = "anyone"


Claims: TypeAlias = ByKey | ByHost | ByAnyone
_CLAIMS: Final[TypeAdapter[Claims]] = TypeAdapter(Annotated[Claims, Field(discriminator="by")])


class Tokens:
    """Signs and reads tokens. ``secrets``: the first one signs, all of them verify. ``lifetime``: seconds that a token is good
    for at most."""

    def __init__(self, secrets: Sequence[str], lifetime: float) -> None:
        how = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        self._serializer = URLSafeSerializer(list(reversed(secrets)), salt=PURPOSE, signer_kwargs=how)
        self._lifetime = lifetime

    def issue(self, claims: Claims) -> str:
        """A token. Raises InvalidInputError for an id that is too long for one."""
        text = self._serializer.dumps(claims.model_dump())
        if len(text) > LONGEST:
            raise InvalidInputError("the ids are too long for a stream token")
        return text

    def read(self, text: str) -> Claims | None:
        """What this server, or another one with its secret, signed; None if nobody did."""
        if len(text) > LONGEST or not _FORM.fullmatch(text):
            return None
        try:
            return _CLAIMS.validate_python(self._serializer.loads(text))
        except (BadData, ValidationError):
            return None

    def is_current(self, claims: Claims) -> bool:
        """Whether they have not expired, and do so no later than they may."""
        left = claims.expires / 1000 - time.time()
        return 0 < left <= self._lifetime + SKEW
