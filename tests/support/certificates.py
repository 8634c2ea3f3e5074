"""Certificates for servers and clients on 127.0.0.1, signed by an authority of the test."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority, a server and a client. ``other_host``: a certificate of the same authority for another host."""

    authority: Path
    server: Path
    client: Path
    other_host: Path

    @classmethod
    def make(cls, directory: Path) -> Self:
        """Write the files into ``directory``. The file of a certificate contains its key."""
        authority = trustme.CA()
        made = cls(*(directory / f"{name}.pem" for name in ("authority", "server", "client", "other_host")))
        authority.cert_pem.write_to_path(str(made.authority))
        for path, name in ((made.server, "127.0.0.1"), (made.client, "runyard"), (made.other_host, "elsewhere.test")):
            authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(path))
        return made

    def server_context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return the context of a server that requires certificates of its clients."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority))
        context.load_cert_chain(certificate or self.server)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.client)
        return context

    @property
    def redis_parameters(self) -> str:
        """The parameters of a URL of Redis."""
        return f"ssl_ca_certs={self.authority}&ssl_certfile={self.client}&ssl_keyfile={self.client}"
