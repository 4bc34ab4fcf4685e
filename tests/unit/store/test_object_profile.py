"""Profiles are read as other tools write them; credentials are taken from the usual places in the usual order."""

import pytest

from stoker.errors import ConfigError, StoreError, UnsupportedError
from stoker.store.object_profile import Credentials, Profile, choose_credentials, read_profile

CONFIG = """
[default]
region = us-west-2

[profile team]
region = eu-central-1
services = lab
ca_bundle = /etc/team.pem

[services lab]
s3 =
  endpoint_url = https://s3.lab
  addressing_style = path

[profile plain]
endpoint_url = https://everything.lab

[profile robot]
role_arn = arn:aws:iam::1:role/r
web_identity_token_file = /run/token
role_session_name = me

[profile sso]
sso_session = corp
"""
CREDENTIALS = """
[default]
aws_access_key_id = D
aws_secret_access_key = ds

[team]
aws_access_key_id = T
aws_secret_access_key = ts%x
aws_session_token = token-tt
"""
NOTHING = Profile("default", ())


@pytest.fixture
def environ(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text(CONFIG)
    (tmp_path / ".aws/credentials").write_text(CREDENTIALS)
    return {"HOME": str(tmp_path)}


def test_a_profile_is_put_together_from_both_files(environ):
    team = read_profile(environ, "team")
    assert (team.region, team.endpoint, str(team.ca_bundle)) == ("eu-central-1", "https://s3.lab", "/etc/team.pem")
    assert team.has_keys
    assert team.keys() == ("T", "ts%x", "token-tt")
    assert read_profile(environ, "plain").endpoint == "https://everything.lab"
    default = read_profile(environ, None)
    assert (default.region, default.keys()) == ("us-west-2", ("D", "ds", None))


def test_keys_are_read_again_when_they_are_asked_for(environ, tmp_path):
    team = read_profile(environ, "team")
    (tmp_path / ".aws/credentials").write_text(CREDENTIALS.replace("= T", "= T2"))
    assert team.keys()[0] == "T2"
    (tmp_path / ".aws/credentials").write_text("")
    with pytest.raises(ConfigError, match="aws_access_key_id"):
        team.keys()


def test_the_files_may_lie_elsewhere(environ, tmp_path):
    (tmp_path / "other").write_text("[default]\naws_access_key_id = O\naws_secret_access_key = s\n")
    moved = environ | {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "other"), "AWS_CONFIG_FILE": "/nonexistent"}
    assert read_profile(moved, None).keys() == ("O", "s", None)


def test_no_files_are_an_empty_profile(tmp_path):
    for environ in ({"HOME": str(tmp_path)}, {}):
        profile = read_profile(environ, None)
        assert not profile.has_keys
        assert profile.region is None


def test_a_profile_that_is_not_there_is_an_error_that_names_the_files(environ, tmp_path):
    with pytest.raises(ConfigError, match="no profile 'nobody'") as caught:
        read_profile(environ, "nobody")
    assert str(tmp_path / ".aws/config") in caught.value.where


def test_a_file_that_is_none_is_an_error_that_names_it_and_not_what_is_in_it(environ, tmp_path):
    (tmp_path / ".aws/credentials").write_text("aws_secret_access_key = hush\n")
    with pytest.raises(ConfigError, match="not a file of profiles") as caught:
        read_profile(environ, None)
    assert "hush" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(environ, tmp_path):
    (tmp_path / ".aws/config").unlink()
    (tmp_path / ".aws/config").mkdir()
    with pytest.raises(StoreError, match="profiles") as caught:
        read_profile(environ, None)
    assert str(tmp_path / ".aws/config") in caught.value.where


def test_credentials_are_looked_for_in_the_usual_order(environ):
    default = read_profile(environ, None)
    static = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "r"}
    container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1/c"}
    for given, profile, expected in (
        (static | web | container, default, Credentials.STATIC),
        (web | container, default, Credentials.WEB_IDENTITY),
        (container, read_profile(environ, "robot"), Credentials.WEB_IDENTITY),
        (container, default, Credentials.PROFILE),
        (container, NOTHING, Credentials.CONTAINER),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/c"}, NOTHING, Credentials.CONTAINER),
        ({}, NOTHING, Credentials.INSTANCE),
        ({"AWS_ACCESS_KEY_ID": "half"}, default, Credentials.PROFILE),
    ):
        assert choose_credentials(given, profile, profile_first=False) is expected
    assert choose_credentials(static | web, default, profile_first=True) is Credentials.PROFILE


def test_without_any_credentials_and_without_an_instance_it_says_what_to_set():
    with pytest.raises(ConfigError, match="no credentials") as caught:
        choose_credentials({"AWS_EC2_METADATA_DISABLED": "TRUE"}, NOTHING, profile_first=False)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_a_way_to_credentials_that_is_not_supported_is_said_by_name(environ):
    with pytest.raises(UnsupportedError, match="single sign-on") as caught:
        choose_credentials({}, read_profile(environ, "sso"), profile_first=False)
    assert "export-credentials" in caught.value.hint


def test_a_profile_does_not_show_its_secrets(environ):
    team = read_profile(environ, "team")
    for secret in ("ts%x", "token-tt"):
        assert secret not in repr(team)
