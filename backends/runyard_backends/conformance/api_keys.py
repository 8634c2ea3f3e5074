"""API keys: a key is stored without its secret, belongs to one tenant, and is invalid after its revocation or expiry (A1)."""

from __future__ import annotations

import asyncio

import pytest

from runyard.domain.api_keys import MAX_ENDED_KEYS, MAX_VALID_KEYS, ApiKey, Secret
from runyard.errors import InvalidInputError

from .world import World, eventually

pytestmark = pytest.mark.asyncio


def fresh(name: str = "k", **fields: object) -> tuple[ApiKey, Secret]:
    secret = Secret.new()
    return ApiKey.model_validate({"key_id": secret.key_id, "name": name, **fields}), secret


class TestKeys:
    async def test_create_find_list_revoke(self, world: World) -> None:
        store = world.backend.keys
        (one, secret), (two, _) = fresh("one", scopes=("read", "admin")), fresh("two")
        made = await store.create_key(one, secret.digest)
        assert made.created_at is not None
        assert made == one.model_copy(update={"created_at": made.created_at})
        await store.create_key(two, b"d")
        assert await store.find_key(one.key_id) == (made, secret.digest)
        assert [key.name for key in await store.keys()] == ["one", "two"]
        assert await store.revoke_key(one.key_id) and not await store.revoke_key(one.key_id)
        assert not await store.revoke_key("unknown") and await store.find_key("unknown") is None
        assert await store.find_key(one.key_id) is None
        assert [key.revoked_at is None for key in await store.keys()] == [False, True]

    async def test_a_key_belongs_to_its_tenant(self, world: World) -> None:
        other = await world.factory(tenant="other")
        key, secret = fresh()
        await world.backend.keys.create_key(key, secret.digest)
        assert await other.keys.keys() == [] and not await other.keys.revoke_key(key.key_id)
        found = await other.keys.find_key(key.key_id)
        assert found is not None and found[0].tenant == ""
        await other.close()

    async def test_a_key_expires(self, world: World) -> None:
        key, secret = fresh()
        made = await world.backend.keys.create_key(key, secret.digest, lifetime=0.05)
        assert made.expires_at is not None

        async def gone() -> bool:
            return await world.backend.keys.find_key(key.key_id) is None

        await eventually(gone)
        assert len(await world.backend.keys.keys()) == 1

    async def test_keys_are_made_at_once(self, world: World) -> None:
        made = [fresh(str(n)) for n in range(8)]
        await asyncio.gather(*(world.backend.keys.create_key(key, secret.digest) for key, secret in made))
        assert {key.key_id for key in await world.backend.keys.keys()} == {key.key_id for key, _ in made}

    async def test_keys_of_a_tenant_are_bounded(self, world: World) -> None:
        """A2: A tenant has a maximum number of valid keys. A revoked key does not count, and makes room for a new key."""
        store = world.backend.keys
        first, _ = fresh()
        await store.create_key(first, b"d")
        await asyncio.gather(*(store.create_key(fresh()[0], b"d") for _ in range(MAX_VALID_KEYS - 1)))
        with pytest.raises(InvalidInputError, match="revoke one first"):
            await store.create_key(fresh()[0], b"d")
        await store.revoke_key(first.key_id)
        await store.create_key(fresh("last")[0], b"d")
        assert len(await store.keys()) == MAX_VALID_KEYS + 1

    async def test_ended_keys_of_a_list_are_bounded(self, world: World) -> None:
        """A2: The list has all valid keys, and only the newest of the revoked keys."""
        store = world.backend.keys
        valid, _ = fresh("valid")
        await store.create_key(valid, b"d")
        ended = [fresh(str(n))[0] for n in range(MAX_ENDED_KEYS + 2)]
        for start in range(0, len(ended), 50):
            part = ended[start : start + 50]
            for key in part:
                await store.create_key(key, b"d")
            await asyncio.gather(*(store.revoke_key(key.key_id) for key in part))
        assert [key.key_id for key in await store.keys()] == [key.key_id for key in (valid, *ended[2:])]
