"""The server's certificate, read again when its files change."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import grpc
import structlog

from respsd.errors import SettingsError
from respsd.settings_access import TlsSettings

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int, int, int], ...]
"""Change time, inode and size of each file."""


class TlsFiles:
    """Certificate, key and the authorities of clients.

    New connections get the newest good certificate: the files are looked at whenever a client connects, so a renewed
    certificate needs no reload; files that are wrong change nothing and are logged.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files; raises SettingsError naming the file and the fault."""
        self._files = (certificate, key, *((client_ca,) if client_ca else ()))
        self._mutual = client_ca is not None
        self._lock = threading.Lock()  # handshakes run on the library's threads
        self._stamp = _stamp(self._files)
        self._first = _read(self._files)
        self._fault: str | None = None
        """Of the files as they are now, where they cannot be used; logged once."""
        self._pending: grpc.ServerCertificateConfiguration | None = None

    @classmethod
    def of(cls, settings: TlsSettings) -> TlsFiles:
        """The files that the settings name, which must name a certificate."""
        if settings.certificate is None or settings.key is None:
            raise SettingsError("tls.certificate: give certificate and key")
        return cls(settings.certificate, settings.key, settings.client_ca)

    def credentials(self) -> grpc.ServerCredentials:
        """What the server listens with; with `client_ca` every client must show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._changed,  # type: ignore[arg-type]  # the stubs lack None, which leaves all as it is
            require_client_authentication=self._mutual,
        )

    def reload(self, certificate: Path, key: Path) -> None:
        """Read the files now, from other places where they moved; raises SettingsError and then keeps the old ones."""
        files = (certificate, key, *self._files[2:])
        stamp, configuration = _stamp(files), _read(files)
        with self._lock:
            self._files, self._stamp, self._pending = files, stamp, configuration

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The configuration from now on, None where it stays; called for every new connection."""
        with self._lock:
            try:
                stamp = _stamp(self._files)
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._pending = _read(self._files)
                    self._fault = None
                    log.info("certificate_reloaded", file=str(self._files[0]))
            except SettingsError as error:
                if str(error) != self._fault:
                    self._fault = str(error)
                    log.error("certificate_refused", fault=self._fault)
            pending, self._pending = self._pending, None
            return pending


def _stamp(files: tuple[Path, ...]) -> Stamp:
    try:
        stats = [file.stat() for file in files]
    except OSError as error:
        raise SettingsError(f"tls: {error.filename} cannot be read: {error.strerror}") from error
    return tuple((stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size) for stat in stats)  # ctime: chmod


def _read(files: tuple[Path, ...]) -> grpc.ServerCertificateConfiguration:
    """The library's configuration; the files are checked first, since the library only fails handshakes."""
    certificate, key, *rest = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"tls: {certificate} and {key} are no certificate and its key: {error}") from error
    except OSError as error:
        raise SettingsError(f"tls: {certificate} or {key} cannot be read: {error.strerror}") from error
    authorities = None
    for file in rest:
        try:
            context.load_verify_locations(file)
            authorities = file.read_bytes()
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(f"tls.client_ca: {file} holds no authorities: {error}") from error
    return grpc.ssl_server_certificate_configuration(
        [(key.read_bytes(), certificate.read_bytes())], root_certificates=authorities
    )


def _no_password() -> str:
    raise ValueError("the key needs a password; give one that does not")
