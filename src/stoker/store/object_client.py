"""The client of an object store: obstore, made at first use. The only importer of obstore.

obstore runs its requests in threads of its own. They do not exist in a forked child, where any use would wait for
ever, also of a new client: so a child of a process that has used obstore is told so at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import ConfigError, StokerError, UnsupportedError
from stoker.io.os_errors import translating as translating_os
from stoker.store.object_errors import translate
from stoker.store.object_options import ObjectOptions
from stoker.store.object_profile import Credentials, Profile, choose_credentials, read_profile

if TYPE_CHECKING:
    from obstore import GetOptions as GetOptions  # noqa: PLC0414  shown to the modules that use the client
    from obstore import GetResult as GetResult  # noqa: PLC0414  same
    from obstore import ObjectMeta as ObjectMeta  # noqa: PLC0414  same
    from obstore import WritableFile as WritableFile  # noqa: PLC0414  same
    from obstore.store import ClientConfig, S3Config, S3Store

_PROFILE_LIFETIME: Final = timedelta(minutes=10)  # then the files are read again: other tools renew what is in them
_DEFAULT_REGION: Final = "us-east-1"

_used_in: int | None = None  # the process whose threads obstore has


class ObjectClient:
    """Makes the clients of a bucket: two that make each request once, and one that sends a part of an upload again.

    `environ`: what the options, the profile and the credentials are looked up in. Making one opens nothing.
    Raises ConfigError if credentials would go over http:// without `allow_http`.
    """

    def __init__(self, bucket: str, options: ObjectOptions, environ: Mapping[str, str]) -> None:
        self._bucket = bucket
        self._environ = dict(environ)
        self._options = options
        self._named_by_caller = options.profile is not None and options.profile not in (
            environ.get("AWS_PROFILE"),
            environ.get("AWS_DEFAULT_PROFILE"),
        )
        self._profile = read_profile(environ, options.profile)
        self._endpoint = options.endpoint or self._profile.endpoint
        self._requests: S3Store | None = None
        self._puts: S3Store | None = None
        self._uploads: S3Store | None = None
        self._check_http()

    @property
    def endpoint(self) -> str:
        """Where requests go, for messages."""
        return self._endpoint or "AWS"

    def requests(self) -> S3Store:
        """The client that makes each request once. Raises UnsupportedError in a forked child."""
        check_process()
        if self._requests is None:
            self._requests = self._make(retries=0, stall_timeout_s=self._options.stall_timeout_s)
        return self._requests

    def puts(self) -> S3Store:
        """The client for large objects written in one request, made once. Raises UnsupportedError in a forked child.

        Without a limit on how long nothing is received: nothing is, while the bytes are on their way.
        """
        check_process()
        if self._puts is None:
            self._puts = self._make(retries=0, stall_timeout_s=None)
        return self._puts

    def uploads(self) -> S3Store:
        """The client for objects written in parts: only it can send a part again. Raises UnsupportedError.

        Without a limit on how long nothing is received: nothing is, while a part is on its way.
        """
        check_process()
        if self._uploads is None:
            self._uploads = self._make(retries=self._options.attempts - 1, stall_timeout_s=None)
        return self._uploads

    def open_writer(self, name: str, part_bytes: int, parts_in_flight: int, attributes: dict[str, str]) -> WritableFile:
        """A file whose bytes go to object `name` in parts of `part_bytes`, with `attributes` as metadata.

        The upload begins with the byte that makes the first part whole.
        """
        store = self.uploads()
        import obstore  # noqa: PLC0415  loaded at first use: most runs never need it

        return obstore.open_writer(
            store, name, attributes=attributes, buffer_size=part_bytes, max_concurrency=parts_in_flight
        )

    def _check_http(self) -> None:
        options = self._options
        if self._endpoint is None or not self._endpoint.startswith("http://"):
            return
        if not options.allow_http and not options.anonymous:
            raise ConfigError(
                "credentials would be sent over http://, where anyone on the way can use them",
                self._endpoint,
                "use https://, or set AWS_ALLOW_HTTP=true if the network is trusted",
            )

    def _make(self, *, retries: int, stall_timeout_s: float | None) -> S3Store:
        """A client. Raises ConfigError, UnsupportedError for settings that cannot work."""
        global _used_in  # noqa: PLW0603  obstore's threads are of the process too
        options, config = self._options, self._config()
        client_options: ClientConfig = {
            "allow_http": self._endpoint is not None and self._endpoint.startswith("http://"),
            "allow_invalid_certificates": options.any_certificate,
            "connect_timeout": timedelta(seconds=options.connect_timeout_s),
            "timeout": timedelta(seconds=options.request_timeout_s),
        }
        if stall_timeout_s is not None:
            client_options["read_timeout"] = timedelta(seconds=stall_timeout_s)
        bundle = options.ca_bundle or self._profile.ca_bundle
        if bundle is not None:
            with translating_os("cannot read the certificates", bundle):
                client_options["root_certificate"] = bundle.read_bytes()
        provider = self._provider(config)
        with translating("cannot make a client", self.endpoint):
            store = _store_class()(
                self._bucket,
                config=config,
                client_options=client_options,
                retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=options.request_timeout_s)},
                credential_provider=provider,
            )
        _used_in = os.getpid()
        return store

    def _config(self) -> S3Config:
        options = self._options
        config: S3Config = {
            "region": options.region or self._profile.region or _DEFAULT_REGION,
            "disable_bulk_delete": True,
        }
        if self._endpoint is not None:
            config["aws_endpoint_url_s3"] = self._endpoint
        if options.kms_key is not None:
            config["server_side_encryption"] = self._environ.get("AWS_SERVER_SIDE_ENCRYPTION") or "aws:kms"
            config["sse_kms_key_id"] = options.kms_key
        if options.requester_pays:
            config["request_payer"] = True
        if options.anonymous:
            config["skip_signature"] = True
        return config

    def _provider(self, config: S3Config) -> Any:
        """What gives the credentials, or None where the client finds them itself; then `config` says how."""
        if self._options.anonymous:
            return None
        profile = self._profile
        chosen = choose_credentials(self._environ, profile, profile_first=self._named_by_caller)
        if chosen is Credentials.PROFILE:
            return _ProfileCredentials(profile)
        if chosen is Credentials.STATIC:
            config["access_key_id"] = self._environ["AWS_ACCESS_KEY_ID"]
            config["secret_access_key"] = self._environ["AWS_SECRET_ACCESS_KEY"]
            token = self._environ.get("AWS_SESSION_TOKEN")
            if token:
                config["session_token"] = token
        elif chosen is Credentials.WEB_IDENTITY and profile.token_file and profile.role_arn:
            config["role_arn"] = profile.role_arn
            config["role_session_name"] = profile.session_name or "stoker"
            config["web_identity_token_file"] = str(profile.token_file)
        return None


class _ProfileCredentials:
    """Called by the client when it needs credentials, and again when they are ten minutes old."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def __call__(self) -> dict[str, Any]:
        access, secret, token = self._profile.keys()
        until = datetime.now(UTC) + _PROFILE_LIFETIME
        return {"access_key_id": access, "secret_access_key": secret, "token": token, "expires_at": until}


def check_process() -> None:
    """Raise UnsupportedError in a forked child of a process that has used obstore: it would hang."""
    if _used_in is not None and _used_in != os.getpid():
        raise UnsupportedError(
            "the object store was used before this process was forked, and cannot be used in the child",
            f"process {os.getpid()}, forked from {_used_in} or a child of it",
            "start worker processes with spawn or forkserver, or use the object store only in the children",
        )


@contextmanager
def translating(doing: str, where: str) -> Iterator[None]:
    """Raise what `translate` makes of an error of the client inside the block; errors of stoker pass."""
    try:
        yield
    except StokerError:
        raise
    except _errors() as error:
        raise translate(error, doing, where) from error


def _store_class() -> type[S3Store]:
    # Not `from obstore.store`: while another thread imports obstore, that is there sooner than what its methods call.
    from obstore import store  # noqa: PLC0415  loaded at first use: most runs never need it

    return store.S3Store


def _errors() -> tuple[type[Exception], ...]:
    from obstore.exceptions import BaseError  # noqa: PLC0415  loaded at first use: most runs never need it

    return (BaseError, OSError, ValueError)
