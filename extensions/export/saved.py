"""Exported programs as bytes: a header of ours, what JAX serialized, and a check sum of both."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from effects import _errors as errors

MSG_DESERIALIZE = (
    "`fx.deserialize` was given {what}. It reads what the `serialize` of an exported program returned, in this version "
    "of the format ({version}). Export with `fx.export(f)(*args).serialize()`, and with this version of token-effects."
)
MSG_DAMAGED = (
    "`fx.deserialize` was given a program that is damaged: its check sum is not that of its {size} bytes. A program is "
    "read as a whole or not at all. Copy the file again, in binary mode, or export the program anew."
)

_FORMAT = b"token-effects program "
_MAGIC = _FORMAT + b"2\n"
_CHECK_SUM = 16
_LENGTH = 8


def pack(header: dict[str, Any], program: bytes | bytearray) -> bytearray:
    """A program as bytes."""
    described = json.dumps(header).encode()
    content = len(described).to_bytes(_LENGTH, "little") + described + program
    return bytearray(_MAGIC + _check_sum(content) + content)


def unpack(data: Any) -> tuple[dict[str, Any], bytearray]:
    """The header and what JAX serialized.

    Raises:
        ValueError: if it is something else, or damaged.
    """
    try:
        data = bytes(memoryview(data))
    except TypeError:
        data = b""
    if not data.startswith(_MAGIC):
        what = "another version of it" if data.startswith(_FORMAT) else "something else"
        raise errors.value_error(MSG_DESERIALIZE.format(what=what, version=_MAGIC[len(_FORMAT) :].decode().strip()))
    start = len(_MAGIC) + _CHECK_SUM
    content = data[start:]
    if _check_sum(content) != data[len(_MAGIC) : start]:
        raise errors.value_error(MSG_DAMAGED.format(size=len(data)))
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    return json.loads(content[_LENGTH:end]), bytearray(content[end:])


def _check_sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECK_SUM).digest()
