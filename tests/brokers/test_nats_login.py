"""Logs in to a real nats-server in every way there is, with and without TLS."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from salon_jobs.brokers.nats.jetstream import NatsPublisher
from salon_jobs.core.errors import NotReady
from tests.brokers.messages import make, publish
from tests.servers.nats import NatsBroker
from tests.servers.registry import on

Point = Callable[..., None]
pytestmark = on("nats")


@pytest.fixture
def point_at(configure: Callable[..., None]) -> Point:
    return partial(configure, MAX_RECONNECTS=0)


def publishes(destination: str) -> bool:
    with closing(NatsPublisher()) as publisher:
        publisher.ping()
        return publish(publisher, make(destination)) == [None]


@pytest.mark.parametrize(
    ("secret", "right", "wrong"),
    [
        ({"token": "s3cret"}, {"TOKEN": "s3cret"}, {"TOKEN": "guess"}),
        ({"user": "relay", "password": "s3cret"}, {"USER": ("relay", "s3cret")}, {"USER": ("relay", "guess")}),
    ],
    ids=["token", "user"],
)
def test_right_and_wrong_secrets(
    point_at: Point, secret: dict[str, str], right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    with NatsBroker(f"authorization: {json.dumps(secret)}", **secret) as broker:
        destination = broker.destination("orders")
        point_at(broker, **right)
        assert publishes(destination)
        for given in (wrong, {}):
            point_at(broker, **given)
            with pytest.raises(NotReady, match=r"NATS\.AUTHORIZATION.*Authorization Violation") as raised:
                publishes(destination)
            assert "guess" not in str(raised.value)


@pytest.mark.parametrize(
    ("secret", "given"),
    [
        ({"token": "s3cret"}, {"TOKEN": "s3cret\n"}),
        ({"user": "relay", "password": "s3cret"}, {"USER": ("relay", "s3cret\r\n")}),
    ],
    ids=["token", "user"],
)
def test_secret_from_a_file_logs_in(point_at: Point, secret: dict[str, str], given: dict[str, Any]) -> None:
    """The line break at its end is not part of it."""
    with NatsBroker(f"authorization: {json.dumps(secret)}", **secret) as broker:
        destination = broker.destination("orders")
        point_at(broker, **given)
        assert publishes(destination)


def test_credentials_file(point_at: Point, tmp_path: Path) -> None:
    """It is read when the server asks for a signature."""
    # An example of NATS's documentation, whose seed nobody needs.
    known = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    with NatsBroker(f'authorization {{ users: [{{ nkey: "{known}" }}] }}') as broker:
        point_at(broker, CREDENTIALS_FILE=str(tmp_path / "absent"))
        with pytest.raises(NotReady, match="absent"):
            publishes("rn::nats:::orders")


def certificate_in(folder: Path) -> tuple[str, str]:
    """Write a certificate that signed itself, an authority for servers and clients alike, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    uses = {"digital_signature": True, "key_cert_sign": True, "crl_sign": True}
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(x509.KeyUsage(**uses, **unused), critical=True)  # Python 3.13 wants it
    for extension in (
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
        own,
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own),
    ):
        builder = builder.add_extension(extension, critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "test.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "test.key").write_bytes(private)
    return str(folder / "test.pem"), str(folder / "test.key")


def test_tls_with_certificates_of_ones_own(point_at: Point, tmp_path: Path) -> None:
    certificate, key = certificate_in(tmp_path)
    context = ssl.create_default_context(cafile=certificate)
    context.load_cert_chain(certificate, key)
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{certificate}", verify: true }}'
    right = {"TLS_CA_FILE": certificate, "TLS_CERTIFICATE_FILES": (certificate, key)}
    with NatsBroker(tls, tls=context) as broker:
        destination = broker.destination("orders")
        point_at(broker, **right)
        assert publishes(destination)
        for change, error in (
            ({"TLS_CA_FILE": None}, "CERTIFICATE_VERIFY_FAILED"),
            ({"TLS_CERTIFICATE_FILES": None}, r"NATS\."),
            ({"TLS_CERTIFICATE_FILES": None, "TLS_CA_FILE": str(tmp_path / "absent")}, r"NATS\.TLS_FILES"),
        ):
            point_at(broker, **right | change)
            with pytest.raises(NotReady, match=error):
                publishes(destination)


def test_server_without_tls_is_told_no_secret(point_at: Point, tmp_path: Path) -> None:
    certificate, _ = certificate_in(tmp_path)
    with NatsBroker('authorization { token: "s3cret" }', token="s3cret") as broker:
        destination = broker.destination("orders")
        point_at(broker, TLS_CA_FILE=certificate, TOKEN="wrong")
        # A server that had seen the token would complain about it.
        with pytest.raises(NotReady, match="offers no TLS"):
            publishes(destination)
