"""What the tests of the doctor share: the samples, and a node made of texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stoker.doctor.node import Host, Missing

SAMPLES = Path(__file__).parent / "samples"


@dataclass
class TextNode:
    """A node that holds what a test says, and nothing else."""

    files: dict = field(default_factory=dict)
    commands: dict = field(default_factory=dict)
    links: dict = field(default_factory=dict)
    stats: dict = field(default_factory=dict)
    spaces: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    host_facts: object = Host(1000, "x86_64", "6.8.0", 64)

    def read(self, path, limit_bytes=1 << 20):
        found = self.files.get(path, Missing("no such file"))
        return found[:limit_bytes] if isinstance(found, str) else found

    def read_tail(self, path, limit_bytes=1 << 20):
        found = self.files.get(path, Missing("no such file"))
        return found[-limit_bytes:] if isinstance(found, str) else found

    def read_bytes(self, path, limit_bytes=1 << 20):
        found = self.files.get(path, Missing("no such file"))
        return found[:limit_bytes] if isinstance(found, bytes) else found

    def listing(self, path):
        start = path.rstrip("/") + "/"
        every = [*self.files, *self.links, *self.stats]
        names = {p[len(start) :].split("/")[0] for p in every if p.startswith(start)}
        return tuple(sorted(names)) if names else Missing("no such file")

    def link(self, path):
        return self.links.get(path, path if path in self.files else Missing("no such file"))

    def stat(self, path):
        return self.stats.get(path, Missing("no such file"))

    def readable(self, path):
        return isinstance(self.files.get(path), str) or path in self.stats

    def space(self, path):
        return self.spaces.get(path, Missing("no such file"))

    def run(self, argv):
        return self.commands.get(" ".join(argv), Missing("no such command"))

    def environment(self):
        return self.variables

    def host(self):
        return self.host_facts

    def clock_s(self):
        return 1.8e9


@pytest.fixture
def make_node():
    return TextNode


@pytest.fixture(scope="session")
def sample():
    """The text of a sample, by its name in INDEX.md."""
    return lambda name: (SAMPLES / name).read_text()


@pytest.fixture
def explained(sample):
    """Findings of one or more samples by content, their names hidden: what is said must come from what is in them."""
    from stoker.doctor.kinds import Sample, explain
    from stoker.doctor.registry import KINDS

    def explained(*names, kind="auto", seconds=None):
        return explain([Sample(sample(n), "given") for n in names], KINDS, name=kind, between_s=seconds)

    return explained


def by_id(findings):
    found = {}
    for finding in findings:
        found.setdefault(finding.id, []).append(finding)
    return found


@pytest.fixture
def said():
    """(id, severity) of findings, as a set."""
    return lambda findings: {(f.id, str(f.severity)) for f in findings}
