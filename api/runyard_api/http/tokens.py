"""Stream tokens (A1). A browser's EventSource cannot send headers. It passes a token in the query instead.

A token is JSON with an HMAC. The key of the HMAC is derived from a secret of the server and from the purpose of the key. Nobody
can therefore make a token from an API key or from its row. A signature that the server made for another purpose is not valid
for a token. A token does not name the algorithm of its signature, because all tokens are signed with the same algorithm. A
token names its creator and the streams that it opens. The rights of the creator are looked up at each use. The caller requests
a lifetime (``TokenRequest`` in ``request_models.py``). ``token_lifetime`` in ``settings.py`` is the maximum.
``authentication.py`` makes the principal of a token. ``routes/route_access.py`` checks that the token opens the stream.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

from itsdangerous import BadData, URLSafeSerializer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from runyard.errors import InvalidInputError

from .field_types import checked_id

CLOCK_SKEW_SECONDS: Final = 30.0
"""Maximum seconds by which the clocks of servers may differ."""
MAX_TOKEN_CHARACTERS: Final = 16_000
"""Maximum number of characters of a token. Even a token with the longest ids is shorter."""
VERSION: Final = 1
PURPOSE: Final = b"runyard stream token"
_FORM: Final = re.compile(r"\.?[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]")
"""Pattern of a token. It accepts only one text for each signature. (Decoders of base64 accept several texts for the same
bytes.)"""

_Id = Annotated[str, AfterValidator(checked_id)]
_Text = Annotated[str, Field(max_length=1000)]


class _Claims(BaseModel):
    """The content of a token. ``run_id``: the run whose stream the token opens, or None for all streams of the thread.

    ``expires``: the expiry in milliseconds of Unix time.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: int = Field(ge=VERSION, le=VERSION)
    thread_id: _Id
    run_id: _Id | None
    expires: int = Field(ge=0, lt=2**53)


class ByKey(_Claims):
    """Claims of a token that was created with an API key. The row of the key has the tenant and the scopes."""

    by: Literal["key"] = "key"
    key_id: str = Field(pattern="^[0-9a-f]{16}$")


class ByHost(_Claims):
    """Claims of a token whose creator the host's own function authenticated. The signature proves the creator's identity."""

    by: Literal["host"] = "host"
    tenant: _Text
    id: _Text
    name: _Text | None


class ByAnyone(_Claims):
    """Claims of a token that was created while ``auth`` is off."""

    by: Literal["anyone"] = "anyone"


Claims: TypeAlias = ByKey | ByHost | ByAnyone
_CLAIMS: Final[TypeAdapter[Claims]] = TypeAdapter(Annotated[Claims, Field(discriminator="by")])


class Tokens:
    """Signs and reads tokens.

    ``secrets``: the first secret signs, and all secrets verify. ``lifetime``: maximum seconds for which a token is valid.
    """

    def __init__(self, secrets: Sequence[str], lifetime: float) -> None:
        how = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        self._serializer = URLSafeSerializer(list(reversed(secrets)), salt=PURPOSE, signer_kwargs=how)
        self._lifetime = lifetime

    def issue(self, claims: Claims) -> str:
        """Return a signed token. Raises InvalidInputError if an id is too long for a token."""
        text = self._serializer.dumps(claims.model_dump())
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise InvalidInputError("the ids are too long for a stream token")
        return text

    def read(self, text: str) -> Claims | None:
        """Return the claims of a token that one of the secrets signed, else None."""
        if len(text) > MAX_TOKEN_CHARACTERS or not _FORM.fullmatch(text):
            return None
        try:
            return _CLAIMS.validate_python(self._serializer.loads(text))
        except (BadData, ValidationError):
            return None

    def is_current(self, claims: Claims) -> bool:
        """Return True if ``claims`` have not expired, and expire at most ``lifetime`` seconds from now."""
        left = claims.expires / 1000 - time.time()
        return 0 < left <= self._lifetime + CLOCK_SKEW_SECONDS
