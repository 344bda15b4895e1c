"""Certificates that servers sign themselves."""

from __future__ import annotations

import ssl
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def self_signed_tls(folder: Path) -> ssl.SSLContext:
    """TLS with a certificate that no one vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed_files(folder))
    return context


def self_signed_files(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, as files; good for who is told to trust the first."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, datetime(2020, 1, 1), datetime(2120, 1, 1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
    builder = builder.add_extension(x509.BasicConstraints(True, None), True)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    files = folder / "server.pem", folder / "server.key"
    files[0].write_bytes(certificate.public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return files
