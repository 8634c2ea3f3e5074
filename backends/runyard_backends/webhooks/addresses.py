"""Check the address of a webhook. The address must be public or belong to an allowed network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_SPECIAL: Final[tuple[Network, ...]] = (
    *(IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24")),
    *(IPv6Network("64:ff9b:1::/48"), IPv6Network("fec0::/10"), IPv6Network("3fff::/20"), IPv6Network("5f00::/16")),
)
"""Networks for special purposes (by IANA's registries) that some versions of Python consider public."""


class ForbiddenAddressError(OSError):
    """The host has no address to which a webhook may be sent."""


def inner(address: Address) -> Address:
    """Return the IPv4 address inside a mapped, compatible, NAT64, 6to4 or Teredo IPv6 address. Return any other address
    unchanged."""
    if isinstance(address, IPv4Address):
        return address
    if any(address in network for network in (_NAT64, _COMPATIBLE)) and int(address) > 1:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None) or address


def permitted(address: Address, allowed: Collection[Network]) -> bool:
    """Return True if a webhook may be sent to ``address``. A webhook may be sent if the :func:`inner` address is public, or if
    one of ``allowed`` contains ``address`` or the inner address.
    """
    meant = inner(address)
    if any(each in network for network in allowed for each in (address, meant)):
        return True
    special = meant.is_multicast or meant.is_reserved or any(meant in network for network in _SPECIAL)
    return meant.is_global and not special


def may_be_permitted(host: str, allowed: Collection[Network]) -> bool:
    """Return False if ``host`` is ``localhost`` or an address (in any notation) that is not permitted. Return True for any
    other name, because :func:`resolve` checks the addresses of the name when a delivery is sent."""
    meant = _literal(host.removesuffix("."))
    return not meant or any(permitted(each, allowed) for each in meant)


def _literal(host: str) -> list[Address]:
    """Return the addresses of ``host`` if it is ``localhost`` or an address in any notation. For any other name, return an
    empty list."""
    if host.lower() == "localhost":
        return [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    with suppress(ValueError):
        return [ip_address(host.partition("%")[0])]
    with suppress(OSError):  # the notations that the resolver also reads: 127.1, 2130706433, 0x7f000001
        return [IPv4Address(socket.inet_aton(host))]
    return []


async def resolve(host: str, port: int, allowed: Collection[Network]) -> list[str]:
    """Return the permitted addresses of ``host``, in the resolver's order. Connect to one of these addresses, not to ``host``.
    The next lookup of ``host`` could return another address. Raises ForbiddenAddressError if no address is permitted. Raises
    OSError if ``host`` has no address."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(place[4][0]) for place in found))
    if fit := [address for address in addresses if permitted(ip_address(address.partition("%")[0]), allowed)]:
        return fit
    raise ForbiddenAddressError(refusal(host))


def refusal(host: str) -> str:
    """Return the error text for a host without a permitted address. Users who create webhooks read this text. The text must
    therefore not contain addresses of hosts inside the network.
    """
    return f"{host} has no public address; RUNYARD_WEBHOOK_ALLOW_PRIVATE can allow private networks"
