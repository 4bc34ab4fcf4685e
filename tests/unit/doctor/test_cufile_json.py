"""cufile.json: comments, trailing commas, aliases, environment."""

from __future__ import annotations

import pytest

from stoker.doctor.cufile_json import detect, effective, judge

LOOSE = """{
  // a comment with "quotes", and a , comma
  "properties": { "use_compat_mode": false, /* here
     too */ "rdma_dev_addr_list": ["192.0.2.1", ], "note": "no // comment, ]", },
  "fs": {"lustre": {"posix_gds_min_kb": 4}},
}"""


def test_comments_commas_and_old_names_are_read():
    config = effective(LOOSE, "x", {})
    assert config.error is None
    assert config.flag("properties.allow_compat_mode") is False
    assert config.words("properties.rdma_dev_addr_list") == ("192.0.2.1",)
    assert config.values["properties.note"] == "no // comment, ]"
    assert detect(LOOSE)


def test_the_environment_goes_before_the_file():
    config = effective(LOOSE, "x", {"CUFILE_ALLOW_COMPAT_MODE": "true", "CUFILE_STATS_LEVEL": "3"})
    assert config.flag("properties.allow_compat_mode") is True
    assert config.number("profile.cufile_stats") == 3
    assert config.line("properties.allow_compat_mode")[0].source == "environment"


def test_without_a_file_nothing_is_assumed():
    config = effective(None, "x", {})
    assert config.flag("properties.allow_compat_mode") is None
    assert judge(config) == []


def test_a_broken_file_is_unknown_and_quotes_the_line(said):
    found = judge(effective('{\n"properties": {"allow_compat_mode" true}\n}', "x", {}))
    assert said(found) == {("gds-config-broken", "unknown")}
    assert "allow_compat_mode" in found[0].evidence[0].line


@pytest.mark.parametrize(
    ("text", "finding", "severity"),
    [
        ('{"properties": {"force_compat_mode": true}}', "gds-compat-forced", "fail"),
        ('{"properties": {"allow_compat_mode": false}}', "gds-compat-not-allowed", "info"),
        ('{"properties": {"max_direct_io_size_kb": 128}}', "gds-chunk-small", "warn"),
        (
            '{"properties": {"use_pci_p2pdma": true}, "block": {"nvme": {"use_pci_p2pdma": false}}}',
            "gds-p2pdma-half-on",
            "warn",
        ),
        ('{"block": {"nvme": {"use_pci_p2pdma": true}}}', "gds-p2pdma-half-on", "warn"),
        ('{"denylist": {"mounts": ["/x"]}}', "gds-denied-by-config", "warn"),
        ('{"fs": {"lustre": {"posix_gds_min_kb": 4}}}', "gds-posix-threshold", "warn"),
        ('{"logging": {"level": "trace"}}', "gds-log-verbose", "warn"),
        ('{"profile": {"cufile_stats": 1}}', "gds-cufile-stats-off", "info"),
    ],
)
def test_a_setting_that_matters_is_found(said, text, finding, severity):
    assert said(judge(effective(text, "x", {}))) == {(finding, severity)}
