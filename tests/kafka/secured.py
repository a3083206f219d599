"""A broker that asks everybody who he is and what he may: passwords over TLS, certificates, tokens.

Invariants:
- Nothing is allowed that no ACL allows; only the plain listener, the tests' own, may do anything.
- Keys and certificates are made anew for each broker, by openssl.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka.broker import Cluster, Listener, free_ports

PASSWORD = "open-sesame"
HOST = "127.0.0.1"

Right = tuple[str, str, str]
"""An operation, the kind of what it is on (topic, group), and its name."""

_LOGIN = "org.apache.kafka.common.security"


def openssl(*arguments: object) -> None:
    """Run openssl."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Certificates:
    """An authority of its own, and who it vouches for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.authority, self._key = folder / "ca.pem", folder / "ca.key"
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", 2, "-subj", "/CN=ca",
            "-keyout", self._key, "-out", self.authority,
        )  # fmt: skip

    def made(self, name: str) -> tuple[Path, Path]:
        """A certificate for a name at this host, and its key."""
        request, key, file = (self.folder / f"{name}.{kind}" for kind in ("csr", "key", "pem"))
        openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", key, "-out", request,
        )  # fmt: skip
        names = self.folder / f"{name}.ext"
        names.write_text(f"subjectAltName=IP:{HOST}\n")
        openssl(
            "x509", "-req", "-days", 2, "-in", request, "-CA", self.authority, "-CAkey", self._key,
            "-CAcreateserial", "-extfile", names, "-out", file,
        )  # fmt: skip
        return file, key


class Secured:
    """The broker, and how each principal connects to it."""

    def __init__(self, folder: Path, principals: Iterable[str]) -> None:
        self.cluster = Cluster(folder / "cluster")
        self.certificates = Certificates(folder / "certificates")
        names, ports = ("PASSWORDS", "CERTIFICATES", "TOKENS"), free_ports(3)
        protocols = ("SASL_SSL", "SSL", "SASL_PLAINTEXT")
        self.passwords, self.by_certificate, self.tokens = (
            Listener(*each) for each in zip(names, protocols, ports, strict=True)
        )
        known = list(principals)
        self.cluster.create(
            listeners=(self.passwords, self.by_certificate, self.tokens),
            settings=self._settings(known),
            formatted=[
                part
                for name in known
                for part in ("--add-scram", f"SCRAM-SHA-512=[name={name},password={PASSWORD}]")
            ],
        )

    def _settings(self, principals: list[str]) -> dict[str, object]:
        file, key = self.certificates.made("broker")
        store = self.certificates.folder / "broker.store.pem"
        store.write_bytes(key.read_bytes() + file.read_bytes())
        scram = f"{_LOGIN}.scram.ScramLoginModule required;"
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in principals)
        plain = f"{_LOGIN}.plain.PlainLoginModule required {users};"
        token = (
            f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule required"
            ' unsecuredLoginStringClaim_sub="broker";'
        )
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": "User:ANONYMOUS",  # the plain listener
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.authority,
            "listener.name.certificates.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "listener.name.passwords.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.passwords.plain.sasl.jaas.config": plain,
            "listener.name.passwords.scram-sha-512.sasl.jaas.config": scram,
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.oauthbearer.sasl.jaas.config": token,
        }

    def url(self, listener: Listener, prefix: str) -> str:
        """A log's address at a listener."""
        return f"kafka://{listener.server}/{prefix}"

    def password(
        self, name: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, str]:
        """How a principal connects with a password, over TLS."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "ssl.ca.location": str(self.certificates.authority),
        }

    def certificate(self, name: str) -> dict[str, str]:
        """How a principal connects with a certificate of its own."""
        file, key = self.certificates.made(name)
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.certificates.authority),
            "ssl.certificate.location": str(file),
            "ssl.key.location": str(key),
        }

    def admin(self) -> AdminClient:
        """A client that may do anything."""
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 2})

    def allow(self, name: str, rights: Iterable[Right]) -> None:
        """Give a principal rights."""
        client = self.admin()
        bindings = [AclBinding(*_bound(name, right)) for right in rights]
        if not bindings:
            return
        for future in client.create_acls(bindings).values():
            future.result()

    def forbid(self, name: str, rights: Iterable[Right]) -> None:
        """Take rights away from a principal."""
        client = self.admin()
        filters = [AclBindingFilter(*_bound(name, right)) for right in rights]
        if not filters:
            return
        for future in client.delete_acls(filters).values():
            assert len(future.result()) == 1, rights


def _bound(name: str, right: Right) -> Any:
    operation, kind, of = right
    words = {"DescribeConfigs": "DESCRIBE_CONFIGS"}
    return (
        ResourceType[kind.upper()], of, ResourcePatternType.LITERAL, f"User:{name}", "*",
        AclOperation[words.get(operation, operation.upper())], AclPermissionType.ALLOW,
    )  # fmt: skip


@contextmanager
def secured(folder: Path, principals: Iterable[str]) -> Iterator[Secured]:
    """Such a broker, running."""
    made = Secured(folder, principals)
    try:
        made.cluster.start()
        yield made
    finally:
        made.cluster.stop()


def settings_file(path: Path, settings: Mapping[str, str]) -> Path:
    """A client's settings as a file."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
