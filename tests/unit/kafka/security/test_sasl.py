"""SASL exchanges against the RFCs' vectors and against kafka-python's implementation."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import ScramClient

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.security.sasl import Plain, Scram, mechanism

# RFC 7677, section 3
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", nonce=NONCE)


def test_rfc_7677_vector() -> None:
    exchange = scram()
    assert exchange.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.answer(SERVER_FIRST) == CLIENT_FINAL
    assert exchange.answer(SERVER_FINAL) is None


def test_a_server_that_does_not_know_the_user_is_not_trusted() -> None:
    exchange = scram()
    exchange.answer(SERVER_FIRST)
    forged = b"v=" + base64.b64encode(bytes(32))
    with pytest.raises(BrokerError, match="could not prove") as caught:
        exchange.answer(forged)
    assert caught.value.code == 58


@pytest.mark.parametrize("final", [b"", b"x=1", b"v=", b"v=!!!!", b"\xff\xfe"])
def test_a_final_message_without_signature_is_refused(final: bytes) -> None:
    exchange = scram()
    exchange.answer(SERVER_FIRST)
    with pytest.raises(BrokerError):
        exchange.answer(final)


def test_the_servers_error_is_named() -> None:
    exchange = scram()
    exchange.answer(SERVER_FIRST)
    with pytest.raises(BrokerError, match="unknown-user"):
        exchange.answer(b"e=unknown-user")


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (SERVER_FIRST.replace(b"r=rOpr", b"r=xxxx"), "nonce"),
        (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1"), "1 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=99999999"), "99999999 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=many"), "iterations"),
        (SERVER_FIRST.replace(b"s=W22Za", b"s=*"), "not a SCRAM message"),
        (b"\xff", "not a SCRAM message"),
    ],
)
def test_a_bad_first_message_is_refused(first: bytes, why: str) -> None:
    with pytest.raises(BrokerError, match=why):
        scram().answer(first)


def test_names_are_escaped() -> None:
    assert Scram("SCRAM-SHA-512", "a=b,c", "secret", nonce="n").first() == b"n,,n=a=3Db=2Cc,r=n"


def test_every_exchange_has_its_own_nonce() -> None:
    assert Scram("SCRAM-SHA-256", "u", "p").first() != Scram("SCRAM-SHA-256", "u", "p").first()


@settings(max_examples=20)
@given(
    st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]),
    st.text(st.characters(codec="utf-8", exclude_characters="=,"), min_size=1),
    st.text(),
)
def test_the_same_proof_as_kafka_python(name: str, user: str, password: str) -> None:
    theirs = ScramClient(user, password, name)
    ours = Scram(name, user, password, nonce=theirs.nonce.decode())
    assert ours.first() == theirs.first_message()
    server_first = b"r=" + theirs.nonce + b"more,s=" + base64.b64encode(os.urandom(16)) + b",i=4096"
    theirs.process_server_first_message(server_first)
    assert ours.answer(server_first) == theirs.final_message()
    assert ours.answer(b"v=" + base64.b64encode(theirs.server_signature)) is None


def test_proof_verifies_as_a_server_would() -> None:
    exchange = Scram("SCRAM-SHA-512", "mirror", "s3cret", nonce="abc")
    salt = b"0123456789abcdef"
    server_first = b"r=abcdef,s=" + base64.b64encode(salt) + b",i=4096"
    final = exchange.answer(server_first)
    assert final is not None
    without_proof, _, proof = final.rpartition(b",p=")
    client_key = hmac.digest(hashlib.pbkdf2_hmac("sha512", b"s3cret", salt, 4096), b"Client Key", "sha512")
    stored_key = hashlib.sha512(client_key).digest()
    signature = hmac.digest(stored_key, exchange.first()[3:] + b"," + server_first + b"," + without_proof, "sha512")
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(recovered).digest() == stored_key


def test_plain_is_one_message() -> None:
    exchange = mechanism("PLAIN", "mirror", "pässword")
    assert isinstance(exchange, Plain)
    assert exchange.first() == b"\0mirror\0p\xc3\xa4ssword"
    assert exchange.answer(b"") is None
