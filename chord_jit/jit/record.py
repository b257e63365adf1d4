"""``entry.json``: what an entry says about itself, and the checks that make a reader believe it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from chord_jit.jit import schema
from chord_jit.jit.entry import Entry
from chord_jit.jit.key import Key, digest_of

RECORD, CUBIN, SOURCE = "entry.json", "kernel.cubin", "kernel.cu"
NAMES = (CUBIN, SOURCE, RECORD)


class Damaged(Exception):
    """An entry that is not what its writer wrote."""


def files_of(entry: Entry, key: Key) -> dict[str, bytes]:
    """Name to content of the three files of an entry. Equal entries give equal bytes."""
    contents = {CUBIN: entry.cubin, SOURCE: key.source.encode()}
    body = {
        "version": schema.ENTRY_VERSION,
        "digest": key.digest,
        "symbol": entry.symbol,
        "facts": dict(entry.facts),
        "key": dict(key.fields),
        "files": {name: {"size": len(content), "sha256": _sha256(content)} for name, content in contents.items()},
    }
    return {**contents, RECORD: _text({**body, "sha256": _sha256(_text(body))})}


def body_of(text: bytes, digest: str) -> dict[str, object]:
    """What ``entry.json`` says, without its own checksum. Raises ``Damaged`` unless it is whole and that of ``digest``."""
    try:
        body = json.loads(text)
        claimed = body.pop("sha256")
        # The text as well, since JSON has many for one meaning: a changed blank is a changed byte.
        if _sha256(_text(body)) != claimed or _text({**body, "sha256": claimed}) != text:
            raise Damaged(f"{RECORD} does not match its own checksum")
        if body["version"] != schema.ENTRY_VERSION or body["digest"] != digest or digest_of(body["key"]) != digest:
            raise Damaged(f"{RECORD} belongs to another key or layout")
        return body
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{RECORD} cannot be read: {error!r}") from None


def entry_of(contents: Mapping[str, bytes], digest: str) -> Entry:
    """The entry that the three files hold. Raises ``Damaged`` unless every byte is accounted for."""
    body = body_of(contents[RECORD], digest)
    try:
        for name in (CUBIN, SOURCE):
            claim = body["files"][name]
            if len(contents[name]) != claim["size"] or _sha256(contents[name]) != claim["sha256"]:
                raise Damaged(f"{name} does not match its checksum")
        return Entry(contents[CUBIN], body["symbol"], body["facts"], digest, "hit")
    except (KeyError, TypeError) as error:
        raise Damaged(f"{RECORD} cannot be read: {error!r}") from None


def _text(body: Mapping[str, object]) -> bytes:
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
