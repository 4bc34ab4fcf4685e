"""Ids of findings about stoker's own settings, tiers and runs."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId

SETTINGS = FindingId(
    "own-settings",
    "stoker's settings, as a process with this environment would have them.",
    "With a setting that is wrong no run starts.",
    "repair it: stoker config shows every setting and where it came from",
)
TIER = FindingId(
    "own-tier-place",
    "What the directory of the nvme tier lies on.",
    "It is meant for fast storage of this node.",
    "nothing to do",
)
TIER_WRONG = FindingId(
    "own-tier-wrong-device",
    "The directory of the nvme tier is not on local NVMe: a network, a spinning disk, a container's own layer.",
    "Checkpoints and caches there are as slow as that, and share it with data.",
    "name a directory on local NVMe: STOKER_NVME or tiers.nvme.path",
)
TIER_MEMORY = FindingId(
    "own-tier-in-memory",
    "The directory of the nvme tier is in memory (tmpfs).",
    "It counts in the memory limit, and checkpoints there do not outlive the node's boot.",
    "name a directory on local NVMe: STOKER_NVME or tiers.nvme.path",
)
SHARED = FindingId(
    "own-shared-tier-local",
    "The shared tier is a file system of this node alone.",
    "Other nodes do not see checkpoints there; a mount point that is not mounted looks so.",
    "mount the shared file system, or name another directory: STOKER_SHARED",
)
SPACE = FindingId(
    "own-tier-space",
    "Room in a tier against what the next save needs.",
    "A save without room fails; the steps before it stay.",
    "remove old runs, or name a larger directory",
)
PREFETCH = FindingId(
    "own-prefetch-memory",
    "Memory for batches ahead of use (of one rank) against the memory limit.",
    "With several ranks and their processes the limit ends the job.",
    "lower STOKER_FEED_PREFETCH_BYTES, or raise the memory limit",
)
STRANDED = FindingId(
    "own-save-stranded",
    "A committed step did not reach the far tier.",
    "It is lost with this node.",
    "start the run again with the same tiers: it goes on draining; or copy the step",
)
UNFINISHED = FindingId(
    "own-save-unfinished",
    "A save was given up, or is not finished.",
    "Work since the step before it is lost if the run ends now; the next start finishes or removes what lies there.",
    "see why: the note names the rank; without one the process was killed, or is at it",
)
ONE_PLACE = FindingId(
    "own-checkpoints-on-this-node",
    "Checkpoints of a run lie on this node alone: neither a shared nor an object tier is set.",
    "They are lost with it.",
    "set tiers.shared.path or tiers.object.url",
)
ENGINE = FindingId(
    "own-engine",
    "Which way checkpoints take to the disk: past the page cache, or through it.",
    "Under auto a fallback is quiet; asked for by name, it is an error.",
    "put the tier on a file system with direct I/O, or set checkpoint.engine",
)
FALLBACK = FindingId(
    "own-fallback-taken",
    "A run took a slower way than meant: batches were copied because all prefetch memory was lent.",
    "Copies take CPU and memory bandwidth.",
    "raise STOKER_FEED_PREFETCH_BYTES, or let go of batches sooner",
)
SAVES_FAILED = FindingId(
    "own-saves-failed",
    "Saves of a run failed.",
    "After a crash more work is repeated than planned.",
    "see the run's log for the reason",
)
WAITS = FindingId(
    "own-waits",
    "How much of a run's time training stood still for data, by its own account.",
    "90% utilisation is what MLPerf Storage asks for; below it storage or decoding limits training.",
    "stoker report RUN says what it waited for",
)
LEDGER = FindingId(
    "own-ledger-unreadable",
    "A run's account of waits cannot be read.",
    "What the run waited for is not known.",
    "look at the file named; a newer stoker may have written it",
)
IDS: Final = tuple(value for value in list(globals().values()) if isinstance(value, FindingId))
