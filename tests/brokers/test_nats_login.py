"""Logs in to a real nats-server in every way there is, with and without TLS."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from salon_jobs.brokers.nats.publisher import NatsPublisher
from salon_jobs.core.errors import NotReady
from tests.brokers.messages import make, publish
from tests.servers.nats import NatsBroker

Point = Callable[..., None]
pytestmark = pytest.mark.parametrize("running", ["nats"], indirect=True)


@pytest.fixture
def point_at(configure: Callable[..., None]) -> Point:
    return partial(configure, MAX_RECONNECTS=0)


@contextmanager
def serving(configuration: str, **connect: Any) -> Iterator[NatsBroker]:
    broker = NatsBroker(configuration, **connect)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def publishes(destination: str) -> bool:
    publisher = NatsPublisher()
    try:
        publisher.ping()
        return publish(publisher, make(destination)) == [None]
    finally:
        publisher.close()


@pytest.mark.parametrize(
    ("configuration", "connect", "right", "wrong"),
    [
        ('authorization { token: "s3cret" }', {"token": "s3cret"}, {"TOKEN": "s3cret"}, {"TOKEN": "guess"}),
        (
            'authorization { user: "relay", password: "s3cret" }',
            {"user": "relay", "password": "s3cret"},
            {"USER": ("relay", "s3cret")},
            {"USER": ("relay", "guess")},
        ),
        ('authorization { token: "s3cret" }', {"token": "s3cret"}, {"TOKEN": "s3cret"}, {}),
    ],
    ids=["token", "user", "nothing given"],
)
def test_the_right_secret_opens_and_a_wrong_one_is_told_clearly(
    point_at: Point, configuration: str, connect: dict[str, str], right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    with serving(configuration, **connect) as broker:
        destination = broker.destination("orders")
        point_at(broker, **right)
        assert publishes(destination)
        point_at(broker, **wrong)
        with pytest.raises(NotReady, match=r"NATS\.AUTHORIZATION.*Authorization Violation") as raised:
            publishes(destination)
        assert "guess" not in str(raised.value)


def test_a_credentials_file(point_at: Point, tmp_path: Path) -> None:
    operator, account, user, system = (nkeys_pair(kind) for kind in (_OPERATOR, _ACCOUNT, _USER, _ACCOUNT))
    names = "mem_storage disk_storage streams consumer conn subs data payload imports exports leaf"
    limits = {**dict.fromkeys(names.split(), -1), "wildcards": True}
    operator_jwt = token(operator, operator, {"type": "operator", "system_account": name(system)})
    account_jwt = token(operator, account, {"type": "account", "limits": limits})
    system_jwt = token(operator, system, {"type": "account", "limits": {**limits, "mem_storage": 0, "disk_storage": 0}})
    credentials = tmp_path / "user.creds"
    user_jwt = token(account, user, {"type": "user", "subs": -1, "data": -1, "payload": -1})
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    configuration = (
        f"operator: {operator_jwt}\nsystem_account: {name(system)}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {name(account)}: {account_jwt}, {name(system)}: {system_jwt} }}\n"
    )
    with serving(configuration, user_credentials=str(credentials)) as broker:
        destination = broker.destination("orders")
        point_at(broker, CREDENTIALS_FILE=str(credentials))
        assert publishes(destination)
        point_at(broker, CREDENTIALS_FILE=str(tmp_path / "absent"))
        with pytest.raises(NotReady, match="absent"):
            publishes(destination)


class Certificates:
    """Is a self-made authority with a server's and a client's certificate, as files."""

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.ca = self._write("ca.pem", self._certificate(self._name, self._key, ca=True))
        self.server = self._issue("server")
        self.client = self._issue("client")

    def _issue(self, who: str) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]), key, ca=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._write(f"{who}.pem", certificate), self._write(f"{who}.key", private)

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        authority = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(_usage(ca=ca), critical=True)  # Python 3.13 verifies none without it
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
        )
        if not ca:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, content: bytes) -> str:
        (self._folder / name).write_bytes(content)
        return str(self._folder / name)


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def test_tls_with_an_authority_and_a_client_certificate_of_ones_own(point_at: Point, tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    certificate, key = own.server
    context = ssl.create_default_context(cafile=own.ca)
    context.load_cert_chain(*own.client)
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{own.ca}", verify: true }}'
    with serving(tls, tls=context) as broker:
        destination = broker.destination("orders")
        with_certificate = {"TLS_CERTIFICATE_FILES": own.client}
        point_at(broker, TLS_CA_FILE=own.ca, **with_certificate)
        assert publishes(destination)
        point_at(broker, **with_certificate)
        with pytest.raises(NotReady, match="CERTIFICATE_VERIFY_FAILED"):
            publishes(destination)
        point_at(broker, TLS_CA_FILE=own.ca)
        with pytest.raises(NotReady, match=r"NATS\."):
            publishes(destination)
        point_at(broker, TLS_CA_FILE=str(tmp_path / "absent"))
        with pytest.raises(NotReady, match=r"NATS\.TLS_FILES"):
            publishes(destination)


def test_a_server_without_tls_is_refused_before_it_is_told_a_secret(point_at: Point, tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    with serving('authorization { token: "s3cret" }', token="s3cret") as broker:
        destination = broker.destination("orders")
        point_at(broker, TLS_CA_FILE=own.ca, TOKEN="wrong")
        # A server that had seen the token would complain about it.
        with pytest.raises(NotReady, match="offers no TLS"):
            publishes(destination)
    with serving("") as broker:
        point_at(broker, TLS_CA_FILE=own.ca)
        with pytest.raises(NotReady, match="offers no TLS"):
            publishes("rn::nats:::orders")


_OPERATOR, _ACCOUNT, _USER = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)


def nkeys_pair(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(uuid4().bytes + uuid4().bytes, kind))


def name(pair: nkeys.KeyPair) -> str:
    return pair.public_key.decode()


def token(signer: nkeys.KeyPair, subject: nkeys.KeyPair, claims: dict[str, Any]) -> str:
    """Write a JWT of NATS, version 2."""

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    body = {
        "jti": uuid4().hex,
        "iat": int(time.time()),
        "iss": name(signer),
        "sub": name(subject),
        "name": "test",
        "nats": {"version": 2, **claims},
    }
    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    signed = f"{head}.{part(json.dumps(body).encode())}"
    return f"{signed}.{part(signer.sign(signed.encode()))}"
