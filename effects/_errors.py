"""Exceptions, and the texts of errors: what happened, which rule it broke, what to do."""

from __future__ import annotations


class EffectError(RuntimeError):
    """An effect could not be carried out on the host. Raised at a barrier; what went wrong is its `__cause__`."""


class FormatError(ValueError):
    """A format string and its arguments do not fit together. Raised while tracing."""


class MissingTokenRule(NotImplementedError):
    """An effect is inside a primitive through which tokens cannot be carried."""


class BarrierTimeout(TimeoutError):
    """`effects_barrier` gave up waiting."""


MSG_EFFECT_NAME = (
    "An effect was given the name {name!r}. An effect's name is a non-empty string. Write, say, `fx.Effect('ping')`."
)
MSG_EFFECT_KIND = (
    "Effect {name!r} was given the kind {kind!r}. An effect happens either on the host, replayed in order, or on the "
    "device. Write `kind='host'` or `kind='device'`."
)
MSG_EFFECT_DOMAIN_TYPE = (
    "Effect {name!r} was given the domain {domain!r}. An order domain is named by a string. Leave `domain` out for a "
    "domain of its own, or name one, such as 'program'."
)
MSG_EFFECT_PLACE = (
    "Effect {name!r} was allowed in {unknown}, which JAX does not ask about. `allowed_in` takes any of {places}. "
    "Remove what is unknown, or leave `allowed_in` out to allow all of them."
)
MSG_NOT_AN_EFFECT = (
    "`register_effect` was given {what!r}. What is registered is an `fx.Effect`. Write "
    "`fx.register_effect(fx.Effect('ping'))`."
)
MSG_UNKNOWN_DOMAIN = (
    "Effect {name!r} names the order domain {domain!r}, which does not exist. A domain comes into being with the first "
    "effect that has it as its own, that is, by its own name. Name one of {domains}, or leave `domain` out."
)
MSG_EFFECT_TAKEN = (
    "The name {name!r} is taken: it is registered as {known!r} and cannot become {effect!r}. A name means one effect "
    "for the whole process, because programs carry it. Choose another name, or register it with the same fields."
)
MSG_UNKNOWN_EFFECT = (
    "{name!r} is not a registered effect. Effects are named as they were registered; these are known: {known}. "
    "Correct the name, or register the effect first with `fx.register_effect`."
)
MSG_SETTING = (
    "The setting {where} was given {value!r}. It takes {expected}. Correct it, or leave it out for the default, "
    "{default!r}."
)
MSG_UNKNOWN_SETTING = "`fx.config` has no setting {name!r}. The settings are {known}. Correct the name."

MSG_FMT_TYPE = (
    "`{call}` at {where} was given {fmt!r} as its format. The format is a string, as for `str.format`. Write "
    "`{call}('{{}}', x)` to print a value."
)
MSG_FORMAT = (
    "The format {fmt!r} of `{call}` at {where} cannot be filled: {why}. Formats follow `str.format`, with one argument "
    "for every field. {remedy}"
)
MSG_UNUSED = (
    "`{call}` at {where} has arguments that its format {fmt!r} does not use: {unused}. Every argument must have its "
    "field, since an argument without one is never seen. Add {fields} to the format, or remove the arguments."
)
MSG_TRACER_IN_FMT = (
    "The format of `{call}` at {where} holds the text of a traced value: {fmt!r}. An f-string is filled while tracing, "
    "when values are not known yet. Write `{call}('{{}}', x)` instead of `{call}(f'{{x}}')`."
)
MSG_ARGUMENT = (
    "`{call}` at {where} was given {value} of type {type} as {path}. Arguments are pytrees of arrays, and strings, "
    "numbers and None are taken as they are. Pass {remedy}."
)

MSG_MISSING_RULE = (
    "Effect {effects} reached the primitive `{primitive}` at {where}, which has no token rule. Effects need one "
    "unbroken chain of tokens through the program, and it would break here. Move the effect out of `{primitive}`, or "
    "register a rule with `@lowering.register_token_rule({primitive}_p)`."
)
MSG_BATCHED_WHILE = (
    "A `while` loop whose condition differs between the lanes of a `vmap` has the effect {effects}, at {where}. "
    "Effects of a lane must end when the lane does, which has no rule yet. Move the effect out of the loop, or loop "
    "over the lanes with `jax.lax.map`."
)
MSG_BATCHED_COND = (
    "A `cond` or `switch` whose predicate differs between the lanes of a `vmap` has the effect {effects} in a branch. "
    "Effects of a branch happen for the lanes that take it, which has no rule yet. Move the effect out of the branch, "
    "or loop over the lanes with `jax.lax.map`."
)
MSG_UNKNOWN_IN_PROGRAM = (
    "The program has the effect {effect!r} at {where}, which is not registered. Order domains are settled when an "
    "effect is registered. Call `fx.register_effect` with it before tracing."
)
MSG_RULE_RETURNED = (
    "The token rule for `{primitive}` returned {got}. A rule returns `(tokens, outs)`: the tokens under the keys it "
    "was given ({keys}), and one value for each of the equation's {outs} results. Correct the rule."
)

MSG_NOT_CALLABLE = (
    "`fx.jit` was given {fun!r}, which cannot be called. What is jitted is a function, as for `jax.jit`. Pass a "
    "callable: `fx.jit(f)`."
)
MSG_TIMEOUT_VALUE = (
    "`effects_barrier` was given the timeout {timeout!r}. A timeout is a number of seconds, zero or more, or None to "
    "wait for as long as it takes. Pass, say, `timeout=10`."
)
MSG_SCOPE = (
    "`effects_barrier` was given the scope {scope!r}. A barrier waits for this process; waiting for all processes is "
    "not there yet. Pass `scope='local'`, or leave it out."
)
MSG_BARRIER_TIMEOUT = (
    "The barrier waited {timeout} s and these have not ended: {outstanding}. A barrier returns when all that was "
    "issued before it is visible on the host. Wait longer, or look at what keeps the device busy."
)
MSG_REPLAY = (
    "The effect `{effect}` at {where}, in {function}, could not be carried out on the host: {error}. It was replayed "
    "in its turn, and the effects after it went on. Correct what the cause below says."
)
MSG_OUTPUT_CLOSED = (
    "Text of `print` could not be written: the output that was in force when the program was called is closed, and so "
    "is the present `sys.stdout`. Printed lines go to the `sys.stdout` of the call. Call `fx.effects_barrier()` before "
    "closing it."
)
MSG_NATIVE_MISSING = (
    "The native module `_token_effects` is not there. It is built when the package is installed. Install the package "
    "with `pip install .` in its folder."
)
MSG_NATIVE_VERSION = (
    "The native module is of another version ({found}) than the Python code ({expected}). Both must come from one "
    "installation. Install the package anew with `pip install .`."
)
