"""The native module: loaded, registered with XLA, configured, and the host's own way into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax as compat
from effects import _wire as wire
from effects._config import Config, config
from effects._content import HostCall
from effects._sites import Site

try:
    import _token_effects as native
except ImportError as _error:
    raise ImportError(errors.MSG_NATIVE_MISSING) from _error
if (_difference := wire.first_difference(native.wire() if hasattr(native, "wire") else {})) is not None:
    _what, _found, _expected = _difference
    raise ImportError(errors.MSG_NATIVE_VERSION.format(what=_what, found=_found, expected=_expected))


def _register_handlers() -> None:
    compat.register_ffi_type("effects_site", *native.loaded_site_type())
    targets: dict[str, dict[str, Any]] = {}
    for target, stage, capsule in native.handlers():
        targets.setdefault(target, {})[stage] = capsule
    for target, stages in targets.items():
        jax.ffi.register_ffi_target(target, stages, platform="cpu")


def _configure(settings: Config) -> None:
    native.configure(settings.ring_bytes, wire.WHEN_FULL.index(settings.when_full))


_register_handlers()
config.listen(_configure)


def publish(
    site: Site,
    token: tuple[int, ...],
    operands: Sequence[Any],
    device: int | None = None,
    reply: native.HostReply | None = None,
) -> None:
    """Publishes one record from the host."""
    native.publish(
        site.id,
        site.effect.ordered,
        token,
        compat.host_device() if device is None else device,
        [to_bytes(np.asarray(x)) for x in operands],
        isinstance(site.content, HostCall),
        0 if reply is None else reply.number,
    )


def to_bytes(x: np.ndarray) -> Any:
    """An array's bytes in C order, for native code; large ones where they lie."""
    if x.nbytes < _SMALL:
        return x.tobytes()
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


_SMALL = 1 << 12

UNTRACKED_TOKEN = (wire.stream_of(wire.UNTRACKED_THREAD), 0, 0, 0)
"""The token of records that belong to no epoch."""
