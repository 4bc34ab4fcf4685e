"""The one redactor: what a capture may not tell is replaced, the same by the same within a capture.

Replaced are: host names given or in endpoints, users in home folders, IPv4, IPv6 and MAC addresses, GUIDs, UUIDs and
WWNs, serial numbers, buckets and endpoints in URLs, and whatever a key calls a secret. Forms stay: an address becomes
another address (those for documentation, RFC 5737 and 3849), so that a capture parses as the node did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

_KEY_TO_HIDE: Final = (
    r"[\w.-]*(?:secret|passwo?r?d|passwd|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|rdma_dc_key|"
    r"authorization|dhchap)[\w.-]*"
)
_SECRET: Final = re.compile(
    rf"(?i)(\"?{_KEY_TO_HIDE}\"?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*'|(?:Bearer |Basic )?[^\s,;&}}\]]+)"
)
_AWS_KEY: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_URL_USER: Final = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+@")
_SERIAL: Final = re.compile(
    r"(?i)(\b(?:ID_SERIAL(?:_SHORT)?|\"?SerialNumber\"?|serial(?:[ _]?number)?|sn|wwid|wwn|ID_WWN\w*|machine-?id)\"?"
    r"\s*[=:\t]\s*\"?)([^\s\",]+)"
)
_SERIAL_PATH: Final = re.compile(r"(/(?:serial|wwid|wwn|product_serial|board_serial|product_uuid)\t)(\S[^\n]*)")
_BUCKET: Final = re.compile(r"\b((?:s3a?|gs|az|abfss?)://)([^/\s\"',?]+)")
_ENDPOINT: Final = re.compile(r"\b(https?://(?:[^/\s@]+@)?)([^/\s:\"',?@]+)")
_HOME: Final = re.compile(r"(/(?:home|Users)/)([^/\s:\"',]+)")
_NQN: Final = re.compile(r"\b(nqn\.\d{4}-\d\d\.)([^\s\",]+)")
_UUID: Final = re.compile(r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_HEX32: Final = re.compile(r"(?i)\b[0-9a-f]{32}\b")
_EUI: Final = re.compile(r"(?i)\b(eui\.|nvme\.|naa\.)([0-9a-f]{8,}[\w-]*)")
_GUID: Final = re.compile(r"(?i)\b0x[0-9a-f]{16}\b")
_GUID4: Final = re.compile(r"(?i)(?<![\w:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])")
_MAC: Final = re.compile(r"(?i)(?<![\w:])[0-9a-f]{2}(?::[0-9a-f]{2}){5,}(?![\w:])")
_IPV6: Final = re.compile(r"(?i)(?<![\w:.])(?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4}){0,6}(?:::)?(?![\w.])")
_IPV4: Final = re.compile(r"(?<![\w.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\w.]*\w\.)(?![.\d])")
_DOCUMENTATION: Final = re.compile(r"(?<![\w.])(?:192\.0\.2|198\.51\.100|203\.0\.113)\.\d{1,3}(?![.\d])")
_VERSION_BEFORE: Final = re.compile(r"(?i)(?:version|release|ver|libcufile|cufile|firmware|driver|v)[\s:=\"]*\Z")
_PCI: Final = re.compile(r"(?i)[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}")


class Redactor:
    """Replaces texts; remembers what it replaced by what. One instance a capture; not for several threads at once.

    Args:
        names: Names to hide wherever they stand as a word: the host's, the user's.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = [re.compile(rf"(?<![\w.-]){re.escape(n)}(?![\w-])") for n in sorted(names, key=len)[::-1] if n]
        self._known: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        """The text with everything above replaced. What is replaced already stays as it is."""
        for match in _DOCUMENTATION.finditer(text):  # they tell nothing, and must not be taken for another's
            self._known.setdefault(("ipv4", match[0]), match[0])
        text = _SECRET.sub(self._secret, text)
        text = _AWS_KEY.sub(lambda m: self._same("access-key", m[0], "key-{}"), text)
        text = _URL_USER.sub("hidden:hidden@", text)
        for pattern, kind in ((_SERIAL, "serial"), (_SERIAL_PATH, "serial"), (_BUCKET, "bucket"), (_HOME, "user")):
            text = pattern.sub(self._second(kind), text)
        text = _ENDPOINT.sub(self._endpoint, text)
        text = _NQN.sub(self._second("subsystem"), text)
        text = _UUID.sub(lambda m: self._same("uuid", m[0], "00000000-0000-4000-8000-{:012x}"), text)
        text = _HEX32.sub(lambda m: self._same("hex", m[0], "{:032x}"), text)
        text = _EUI.sub(lambda m: m[1] + self._same("eui", m[2], "{:016x}"), text)
        text = _GUID.sub(self._guid, text)
        text = _MAC.sub(self._mac, text)
        text = _GUID4.sub(lambda m: self._same("guid4", m[0], "0200:0000:0000:{:04x}"), text)
        text = _IPV6.sub(self._ipv6, text)
        text = _IPV4.sub(self._ipv4, text)
        for name in self._names:
            text = name.sub(lambda m: self._same("name", m[0], "host-{}"), text)
        return text

    def _same(self, kind: str, original: str, form: str) -> str:
        """The replacement of `original`: the same each time, and itself if it is one."""
        if (kind, original) in self._known:
            return self._known[kind, original]
        number = self._counts[kind] = self._counts.get(kind, 0) + 1
        new = form.format(number)
        self._known[kind, original] = self._known[kind, new] = new
        return new

    def _second(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: match[1] + self._same(kind, match[2], f"{kind}-{{}}")

    def _secret(self, match: re.Match[str]) -> str:
        value = match[2]
        if value.strip("\"'") in ("", "[", "{", "true", "false", "null", "none", "None", "0"):
            return match[0]
        quote = value[0] if value[0] in "\"'" else ""
        return f"{match[1]}{quote}hidden{quote}"

    def _endpoint(self, match: re.Match[str]) -> str:
        host = match[2]
        if _IPV4.fullmatch(host) or host.startswith("[") or host == "localhost":
            return match[0]
        return match[1] + self._same("endpoint", host, "endpoint-{}.example")

    def _guid(self, match: re.Match[str]) -> str:
        return match[0] if int(match[0], 16) < 1 << 32 else self._same("guid", match[0].lower(), "0x0200{:012x}")

    def _mac(self, match: re.Match[str]) -> str:
        if set(match[0]) <= set("0:fF"):
            return match[0]
        count = match[0].count(":") - 5
        return "00:" * count + self._same("mac", match[0].lower(), "02:00:00:00:00:{:02x}")[:17]

    def _ipv6(self, match: re.Match[str]) -> str:
        text = match[0]
        groups = [g for g in text.split(":") if g]
        if _PCI.match(text) or ("::" not in text and len(groups) != 8) or not groups:  # noqa: PLR2004
            return text
        return text if text.endswith("::") and len(groups) < 2 else self._same("ipv6", text.lower(), "2001:db8::{:x}")  # noqa: PLR2004

    def _ipv4(self, match: re.Match[str]) -> str:
        parts = [int(part) for part in match.groups()]
        start = match.start()
        unreal = max(parts) > 255 or parts[0] in (0, 127, 255)  # noqa: PLR2004
        if unreal or _VERSION_BEFORE.search(match.string[max(0, start - 24) : start]):
            return match[0]
        return self._known.get(("ipv4", match[0])) or self._new_ipv4(match[0])

    def _new_ipv4(self, original: str) -> str:
        new = ""
        while not new or ("ipv4", new) in self._known:
            number = self._counts["ipv4"] = self._counts.get("ipv4", 0) + 1
            block, last = divmod(number - 1, 254)
            # Beyond what the documentation ranges hold: the range for benchmarks (RFC 2544).
            start = ("192.0.2", "198.51.100", "203.0.113")[block] if block < 3 else f"198.18.{block - 3}"  # noqa: PLR2004
            new = f"{start}.{last + 1}"
        self._known["ipv4", original] = self._known["ipv4", new] = new
        return new
