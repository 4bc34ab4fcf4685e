"""Settings of a Lustre client."""

from __future__ import annotations

import pytest

from stoker.doctor import lustre_params


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("osc.fs-OST0000-osc-ffff.max_rpcs_in_flight=8\nosc.fs-OST0001-osc-ffff.max_rpcs_in_flight=8\n", "info"),
        ("osc.fs-OST0000-osc-ffff.max_rpcs_in_flight=1\n", "warn"),
        ("llite.fs-ffff.statahead_max=0\n", "warn"),
        ("llite.fs-ffff.max_read_ahead_mb=64.00\n", "info"),
        ("llite.fs-ffff.max_read_ahead_mb=plenty\n", "unknown"),
    ],
)
def test_settings_that_keep_a_client_slow_are_warnings(text, severity):
    assert lustre_params.detect(text)
    (found,) = lustre_params.explain(text, "given")
    assert str(found.severity) == severity


def test_other_parameters_are_not_settings_of_this_kind():
    assert not lustre_params.detect("llite.fs-ffff.stats=\nosc.fs-OST0000-osc-ffff.rpc_stats=\n")
