"""Effects outside of any program: each is an epoch of its own and waits its turn behind programs still running."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dispatch._barrier import wait_for_plain_programs
from dispatch._drain import drain
from dispatch._failures import failures
from dispatch._host_sink import publish_and_wait
from dispatch._jit import jit
from dispatch._sink import native, publish
from dispatch._streams import Caller, Stream, current_stream
from effects._custom_call import custom_call_p
from effects._primitive import effect_p
from effects._sites import Site

_EAGER = Caller("an eager call")


@effect_p.def_impl
def _effect_impl(*given: Any, site: Site) -> list[Any]:
    operands, site = site.without_idle_mask(given)
    # JAX may bring a Python number where it has none of its own: differentiating one, say.
    values = [np.asarray(x, operand.stored) for x, operand in zip(operands, site.operands, strict=True)]
    wait_for_plain_programs()
    drain.start()
    stream = current_stream()
    depth = len(stream.dispatching)
    try:
        number, runtime_token = stream.open(_EAGER)
        stream.eager[number] = site
        stream_of_token, epoch, phase, index = map(int, runtime_token)
        token = (stream_of_token, epoch, phase, index)
        if site.results is None:
            publish(site, token, values)
            results = []
        else:
            results = _call(site, token, values, stream, number)
        native.close([(stream_of_token, epoch, phase, index + bool(site.effect.ordered))], 0)
        stream.dispatching.pop()
    except BaseException:
        stream.abandon(depth)
        raise
    return results


def _call(site: Site, token: tuple[int, ...], values: list[Any], stream: Stream, number: int) -> list[Any]:
    try:
        results = publish_and_wait(site, token, values)
    except RuntimeError:
        if (failure := failures.take_awaited((stream.thread, number))) is not None:
            raise failure from failure.__cause__
        raise
    return [jnp.asarray(result) for result in results]


@custom_call_p.def_impl
def _custom_call_impl(*operands: Any, **params: Any) -> Any:
    with jax.disable_jit(False):  # there is no other way to call a handler
        return _program_of(**params)(*operands)


@functools.lru_cache(maxsize=256)
def _program_of(**params: Any) -> Callable[..., Any]:
    """A program that is one custom call."""

    def eager_call(*operands: Any) -> Any:
        return custom_call_p.bind(*operands, **params)

    eager_call.__qualname__ = eager_call.__name__ = _EAGER.name
    return jit(eager_call)
