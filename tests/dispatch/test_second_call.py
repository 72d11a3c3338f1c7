"""A state that is new when a function is called once more: the call does in it what a first call would do.

Calls are made by native code once nothing has to be looked up any more. Whatever can change from one call to the next,
each of these calls has to see.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import run_python
from tests.internals import runtime

X = np.float32(1.25)


def _prints(x):
    fx.print("x = {}", x)
    return x * 2


def _prints_arrays(x):
    fx.print("x = {}", jnp.stack([x, x]))
    return x * 2


def _waits(x):
    return fx.callback(lambda x: x + x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


KINDS = {
    "prints": _prints,
    "plain": lambda x: x * 2,
    "prints arrays": _prints_arrays,
    "waits": _waits,
    "JAX's own": lambda x: (jax.debug.print("x = {}", x), x * 2)[1],
}


def _call(f):
    return f(X)


def _fail_before(f):
    def fail():
        raise ValueError("before")

    fx.jit(lambda: fx.callback(fail, None))()
    runtime.waiting.for_thread()
    return f(X)


def _fail_before_a_barrier(f):
    with fx.config.override(errors="barrier"):
        return _fail_before(f)


def _print_of_jax_before(f):
    jax.jit(lambda x: jax.debug.print("first {}", x, ordered=True))(X)
    return f(X)


def _in_a_thread(f):
    results = []
    thread = threading.Thread(target=lambda: results.append(_outcome(f, _call)))
    thread.start()
    thread.join()
    return results[0]


def _in_a_callback(f):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return fx.jit(lambda x: (fx.print("around"), fx.callback(f, shape, x))[1])(X)


def _captured(f):
    with fx.capture() as records:
        y = f(X)
    return y, [record.text for record in records]


def _under(context):
    def call(f):
        with context():
            return f(X)

    return call


def _at_once(f):
    with fx.config.override(sync=True):
        y = f(X)
        return y, sys.stdout.getvalue()


def _in_one_order(f):
    """In one order for all threads there is one stream."""
    with fx.config.override(order="process"), fx.capture() as records:
        y = f(X)
    return y, [record.token[0] for record in records]


STATES = {
    "again": _call,
    "another type": lambda f: f(np.int32(3)),
    "another shape": lambda f: f(np.ones(2, np.float32)),
    "too many arguments": lambda f: f(X, X),
    "an array on the last device": lambda f: f(jax.device_put(X, jax.devices()[-1])),
    "a deleted array": lambda f: (lambda x: (x.delete(), f(x)))(jnp.asarray(X)),
    "another default device": _under(lambda: jax.default_device(jax.devices()[-1])),
    "64 bits": _under(lambda: jax.enable_x64(True)),
    "no jit": _under(jax.disable_jit),
    "debug_nans": _under(lambda: jax.debug_nans(True)),
    "a guard against transfers": _under(lambda: jax.transfer_guard("disallow_explicit")),
    "vmap": lambda f: jax.vmap(f)(jnp.ones(2)),
    "grad": lambda f: jax.grad(f)(X),
    "jit": lambda f: jax.jit(f)(X),
    "a jaxpr": lambda f: len(jax.make_jaxpr(f)(X).out_avals),
    "no caches": lambda f: (jax.clear_caches(), f(X)),
    "print options": _under(lambda: np.printoptions(precision=1)),
    "a failure before": _fail_before,
    "a failure before, for the barrier": _fail_before_a_barrier,
    "JAX's print before": _print_of_jax_before,
    "another thread": _in_a_thread,
    "a callback": _in_a_callback,
    "a capture": _captured,
    "at once": _at_once,
    "one order for all threads": _in_one_order,  # last: that there are two is known from then on
}


def _outcome(f, state):
    """What a call gives, and what is shown; or what it raises."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            y = state(f)
            given = repr(jax.tree.map(lambda x: (np.asarray(x).tolist(), str(getattr(x, "dtype", ""))), y))
            where = [str(x.sharding) for x in jax.tree.leaves(y) if isinstance(x, jax.Array)]
        except Exception as error:
            assert not isinstance(error, (AttributeError, NameError)), error  # of this file
            given, where = type(error).__name__, str(error).partition("\n")[0]
        try:
            fx.effects_barrier(all_threads=True, timeout=60)
            jax.effects_barrier()  # forgets the tokens of JAX's own effects
        except Exception as error:
            given += f", then {type(error).__name__}"
    return given, where, out.getvalue()


def main():
    """Says what differs, for each state and kind."""
    warm = {kind: _jitted(function) for kind, function in KINDS.items()}
    differ = {}
    for (name, state), kind in itertools.product(STATES.items(), KINDS):
        for _ in range(2):
            _outcome(warm[kind], _call)
        assert kind != "prints" or _is_fast(warm[kind]), f"slow before {name}"
        again, first = _outcome(warm[kind], state), _outcome(_jitted(KINDS[kind]), state)
        if first != again:
            differ[f"{name}, {kind}"] = first, again
    print(json.dumps(differ))


def _is_fast(f):
    """Whether native code makes the next call."""
    entered = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        _outcome(f, _call)
    finally:
        sys.setprofile(None)
    return "_outcome" in entered and "Dispatcher._call" not in entered


def _jitted(function):
    return fx.jit(lambda *args: function(*args))


@pytest.mark.slow
def test_what_is_new_at_a_later_call():
    """In a process of its own: what others have done before would already be known there."""
    code = "from tests.dispatch.test_second_call import main; main()"
    done = run_python(code)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_call_waits_for_results_that_only_its_program_needs():
    """The calls before it made another program, which native code calls, since nothing waits for it."""
    seen = []

    def note(x):
        seen.append(float(x))
        return np.float32(x)

    @fx.jit
    def f(x):
        fx.print("{}", x.shape)
        y = jnp.ones((256, 256)) * x  # work enough that XLA computes it on a thread of its own
        return fx.callback(note, jax.ShapeDtypeStruct((), "float32"), (y @ y).sum()) if x.ndim else x

    for _ in range(3):
        f(jnp.float32(1))
    f(jnp.ones(1))
    assert seen == [256.0**3]
