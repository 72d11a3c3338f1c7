"""The native module: loaded, registered with XLA, configured, and the host's own way into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects._config import Config, config
from effects._format import native_plan
from effects._sites import Site
from lowering._record import INDEX, set_host_sink

_ABI = 1

try:
    import _token_effects as native
except ImportError as _error:
    raise ImportError(errors.MSG_NATIVE_MISSING) from _error
if native.ABI != _ABI:
    raise ImportError(errors.MSG_NATIVE_VERSION.format(found=native.ABI, expected=_ABI))


def _register_handlers() -> None:
    targets: dict[str, dict[str, Any]] = {}
    for target, stage, capsule in native.handlers():
        targets.setdefault(target, {})[stage] = capsule
    for target, stages in targets.items():
        jax.ffi.register_ffi_target(target, stages, platform="cpu")


def _configure(settings: Config) -> None:
    when_full = ("wait", "drop_newest", "drop_oldest").index(settings.when_full)
    native.configure(settings.ring_bytes, when_full)


_register_handlers()
config.listen(_configure)


def plan_natively(site: Site) -> None:
    """Lets native code format the records of a site, if it can."""
    plan = native_plan(site, "\n")
    if plan is not None:
        native.set_plan(site.id, plan)


def publish(site: Site, token: tuple[int, ...], operands: Sequence[Any], device: int = 0) -> None:
    """Publishes one record from the host."""
    stored = [np.asarray(x, order="C").tobytes() for x in operands]
    native.publish(site.id, site.effect.ordered, token, device, stored)


PLAIN_TOKEN = (native.PLAIN_THREAD << 8, 0, 0, 0)
"""The token of records that belong to no epoch."""


class _HostSink:
    """What a device without native handlers publishes through; see `lowering/_record.py`."""

    def record(self, site: Site, token: Any, operands: Sequence[Any]) -> Any:
        publish(site, tuple(map(int, token)), operands)
        token = np.array(token)
        if site.effect.ordered:
            token[INDEX] += 1
        return token

    def close(self, tokens: Sequence[Any]) -> Any:
        native.close([tuple(map(int, token)) for token in tokens], 0)
        return np.array(tokens[0])

    def plain(self, site: Site, operands: Sequence[Any]) -> None:
        publish(site, PLAIN_TOKEN, operands)


set_host_sink(_HostSink())
