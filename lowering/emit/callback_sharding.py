"""The `sharding` of an `io_callback`, which says from which of the program's devices JAX calls the function.

The drain calls it, for whichever device that is. What JAX refuses is refused here too: another kind of sharding, a
device that the program does not run on, and any sharding in a `jax.shard_map`.
"""

from __future__ import annotations

from typing import Any

from effects import _errors as errors
from effects import _jax
from effects._model.site import Site

MSG_SHARDING = (
    "The `io_callback` of `{name}` at {where} was given `sharding={sharding}`, which JAX refuses: {error}. It says "
    "from which of the program's devices the function is called. Give a `jax.sharding.SingleDeviceSharding` of one of "
    "them outside of `jax.shard_map`, or leave it out."
)

check_sharding_p: _jax.Primitive = _jax.Primitive("check_sharding")
"""token -> token. Lowering it checks a sharding against the devices of the program."""
check_sharding_p.def_abstract_eval(lambda token, site: token)

_jax.need_devices([check_sharding_p], always=True)


def _sharding_of(site: Site) -> Any:
    return None if site.origin is None else site.origin.params.get("sharding")


def checking_sharding(token: Any, site: Site) -> Any:
    """The token, after a check of the site's sharding if it has one."""
    return token if _sharding_of(site) is None else check_sharding_p.bind(token, site=site)


def _lower_check_sharding(ctx: Any, token: Any, *, site: Site) -> list[Any]:
    sharding = _sharding_of(site)
    try:
        _jax.check_callback_sharding(ctx, sharding)
    except (NotImplementedError, ValueError, IndexError, AssertionError) as error:
        shown = {"name": site.content.title, "where": site.where, "sharding": sharding, "error": errors.shown(error)}
        raise type(error)(MSG_SHARDING.format(**shown)) from None
    return [token]


_jax.mlir.register_lowering(check_sharding_p, _lower_check_sharding)
