"""The kinds of findings about object stores."""

from __future__ import annotations

from typing import Final

from stoker.doctor.finding import FindingId
from stoker.doctor.subject import Subject

UNREACHABLE = FindingId(
    "object-store-answers",
    meaning="Whether the bucket answers, and a listing of the prefix works.",
    why="Nothing can be read or written there otherwise.",
    fix="check the URL, AWS_ENDPOINT_URL, AWS_REGION and that the network reaches the server",
)
DENIED = FindingId(
    "object-store-access-denied",
    meaning="The object store refuses the credentials, or the right to list or read is missing.",
    why="Training would stop at its first read; without the right to list, a missing object looks the same.",
    fix="check AWS_ACCESS_KEY_ID, AWS_PROFILE, and that the policy allows s3:ListBucket and s3:GetObject",
)
CLOCK_SKEW = FindingId(
    "object-store-clock-skew",
    meaning="The clock of this node and the server's are apart.",
    why="S3 refuses requests that are signed 15 minutes off, and times of objects and saves cannot be compared.",
    fix="synchronise the clock: chronyc tracking, timedatectl",
)
RANGE = FindingId(
    "object-store-range",
    meaning="Whether the server answers a request for a part of an object with that part.",
    why="Samples are parts of shards; a server or proxy that sends the whole object each time cannot be trained from.",
    fix="remove the proxy, or set it to pass the header Range on",
)
CONDITIONAL = FindingId(
    "object-store-conditional-write",
    meaning="Whether the server lets one of several writers of a name win (If-None-Match).",
    why="Commits rely on it; without it stoker looks twice, which is slower and safe only between prompt writers.",
    fix="use a server that keeps If-None-Match, or give each run its own prefix",
)
SPEED = FindingId(
    "object-store-speed",
    meaning="The time to the first byte, and the throughput of one request.",
    why="Throughput grows with requests at the same time; the first byte is what a small read costs.",
    fix="none is needed",
)
THROTTLED = FindingId(
    "object-store-throttled",
    meaning="The server refused requests as too many (503 SlowDown, 429), though only a few were made.",
    why="The bucket or prefix is at its limit, by this run or by others; retries cost time.",
    fix="spread the data over more prefixes, pack small objects into shards, or ask for a higher limit",
)
STALE_UPLOADS = FindingId(
    "object-store-unfinished-uploads",
    meaning="Uploads that were begun and never finished cost storage; they cannot be listed by stoker's client.",
    why="Their parts are paid for, and no listing shows them.",
    fix="aws s3api list-multipart-uploads --bucket BUCKET; a lifecycle rule AbortIncompleteMultipartUpload ends them",
)
IDS: Final = (UNREACHABLE, DENIED, CLOCK_SKEW, RANGE, CONDITIONAL, SPEED, THROTTLED, STALE_UPLOADS)

SUBJECT: Final = Subject("object-store", ids=IDS)
