"""Which credentials are used: from the environment, a profile, a token file, a container or the instance."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from stoker.errors import ConfigError, UnsupportedError
from stoker.io.os_errors import translating

_ELSEWHERE: Final = {
    "sso_session": "single sign-on",
    "sso_start_url": "single sign-on",
    "credential_process": "credential_process",
    "source_profile": "source_profile",
    "credential_source": "credential_source",
}


class Credentials(StrEnum):
    """Where credentials come from."""

    ANONYMOUS = "anonymous"
    STATIC = "static"
    PROFILE = "profile"
    WEB_IDENTITY = "web identity"
    CONTAINER = "container"
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True)
class Profile:
    """What ~/.aws/config and ~/.aws/credentials say of one profile. Holds no secret: `keys` reads them when asked.

    `elsewhere` names the way of getting credentials that the profile asks for and stoker does not know, or is empty.
    """

    name: str
    files: tuple[Path, Path]
    has_keys: bool = False
    region: str | None = None
    endpoint: str | None = None
    ca_bundle: Path | None = None
    role_arn: str | None = None
    token_file: Path | None = None
    session_name: str | None = None
    elsewhere: str = ""

    def keys(self) -> tuple[str, str, str | None]:
        """Access key, secret key and session token, read now. Raises ConfigError if they are gone."""
        values = _values(self.files, self.name)
        try:
            return values["aws_access_key_id"], values["aws_secret_access_key"], values.get("aws_session_token")
        except KeyError as error:
            raise ConfigError(
                f"profile {self.name!r} has no {error.args[0]}", " and ".join(str(file) for file in self.files)
            ) from error


def read_profile(environ: Mapping[str, str], wanted: str | None) -> Profile:
    """The profile `wanted`, or `default`. Raises ConfigError if a wanted one is in neither file, or a file is none."""
    home = Path(environ["HOME"]) if environ.get("HOME") else None
    files = (
        _file(environ, "AWS_CONFIG_FILE", home, "config"),
        _file(environ, "AWS_SHARED_CREDENTIALS_FILE", home, "credentials"),
    )
    name = wanted or "default"
    values = _values(files, name)
    if wanted and not values:
        raise ConfigError(f"no profile {name!r}", " and ".join(str(file) for file in files), "check AWS_PROFILE")
    ca_bundle, token_file = values.get("ca_bundle"), values.get("web_identity_token_file")
    return Profile(
        name=name,
        files=files,
        has_keys="aws_access_key_id" in values,
        region=values.get("region"),
        endpoint=_service_endpoint(files, values) or values.get("endpoint_url"),
        ca_bundle=Path(ca_bundle) if ca_bundle else None,
        role_arn=values.get("role_arn"),
        token_file=Path(token_file) if token_file else None,
        session_name=values.get("role_session_name"),
        elsewhere=next((said for key, said in _ELSEWHERE.items() if key in values), ""),
    )


def choose_credentials(environ: Mapping[str, str], profile: Profile, *, profile_first: bool) -> Credentials:
    """Where credentials come from, in the usual order; `profile_first` when the profile was named by the caller.

    Raises UnsupportedError for a profile that asks for a way stoker does not know, ConfigError if there are none.
    """
    from_environ = "AWS_ACCESS_KEY_ID" in environ and "AWS_SECRET_ACCESS_KEY" in environ
    if from_environ and not profile_first:
        return Credentials.STATIC
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environ.get("AWS_ROLE_ARN") and not profile_first:
        return Credentials.WEB_IDENTITY
    if profile.token_file and profile.role_arn:
        return Credentials.WEB_IDENTITY
    if profile.elsewhere:
        raise UnsupportedError(
            f"profile {profile.name!r} gets its credentials by {profile.elsewhere}, which is not supported",
            str(profile.files[0]),
            f'put them into the environment: eval "$(aws configure export-credentials --profile {profile.name} '
            '--format env)"',
        )
    if profile.has_keys:
        return Credentials.PROFILE
    if environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return Credentials.CONTAINER
    if environ.get("AWS_EC2_METADATA_DISABLED", "").strip().lower() == "true":
        raise ConfigError(
            "no credentials for the object store",
            "environment, profile files, web identity, container (instance metadata is disabled)",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true for public data",
        )
    return Credentials.INSTANCE


def _file(environ: Mapping[str, str], name: str, home: Path | None, leaf: str) -> Path:
    text = environ.get(name)
    if text:
        return Path(text).expanduser()
    return home / ".aws" / leaf if home else Path("/nonexistent/.aws") / leaf


def _values(files: tuple[Path, Path], name: str) -> dict[str, str]:
    """The settings of a profile; those of the credentials file win."""
    config, credentials = (_parse(file) for file in files)
    values: dict[str, str] = {}
    for parser, section in (
        (config, "default" if name == "default" else f"profile {name}"),
        (credentials, name),
    ):
        if parser.has_section(section):
            values |= {key: value.strip() for key, value in parser.items(section)}
    return values


def _service_endpoint(files: tuple[Path, Path], values: Mapping[str, str]) -> str | None:
    """The endpoint of `[services NAME]`, under `s3 =`, if the profile names such services."""
    section = f"services {values.get('services', '')}"
    config = _parse(files[0])
    nested = config.get(section, "s3", fallback="") if config.has_section(section) else ""
    for line in nested.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "endpoint_url":
            return value.strip()
    return None


def _parse(file: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(default_section="")
    try:
        with translating("cannot read the profiles", file):
            text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return parser
    try:
        parser.read_string(text, str(file))
    except configparser.Error as error:
        raise ConfigError(f"not a file of profiles: {type(error).__name__}", str(file)) from error
    return parser
