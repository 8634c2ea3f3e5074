from runyard import Client

client: Client


class User:
    id: str
    name: str
    tenant: str


async def user_of(authorization: str | None) -> User | None: ...
