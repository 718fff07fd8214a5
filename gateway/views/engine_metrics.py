"""Prometheus text of several engines as one: each series has the label `engine`, and each family appears once."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")


def merge_metrics(texts: Mapping[str, bytes]) -> bytes:
    """`texts`: Prometheus text by engine name. The text of a single engine is unchanged."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    headers: dict[bytes, list[bytes]] = {}  # by family, in order of appearance
    samples: dict[bytes, list[bytes]] = {}
    for name, text in texts.items():
        label = b'engine="%b"' % name.encode()
        family = b""
        for line in text.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                family = line.split(b" ", 3)[2]
                known = headers.setdefault(family, [])
                samples.setdefault(family, [])
                if line[:6] not in [header[:6] for header in known]:
                    known.append(line)
            elif line and not line.startswith(b"#"):
                samples.setdefault(family, []).append(_labelled(line, label))
                headers.setdefault(family, [])
    return b"".join(line + b"\n" for family, known in headers.items() for line in (*known, *samples[family]))


def _labelled(line: bytes, label: bytes) -> bytes:
    """The sample with one more label, the first."""
    found = _SAMPLE.match(line)
    if found is None:
        return line
    return found[1] + b"{" + label + (b"," if found[2] else b"}") + line[found.end() :]
