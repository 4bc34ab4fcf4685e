"""The environment says how an object store is reached; a size says how large its parts must be."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import CapacityError, ConfigError
from stoker.store.object_options import OBJECT_MAX_BYTES, PART_MIN_BYTES, PARTS_MAX, ObjectOptions, part_bytes_for
from stoker.units import GIB, MIB


def test_an_empty_environment_is_the_default():
    assert ObjectOptions.from_environ({}) == ObjectOptions()


def test_the_usual_variables_are_understood():
    options = ObjectOptions.from_environ(
        {
            "AWS_ENDPOINT_URL": "http://host:9000",
            "AWS_REGION": "eu-west-1",
            "AWS_PROFILE": "team",
            "AWS_ALLOW_HTTP": "true",
            "AWS_CA_BUNDLE": "/etc/ca.pem",
            "AWS_ALLOW_INVALID_CERTIFICATES": "1",
            "AWS_SKIP_SIGNATURE": "TRUE",
            "AWS_SSE_KMS_KEY_ID": "alias/key",
            "AWS_REQUEST_PAYER": "requester",
            "AWS_MAX_ATTEMPTS": "3",
            "STOKER_S3_PART_BYTES": "64MiB",
        }
    )
    assert options == ObjectOptions(
        endpoint="http://host:9000",
        region="eu-west-1",
        profile="team",
        allow_http=True,
        ca_bundle=Path("/etc/ca.pem"),
        any_certificate=True,
        anonymous=True,
        kms_key="alias/key",
        requester_pays=True,
        attempts=3,
        part_bytes=64 * MIB,
    )


def test_the_variable_of_the_service_wins_over_the_general_one():
    environ = {"AWS_ENDPOINT_URL": "https://all", "AWS_ENDPOINT_URL_S3": "https://s3", "AWS_DEFAULT_REGION": "a"}
    options = ObjectOptions.from_environ(environ)
    assert (options.endpoint, options.region) == ("https://s3", "a")
    assert ObjectOptions.from_environ({"AWS_REGION": "b", **environ}).region == "b"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ALLOW_HTTP", "perhaps"),
        ("AWS_MAX_ATTEMPTS", "0"),
        ("AWS_MAX_ATTEMPTS", "many"),
        ("AWS_ENDPOINT_URL", "host:9000"),
        ("STOKER_S3_PART_BYTES", "1MiB"),
        ("STOKER_S3_PART_BYTES", "large"),
    ],
)
def test_a_value_that_is_none_is_refused_with_what_it_is(name, value):
    with pytest.raises(ConfigError) as caught:
        ObjectOptions.from_environ({name: value})
    assert value in str(caught.value) or "1.0 MiB" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"parts_in_flight": 0}, {"stall_timeout_s": 0.0}])
def test_options_that_cannot_work_are_refused(wrong):
    with pytest.raises(ConfigError):
        ObjectOptions(**wrong)


@given(st.integers(0, OBJECT_MAX_BYTES), st.integers(PART_MIN_BYTES, 2 * GIB))
def test_ten_thousand_parts_are_enough_for_any_object(size, part_bytes):
    chosen = part_bytes_for(size, part_bytes)
    assert chosen * PARTS_MAX >= size
    assert chosen % MIB == 0
    assert chosen >= part_bytes > 5 * MIB  # what S3 takes at least
    assert chosen - MIB < part_bytes or (chosen - MIB) * PARTS_MAX < size  # and no larger than it must be


def test_what_no_object_can_hold_is_refused():
    with pytest.raises(CapacityError, match=r"5\.0 TiB"):
        part_bytes_for(OBJECT_MAX_BYTES + 1, PART_MIN_BYTES)
