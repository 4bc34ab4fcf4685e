"""Answers of ListObjectsV2: pages of keys in the order of their bytes, and the folders that a delimiter makes."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from stoker.testing.fault_server.objects import Refused
from stoker.testing.fault_server.reply import element
from stoker.testing.fault_server.wire import Request

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
PAGE_MAX_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """What one answer holds: keys, folders (with their delimiter), and behind what the next page begins."""

    keys: tuple[str, ...]
    folders: tuple[str, ...]
    next_after: str | None


def cut_page(keys: Sequence[str], prefix: str, delimiter: str, after: str, page_keys: int) -> Page:
    """The page behind `after` of sorted `keys`, all of which begin with `prefix`. A folder counts as one key."""
    found: list[str] = []
    folders: list[str] = []
    if not page_keys:
        return Page((), (), None)
    last = after
    at = bisect_right(keys, after)
    while at < len(keys):
        key = keys[at]
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        folder = key[: cut + len(delimiter)] if cut >= 0 else ""
        if folder and folder == after:  # the page before ended with this folder
            at += 1
            continue
        if len(found) + len(folders) == page_keys:
            return Page(tuple(found), tuple(folders), last)
        if folder:
            folders.append(folder)
            last = folder
            while at < len(keys) and keys[at].startswith(folder):
                at += 1
        else:
            found.append(key)
            last = key
            at += 1
    return Page(tuple(found), tuple(folders), None)


def page_size(request: Request, largest: int) -> int:
    """How many keys the answer may hold. Raises Refused."""
    text = request.query.get("max-keys", str(largest))
    if not text.isdecimal():
        raise Refused(400, "InvalidArgument", f"max-keys is not a number: {text}")
    return min(int(text), largest)


def begins_after(request: Request) -> str:
    """The key behind which the answer begins. Raises Refused."""
    token = request.query.get("continuation-token")
    if token is None:
        return request.query.get("start-after", "")
    try:
        return base64.b64decode(token.encode(), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise Refused(400, "InvalidArgument", "The continuation token provided is incorrect") from error


def page_xml(request: Request, page: Page, contents: str, page_keys: int) -> str:
    """The XML of a page; `contents` is that of its keys."""
    query = request.query
    encoding = query.get("encoding-type", "")
    fields: dict[str, str | int | None] = {
        "Name": request.bucket,
        "Prefix": encoded(query.get("prefix", ""), encoding),
        "KeyCount": len(page.keys) + len(page.folders),
        "MaxKeys": page_keys,
        "IsTruncated": "false" if page.next_after is None else "true",
        "Delimiter": encoded(query["delimiter"], encoding) if "delimiter" in query else None,
        "EncodingType": encoding or None,
        "ContinuationToken": query.get("continuation-token"),
        "StartAfter": encoded(query["start-after"], encoding) if "start-after" in query else None,
        "NextContinuationToken": None if page.next_after is None else _token(page.next_after),
    }
    inner = "".join(element(name, value) for name, value in fields.items() if value is not None)
    folders = "".join(
        f"<CommonPrefixes>{element('Prefix', encoded(folder, encoding))}</CommonPrefixes>" for folder in page.folders
    )
    return f'<ListBucketResult xmlns="{NAMESPACE}">{inner}{contents}{folders}</ListBucketResult>'


def _token(after: str) -> str:
    return base64.urlsafe_b64encode(after.encode()).decode()


def encoded(text: str, encoding: str) -> str:
    """A key as the client asked for it: percent-encoded for "url", which lets any character through XML."""
    return quote(text, safe="/") if encoding == "url" else text
