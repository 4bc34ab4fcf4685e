"""How to reach an object store: what a user can set, and what the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.config import ObjectTier
from stoker.errors import CapacityError, ConfigError
from stoker.units import MIB, TIB, format_bytes, parse_bytes

PARTS_MAX: Final = 10_000  # of one upload
OBJECT_MAX_BYTES: Final = 5 * TIB
PART_BYTES: Final = 32 * MIB
PART_MIN_BYTES: Final = 8 * MIB
ATTEMPTS: Final = 6

_TRUE: Final = frozenset({"1", "true", "yes", "on", "requester"})
_FALSE: Final = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class ObjectOptions:
    """How to reach an object store. No secrets: credentials are looked up when they are needed.

    `endpoint`: URL of the server, None for AWS. `allow_http`: whether credentials may go over http://.
    `ca_bundle`: certificates to trust besides the system's; `any_certificate`: trust whatever the server shows.
    `anonymous`: sign nothing. `kms_key`: encrypt what is written with this key of the server's KMS.
    `stall_timeout_s`: nothing received for so long ends a read; `request_timeout_s`: ends any request.
    `attempts`: how often a request is made in all. An object written piece by piece takes parts of `part_bytes`, of
    which `parts_in_flight` are sent at once: memory of a writer is (parts_in_flight + 1) * part_bytes, and the largest
    object has 10,000 parts.
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    allow_http: bool = False
    ca_bundle: Path | None = None
    any_certificate: bool = False
    anonymous: bool = False
    kms_key: str | None = None
    requester_pays: bool = False
    connect_timeout_s: float = 5.0
    stall_timeout_s: float = 30.0
    request_timeout_s: float = 300.0
    attempts: int = ATTEMPTS
    part_bytes: int = PART_BYTES
    parts_in_flight: int = 3

    def __post_init__(self) -> None:
        if min(self.connect_timeout_s, self.stall_timeout_s, self.request_timeout_s) <= 0:
            raise ConfigError("a timeout of an object store must be more than 0 s")
        if self.attempts < 1 or self.parts_in_flight < 1:
            raise ConfigError(f"attempts {self.attempts} and parts in flight {self.parts_in_flight} must be 1 or more")
        if self.part_bytes < PART_MIN_BYTES:
            raise ConfigError(
                f"parts of {format_bytes(self.part_bytes)} are too small: {format_bytes(PART_MIN_BYTES)} or more"
            )
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"not the URL of a server: {self.endpoint!r}",
                "endpoint",
                "write it as https://host or http://host:port",
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], settings: ObjectTier | None = None) -> ObjectOptions:
        """What the usual AWS variables in `environ` say, and STOKER_S3_PART_BYTES; `settings` come first.

        Raises ConfigError.
        """
        said = settings or ObjectTier()
        return cls(
            endpoint=said.endpoint or _text(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
            region=said.region or _text(environ, "AWS_REGION", "AWS_DEFAULT_REGION"),
            profile=said.profile or _text(environ, "AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
            allow_http=said.allow_http or _flag(environ, "AWS_ALLOW_HTTP"),
            ca_bundle=_path(environ, "AWS_CA_BUNDLE"),
            any_certificate=_flag(environ, "AWS_ALLOW_INVALID_CERTIFICATES"),
            anonymous=_flag(environ, "AWS_SKIP_SIGNATURE"),
            kms_key=_text(environ, "AWS_SSE_KMS_KEY_ID"),
            requester_pays=_flag(environ, "AWS_REQUEST_PAYER"),
            attempts=_count(environ, "AWS_MAX_ATTEMPTS", ATTEMPTS),
            part_bytes=parse_bytes(environ.get("STOKER_S3_PART_BYTES") or PART_BYTES),
        )


def part_bytes_for(size_bytes: int, part_bytes: int) -> int:
    """The size of parts for an object of `size_bytes`: at least `part_bytes`, and so that 10,000 are enough.

    Whole MiB; what is written without its size gets `part_bytes`, rounded up. Raises CapacityError for more than an
    object can hold (5 TiB, as S3 documents it).
    """
    if size_bytes > OBJECT_MAX_BYTES:
        raise CapacityError(
            f"an object of {format_bytes(size_bytes)} is too large: at most {format_bytes(OBJECT_MAX_BYTES)}",
            hint="write it as several objects",
        )
    enough = -(-size_bytes // PARTS_MAX)
    return -(-max(part_bytes, enough) // MIB) * MIB


def _text(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name)
    return Path(text) if text else None


def _flag(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigError(f"not true or false: {environ[name]!r}", f"environment variable {name}", "give true or false")


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"not a count: {environ[name]!r}", f"environment variable {name}", "give a whole number of 1 or more"
        )
    return int(text)
