"""What the kernel says is an error of stoker; so is a name that it cannot be told."""

import os
from pathlib import Path

import pytest

from stoker.errors import ConfigError
from stoker.io.os_errors import translating

HERE = Path("/here")


def test_a_name_that_the_kernel_cannot_be_told_is_a_wrong_value():
    with pytest.raises(ConfigError, match="cannot look: a name holds no zero byte"), translating("cannot look", HERE):
        os.mkdir("a\0b")  # noqa: PTH102
    with (
        pytest.raises(ConfigError, match="this process can write no such name in ascii") as caught,
        translating("cannot look", Path("/ä")),
    ):
        "/ä".encode("ascii")
    assert "PYTHONUTF8=1" in caught.value.hint
    assert caught.value.where.isascii()
    with pytest.raises(ValueError, match="another"), translating("cannot look", HERE):
        raise ValueError("another")
