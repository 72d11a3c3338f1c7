"""Descriptions of how primitives hold jaxprs and carry values, one each, from which passes are made.

Several passes send values of their own through every equation that holds a jaxpr: the token pass sends tokens, which
bodies take and give back; the mask pass sends a predicate, which bodies only take; the differentiation of loops sends a
mask that a loop carries; `vmap` gives every value lanes. Where such values go among the operands of a `scan`, and which
numbers in its parameters change, is the same for all of them. A *holder* describes it once, and a *pass* only has its
action for one equation: `send` is how all of them go through a jaxpr, and into the bodies that equations hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from effects import _jax

_Rule = TypeVar("_Rule")


def registering(table: dict[Any, Any], primitives: Iterable[Any]) -> Callable[[_Rule], _Rule]:
    """A decorator that adds a rule for these primitives to a table."""

    def register(rule: _Rule) -> _Rule:
        table.update(dict.fromkeys(primitives, rule))
        return rule

    return register


class Extra:
    """The values that a pass sends through one equation, and the functions that rewrite the equation's bodies for them.

    Attributes:
        consts: Values that bodies take, ahead of all else.
        state: Values that bodies take and give back, ahead of their results. `bind` and `run` replace them by those
            that came back.
    """

    def __init__(
        self,
        bind: Callable[..., Sequence[Any]],
        rewrite: Callable[[Any, int], Any],
        run: Callable[[Any, Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
        *,
        consts: Sequence[Any] = (),
        state: Sequence[Any] = (),
    ):
        """`bind` binds the primitive, `rewrite(body, after)` makes the body, and `run(body, state, args)` evaluates it
        in place and returns `(state, results)`."""
        self._bind, self._rewrite, self._run = bind, rewrite, run
        self.consts: tuple[Any, ...] = tuple(consts)
        self.state: tuple[Any, ...] = tuple(state)

    @property
    def values(self) -> tuple[Any, ...]:
        """The constants and the state, which a body takes ahead of its own inputs."""
        return self.consts + self.state

    def rewrite(self, body: Any, after: int = 0) -> Any:
        """The body with what the pass sends through it: `(*consts, *state, *inputs) -> (*state, *results)`.

        Made once for each body and cached, so that one function stays one function.

        Args:
            body: The jaxpr, with constants of its own or without.
            after: How many of the body's own inputs come ahead of the state. A loop's body takes its constants ahead of
                what it carries, and the state is carried.
        """
        return self._rewrite(_jax.closed_jaxpr(body), after)

    def rewrite_condition(self, condition: Any, after: int = 0) -> Any:
        """Rewrites a loop's condition, which takes the state and does not give it back."""
        return _jax.without_results(self.rewrite(condition, after), len(self.state))

    def bind(self, *operands: Any, **params: Any) -> list[Any]:
        """Binds the primitive to new operands and parameters, keeps the state, which comes first, and returns the
        equation's results."""
        outs = list(self._bind(*operands, **params))
        count = len(self.state)
        self.state = tuple(outs[:count])
        return outs[count:]

    def run(self, body: Any, args: Sequence[Any]) -> list[Any]:
        """Evaluates a body in place of the equation, and returns its results. May be called several times."""
        state, outs = self._run(_jax.closed_jaxpr(body), self.state, args)
        self.state = tuple(state)
        return list(outs)


class Holder(Protocol):
    def __call__(self, extra: Extra, /, *args: Any, **params: Any) -> Sequence[Any]:
        """Sends what a pass adds through one equation.

        Args:
            extra: What the pass adds.
            *args: The equation's operands.
            **params: The equation's parameters.

        Returns:
            The equation's results, without what the pass adds.
        """
        ...


_holders: dict[Any, Holder] = {}  # by primitive; written when modules are loaded
_listeners: list[Callable[[Any, Holder], None]] = []


def holds(*primitives: Any) -> Callable[[Holder], Holder]:
    """Describes how primitives hold jaxprs, so that effects inside them have tokens, masks and lanes.

    A holder takes `(extra, *args, **params)` and returns the equation's results. `extra.rewrite(body)` is a body that
    also takes `extra.values` ahead of its inputs, and `extra.bind(*operands, **params)` binds the primitive to it. A
    primitive that means no more than running its bodies uses `extra.run(body, args)`.

    With that, effects inside the primitive have their place in `fx.jit`. In a branch or a loop whose predicate differs
    between the lanes of a `vmap`, they happen in the lanes that a Python program would have brought there. And `vmap`
    maps every operand of the primitive and every input of its bodies, unless it has been given a batching rule before.
    Derivatives and the lowering of the primitive are JAX's: see `jax.interpreters.ad` and `jax.interpreters.mlir`.

    Args:
        *primitives: The primitives.

    Returns:
        A decorator for the holder.

    Example:
        A primitive that runs its body twice.

        >>> import jax, effects as fx
        >>> from effects import lowering
        >>> from jax.extend.core import Primitive
        >>> twice_p = Primitive("twice")
        >>> twice_p.multiple_results = True
        >>> _ = twice_p.def_effectful_abstract_eval(lambda *avals, body: (body.out_avals, set(body.effects)))
        >>> @lowering.holds(twice_p)
        ... def _twice(extra, *args, body):
        ...     return extra.run(body, extra.run(body, args))
        >>> @fx.jit
        ... def f(x):
        ...     body = jax.make_jaxpr(lambda x: (fx.print("x = {}", x), x + 1)[1])(x)
        ...     return twice_p.bind(x, body=body)[0]
        >>> f(1)
        Array(3, dtype=int32, weak_type=True)
        >>> jax.vmap(lambda x: jax.lax.cond(x > 1, f, lambda x: x, x))(jax.numpy.arange(3))
        Array([0, 1, 4], dtype=int32)
        >>> fx.effects_barrier()
        x = 1
        x = 2
        x = 2
        x = 3
    """

    def register(holder: Holder) -> Holder:
        for primitive in primitives:
            listeners = [] if primitive in _holders else _listeners
            _holders[primitive] = holder
            for listener in listeners:
                listener(primitive, holder)
        return holder

    return register


def holds_of_jax(*primitives: Any) -> Callable[[Holder], Holder]:
    """Describes how primitives of JAX's hold jaxprs, and leaves them JAX's batching rules."""
    return registering(_holders, primitives)


def find_holder(primitive: Any) -> Holder | None:
    """The description of a primitive."""
    return _holders.get(primitive)


def on_holder(listener: Callable[[Any, Holder], None]) -> None:
    """Calls `listener(primitive, holder)` for every primitive that is described from now on."""
    _listeners.append(listener)


def describe(holder: Holder, value: Any, rewrite: Callable[[Any, int], Any], args: Sequence[Any], params: Any) -> Any:
    """The operands and the parameters with which a holder would bind its primitive, with one value of state."""
    bound: list[Any] = []

    def bind(*operands: Any, **params: Any) -> list[Any]:
        bound.append((list(operands), params))
        return [value]

    def run(*_: Any) -> Any:
        raise AssertionError("the primitive is bound, not run in place")

    holder(Extra(bind, rewrite, run, state=(value,)), *args, **params)
    return bound[0]


# Passes over a jaxpr.


class Pass(Protocol):
    """A pass, defined by its action on one equation. All passes go through a jaxpr and into the bodies of equations in
    the same way: see `send`.

    A pass sends constants, which bodies take, and state, which they take and give back. It is a value: equal passes
    rewrite a body once, to one jaxpr.
    """

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        """Binds an equation, changes `state` in place, and returns the results. Returns None if the pass does not bind
        the equation itself: it stays as it is unless its bodies are entered."""
        ...

    def enters(self, eqn: Any) -> bool:
        """True if the bodies of an equation get the values, where it has a holder."""
        ...


def send(
    through: Pass, jaxpr: Any, args: Sequence[Any], consts: Sequence[Any] = (), state: Sequence[Any] = ()
) -> tuple[list[Any], list[Any]]:
    """Evaluates a jaxpr with a pass. Returns the state behind it, and its results."""
    now = list(state)

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if (outs := through.bind(eqn, operands, consts, now)) is not None:
            return outs
        if not through.enters(eqn) or find_holder(eqn.primitive) is None:
            return _jax.bind(eqn, operands)
        return send_into(through, eqn, operands, consts, now)

    outs = _jax.interpret(_jax.closed_jaxpr(jaxpr), args, apply)
    return now, outs


def send_into(
    through: Pass, eqn: Any, operands: Sequence[Any], consts: Sequence[Any] = (), state: list[Any] | None = None
) -> Sequence[Any]:
    """Binds an equation that has a holder, with a pass in its bodies. Changes `state` in place."""
    holder = find_holder(eqn.primitive)
    assert holder is not None
    now = [] if state is None else state
    extra = Extra(
        eqn.primitive.bind,
        lambda body, after: rewritten(through, body, consts, now, after),
        lambda body, state, args: send(through, body, args, consts, state),
        consts=consts,
        state=now,
    )
    outs = holder(extra, *operands, **eqn.params)
    now[:] = extra.state
    return outs


def rewritten(through: Pass, body: Any, consts: Sequence[Any] = (), state: Sequence[Any] = (), after: int = 0) -> Any:
    """A body that takes the constants ahead of all else, and the state behind its first `after` inputs, and gives the
    state ahead of its results."""
    return rewritten_for(through, body, map(_jax.typeof, consts), map(_jax.typeof, state), after)


def rewritten_for(
    through: Pass, body: Any, consts: Iterable[Any] = (), state: Iterable[Any] = (), after: int = 0
) -> Any:
    """Like `rewritten`, for constants and state of these types."""
    return _rewritten(_jax.closed_jaxpr(body), through, tuple(consts), (types := tuple(state)), after if types else 0)


@_jax.weakref_lru_cache
def _rewritten(jaxpr: Any, through: Pass, consts: tuple[Any, ...], state: tuple[Any, ...], after: int) -> Any:
    first = len(consts)
    behind = first + after
    end = behind + len(state)

    def body(*args: Any) -> list[Any]:
        now, outs = send(through, jaxpr, [*args[first:behind], *args[end:]], args[:first], args[behind:end])
        return [*now, *outs]

    avals = jaxpr.in_avals
    return _jax.trace_to_jaxpr(body, [*consts, *avals[:after], *state, *avals[after:]], like=jaxpr)


# Foreign effects, such as JAX's own callbacks. Passes ignore them until they are converted.


class EffectConversion:
    """The conversion of foreign effects to ours, and back. This class converts nothing."""

    def tracing(self) -> AbstractContextManager[Any]:
        """In force while a function is traced for `fx.jit`."""
        return nullcontext()

    def tracing_inside(self) -> AbstractContextManager[Any]:
        """In force while a function of `fx.jit` is called under another trace."""
        return nullcontext()

    def convert(self, jaxpr: Any) -> Any:
        """Converts foreign effects of a closed jaxpr wherever tokens can be threaded."""
        return jaxpr

    def all_converted(self, jaxprs: Sequence[Any]) -> bool:
        """True if these jaxprs have effects of ours, and all were converted."""
        return False

    def restore(self, eqn: Any) -> Any:
        """Converts effects in the jaxprs of an equation back."""
        return eqn


_conversion = EffectConversion()


def conversion() -> EffectConversion:
    """The conversion in force."""
    return _conversion


def set_conversion(new: EffectConversion) -> None:
    global _conversion
    _conversion = new


# The holders of JAX's own primitives.


@holds(_jax.cond_p)
def _cond(extra: Extra, index: Any, *args: Any, branches: Any, **params: Any) -> Sequence[Any]:
    """Every branch takes and returns all of the state, used or not."""
    return extra.bind(index, *extra.values, *args, branches=tuple(map(extra.rewrite, branches)), **params)


@holds(_jax.scan_p)
def _scan(extra: Extra, *args: Any, jaxpr: Any, **params: Any) -> Sequence[Any]:
    """The state is carried, with any direction and unrolling."""
    consts, _ = _jax.read_scan(params)
    return extra.bind(
        *extra.consts,
        *args[:consts],
        *extra.state,
        *args[consts:],
        jaxpr=extra.rewrite(jaxpr, consts),
        **_jax.with_scan_values(params, consts=len(extra.consts), carry=len(extra.state)),
    )


@holds(_jax.while_p)
def _while(
    extra: Extra,
    *args: Any,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **params: Any,
) -> Sequence[Any]:
    """The state is carried. A condition that has effects, or reads references from outside, is evaluated ahead of the
    loop and at the end of the body."""
    if cond_jaxpr.effects - {_jax.OWN_REFERENCE}:
        loop, args = with_carried_predicate(args, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts, **params)
        return extra.run(loop, args)
    split = cond_nconsts + body_nconsts
    condition, body = extra.rewrite_condition(cond_jaxpr, cond_nconsts), extra.rewrite(body_jaxpr, body_nconsts)
    # With constants in these jaxprs, JAX (0.10 to 0.12) cannot discharge references (`_while_discharge_rule`).
    of_condition = [*condition.consts, *extra.consts, *args[:cond_nconsts]]
    of_body = [*body.consts, *extra.consts, *args[cond_nconsts:split]]
    return extra.bind(
        *of_condition,
        *of_body,
        *extra.state,
        *args[split:],
        cond_jaxpr=_jax.closed_jaxpr(_jax.open_jaxpr(condition)),
        body_jaxpr=_jax.closed_jaxpr(_jax.open_jaxpr(body)),
        cond_nconsts=len(of_condition),
        body_nconsts=len(of_body),
        **params,
    )


def with_carried_predicate(
    args: Sequence[Any], cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **params: Any
) -> tuple[Any, list[Any]]:
    """A jaxpr of a loop that carries its predicate, which the body evaluates, and its arguments.

    A constant of both condition and body is one operand, so that a reference that the body writes is the one that the
    condition reads. JAX would show the condition the reference's value from before the loop.
    """
    split = cond_nconsts + body_nconsts
    consts = [*{id(x): x for x in args[:split]}.values()]
    count, positions = len(consts), {id(x): position for position, x in enumerate(consts)}
    of_cond, of_body = (
        [positions[id(x)] for x in operands] for operands in (args[:cond_nconsts], args[cond_nconsts:split])
    )
    taken = [*consts, *args[split:]]

    def evaluate_condition(consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        return _jax.evaluate(cond_jaxpr, [*(consts[position] for position in of_cond), *carry])[0]

    def step(*flat: Any) -> list[Any]:
        consts, carry = flat[:count], flat[count + 1 :]
        carry = _jax.evaluate(body_jaxpr, [*(consts[position] for position in of_body), *carry])
        return [evaluate_condition(consts, carry), *carry]

    def loop(*flat: Any) -> list[Any]:
        consts, carry = flat[:count], flat[count:]
        state = [evaluate_condition(consts, carry), *carry]
        types = [_jax.typeof(x) for x in state]
        outs = _jax.while_p.bind(
            *consts,
            *state,
            cond_jaxpr=_jax.trace_to_jaxpr(lambda predicate, *_: [predicate], types, like=cond_jaxpr),
            body_jaxpr=_jax.trace_to_jaxpr(step, [*map(_jax.typeof, consts), *types], like=body_jaxpr),
            cond_nconsts=0,
            body_nconsts=count,
            **params,
        )
        return list(outs[1:])

    return _jax.trace_to_jaxpr(loop, list(map(_jax.typeof, taken)), like=body_jaxpr), taken


@holds(_jax.jit_p, *_jax.annotated_calls())
def _call(extra: Extra, *args: Any, **params: Any) -> Sequence[Any]:
    """A jitted function stays a separate function, so that it is compiled once for all its calls."""
    body = "jaxpr" if "jaxpr" in params else "call_jaxpr"
    params[body] = extra.rewrite(params[body])
    for name, of_extra in _EACH.items():
        if name in params:
            count = len(extra.state if name.startswith("out_") else extra.values)
            params[name] = (of_extra,) * count + tuple(params[name])
    return extra.bind(*extra.values, *args, **params)


_EACH: dict[str, Any] = {  # parameters with one element per input or output, and the element of an added value
    "in_shardings": _jax.UNSPECIFIED,
    "out_shardings": _jax.UNSPECIFIED,
    "in_layouts": None,
    "out_layouts": None,
    "donated_invars": False,
    "out_memory_spaces": _jax.DEVICE_MEMORY,
    "exclude_mask": False,
}


@holds(_jax.remat_p)
def _remat(extra: Extra, *args: Any, jaxpr: Any, **params: Any) -> Sequence[Any]:
    """A rematerialized region stays a region, for its barriers."""
    body = extra.rewrite(jaxpr)
    return extra.bind(*body.consts, *extra.values, *args, jaxpr=_jax.open_jaxpr(body), **params)


@holds(_jax.run_state_p)
def _run_state(extra: Extra, *args: Any, jaxpr: Any, is_initialized: Any, **params: Any) -> Sequence[Any]:
    """References become values, as when JAX lowers it. Effects between reads and writes stay between them."""

    def read(x: Any) -> Any:
        return x[...] if _jax.is_reference(x) else x

    outs = extra.run(*_jax.discharge_state(jaxpr, [read(x) for x in args], is_initialized))
    # The final value of a reference of the enclosing function is written back to it.
    finals = [out for out, initialized in zip(outs, is_initialized, strict=True) if initialized]
    for x, final in zip(args, finals, strict=True):
        if _jax.is_reference(x):
            x[...] = final
    return outs


def _inlined(body_in: Callable[[Any], Any]) -> Holder:
    """A holder that inlines a primitive's body. The rest of the primitive is for transformations, which are over."""

    def run(extra: Extra, *args: Any, **params: Any) -> Sequence[Any]:
        return extra.run(body_in(params), args)

    return run


for _primitive, _body_in in _jax.inlined_calls().items():
    holds(_primitive)(_inlined(_body_in))
