"""Exceptions, and the texts of errors: what happened, which rule it broke, what to do."""

from __future__ import annotations


class EffectError(RuntimeError):
    """An effect could not be carried out on the host. Raised at a barrier; what went wrong is its `__cause__`."""


class CustomCallError(EffectError):
    """A custom call failed, or has no handler.

    Attributes:
        target: The name of its handler.
        where: The user's line that called it.
        code: The name of the status that the handler returned, such as `"INVALID_ARGUMENT"`.
        message: What the handler said.
    """

    def __init__(self, text: str, target: str = "", where: str = "", code: str = "UNKNOWN", message: str = ""):
        super().__init__(text)
        self.target, self.where, self.code, self.message = target, where, code, message


class FormatError(ValueError):
    """A format string and its arguments do not fit together. Raised while tracing."""


class MissingTokenRule(NotImplementedError):
    """An effect is inside a primitive through which tokens cannot be carried."""


class NotDifferentiable(NotImplementedError):
    """A derivative was asked of what a callback returns."""


class BarrierTimeout(TimeoutError):
    """`effects_barrier` gave up waiting."""


def shown(thing: object) -> str:
    """What `repr` says of something, whatever it does."""
    try:
        return repr(thing)
    except BaseException:
        return f"an object of type {type(thing).__qualname__}"


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

MSG_CALLBACK_NOT_CALLABLE = (
    "`fx.callback` at {where} was given {fn} as its function. What is called back is a function, or anything else "
    "that can be called. Pass the function first: `fx.callback(fn, None, x)`."
)
MSG_VMAP_METHOD = (
    "`fx.callback` at {where} was given the vmap_method {given!r}. It says how a function is called for many lanes. "
    "Pass one of {known}."
)
MSG_RESULT_TYPE = (
    "`fx.callback` at {where} was given {got!r} among the results of `{name}`. A result is described by an object with "
    "a shape and a dtype of numbers or booleans. Pass, say, `jax.ShapeDtypeStruct((3,), 'float32')`, or None for a "
    "function without results."
)
MSG_RESULT_64 = (
    "`fx.callback` at {where} was given a result of `{name}` of type {dtype}. Arrays of 64 bits exist only with "
    "`jax_enable_x64`, which is off. Ask for 32 bits, or set `jax.config.update('jax_enable_x64', True)`."
)
MSG_RETURNED = (
    "The callback `{name}` returned {got}, where {expected} was expected. What it returns must have the structure, "
    "shapes and dtypes of the `result_shape_dtypes` given at {where}. Change what it returns, or what was asked for."
)
MSG_RETURNED_SOME = (
    "The callback `{name}` returned values, where none were expected. A callback without `result_shape_dtypes` returns "
    "None. Return nothing, or describe what is returned."
)
MSG_UNORDERED_SHARDED = (
    "The unordered callback `{name}` at {where} has results and is in a program that is sharded over several devices. "
    "It is called once for all of them, and only ordered calls can be told to be the same. Leave out `ordered=False`."
)
MSG_PER_SHARD_RESULTS = (
    "The callback `{name}` at {where} has results and `per_shard=True`. Results are of the whole array, and a shard's "
    "call knows its part only. Call it inside a `jax.shard_map`, where each device has its own results, or leave out "
    "`per_shard=True`."
)
MSG_PER_SHARD_HERE = (
    "Effect `{effect}` at {where} has `per_shard=True` {place}. How arrays are sharded is not known there. Leave out "
    "`per_shard=True`, or {remedy}."
)
MSG_PLAIN_SHARDED = (
    "Effect `{effect}` at {where} is in a program for several devices that `fx.jit` has not made. JAX keeps the order "
    "of effects on one device only, and XLA's partitioner takes none without an order. Write `fx.jit` in place of "
    "`jax.jit`, or around `jax.pmap`; where jit is disabled, or JAX looks for a NaN, do without."
)
MSG_FOREIGN_CALLBACK = (
    "The program calls back the function `{name}` of another process. A function cannot travel with a program: its "
    "name can. Register it under one name in both processes, with `@fx.register_callback('some.name')`."
)
MSG_CALLBACK_NAME = (
    "`register_callback` was given the name {name}. A name is a non-empty string, the same in every process. Write, "
    "say, `@fx.register_callback('training.save')`."
)
MSG_CALLBACK_REGISTERED = (
    "`register_callback({name!r})` was given {fn} as its function. What is called back is a function, or anything else "
    "that can be called. Use it as a decorator of a function."
)
MSG_CALLBACK_TAKEN = (
    "The name {name!r} is taken: {known!r} is registered under it, and {fn!r} cannot be. A name means one function for "
    "the whole process, because programs carry it. Choose another name."
)
MSG_EXPORT_CALLBACK = (
    "The program `{program}` cannot leave this process: it calls back the function `{name}` at {where}. A function "
    "cannot travel with a program: its name can. Decorate it with `@fx.register_callback('some.name')`, here and where "
    "the program will run."
)
MSG_SERIALIZE_CALLBACK = (
    "The compiled program cannot leave this process: it calls back the function `{name}` at {where}. A function cannot "
    "travel with a program: its name can. Decorate it with `@fx.register_callback('some.name')`, here and where the "
    "program will run."
)
MSG_EXPORT_PLATFORM = (
    "The program `{program}` has effects and cannot be exported for {platforms}. A program takes its effects along "
    "only where there are native handlers ({known}, with the setting `native` on). Export it for these platforms, or "
    "without its effects."
)
MSG_EXPORT_NODE = (
    "The program `{program}` cannot be exported: {effect} at {where} is given a {types}. Another process knows only "
    "dictionaries, lists, tuples and named tuples. Pass it as one of these."
)
MSG_EXPORT_VJP = (
    "The derivative of the exported program `{program}` was asked for, and the program has effects. An exported "
    "derivative computes the program anew, and its effects would happen again. Export the derivative as a function of "
    "its own: `fx.export(jax.grad(f))`."
)
MSG_JAX_EXPORT = (
    "`jax.export` was given `{program}`, which `fx.jit` compiled. It knows nothing of the tokens that such a function "
    "takes and returns. Write `fx.export` in place of `jax.export.export`."
)
MSG_EXPORT_REFERENCE = (
    "The program `{program}` cannot be exported: it takes a mutable reference. JAX exports functions of values only. "
    "Pass `ref[...]`, and return what is to be written back."
)
MSG_EXPORTED_FOR_ONE = (
    "The program `{program}` was exported for one device, has effects, and is called over {devices} devices. Every "
    "device would have the effects. Export it for as many devices: `fx.export(fx.jit(f, in_shardings=...))`."
)
MSG_EXPORT_OF_PROCESSES = (
    "The program `{program}` has effects, and was exported for several devices where there are several processes. Each "
    "process knows only its own devices, and the program would be of these. Export it in a process by itself."
)
MSG_EXPORTED_OF_PROCESSES = (
    "The exported program `{program}` has effects, and is called over the devices of several processes. A process "
    "waits for the effects of its own devices, and the program does not say how many these are. Call the function that "
    "it was exported from."
)
MSG_EXPORTED_STRUCTURE = (
    "The exported program `{program}` was called with {got}, where {expected} was expected. Arguments have the "
    "structure with which the program was exported. Call it with the same arguments, by position and by name."
)
MSG_EXPORTED_IN_JAX_JIT = (
    "The exported program `{program}`, which has effects, is part of a program that plain `jax.jit` compiles. Its "
    "effects are ordered by tokens, which `fx.jit` supplies. Compile the outer function with `fx.jit`."
)
MSG_DESERIALIZE = (
    "`fx.deserialize` was given {what}. It reads what the `serialize` of an exported program returned, in this version "
    "of the format ({version}). Export with `fx.export(f)(*args).serialize()`, and with this version of token-effects."
)
MSG_MISSING_CALLBACKS = (
    "The exported program `{program}` calls back functions that are not registered here: {names}. A program carries "
    "the names of its callbacks, and each process its own functions. Decorate them with `@fx.register_callback(name)` "
    "before `fx.deserialize`."
)
MSG_LOADED_IN_TRACE = (
    "The compiled program `{program}` was called while another function is traced. It is compiled and cannot become "
    "part of another. Call it outside, or call the function that it was compiled from."
)
MSG_AGAIN = (
    "The call of `{name}` at {where} is in a `while` loop that is linearized. JAX runs such a loop once more for the "
    "tangents, and a function whose results the loop needs would be called again. Use `jax.jvp`, which runs it once, "
    "or `jax.lax.scan`."
)
MSG_TARGET_NAME = (
    "A custom call was given the name {name}. It is known by a non-empty string. Write, say, "
    "`fx.register_custom_call('my_library.scale', handler)`."
)
MSG_TARGET_PLATFORM = (
    "The custom call {name!r} was registered for the platform {platform!r}. Handlers run on {known}. Pass one of these "
    "as `platform`."
)
MSG_TARGET_TAKEN = (
    "The custom call {name!r} was registered for `{platform}` with another handler. Compiled programs know handlers by "
    "name, so a name keeps the handler that it has. Choose another name."
)
MSG_TARGET_SYMBOL = (
    "The custom call {name!r} was registered with the symbol {symbol!r}, which {library!r} does not have. A handler is "
    "a function with C linkage, as `XLA_FFI_DEFINE_HANDLER_SYMBOL` makes it. Look at the library with `nm -D`."
)
MSG_TARGET_HANDLER = (
    "The custom call {name!r} was registered with {handler}. A handler is native: a capsule, a function of a `ctypes` "
    "library, one that returns a capsule, or a pair (library, symbol). For a Python function use `fx.callback`."
)
MSG_UNKNOWN_TARGET = (
    "The custom call `{target}` at {where} has no handler for {platform}. A program calls handlers by name; registered "
    "are {known}. Register it with `fx.register_custom_call` first."
)
MSG_CUSTOM_CALL = (
    "The custom call `{target}` at {where}, in {function}, failed. A handler that returns an error ends its program, "
    "and the next call begins anew. It returned {code}: {message}"
)
MSG_CUSTOM_OPERAND = (
    "The custom call `{target}` at {where} was given the operand {given}. Operands are arrays of numbers. Pass an "
    "array; pass what is known while tracing as an attribute, by name, and of a random key its `jax.random.key_data`."
)
MSG_CUSTOM_RESULT = (
    "The custom call `{target}` at {where} was given {given} among its results. A result is described by an object "
    "with `shape` and `dtype`. Pass `jax.ShapeDtypeStruct(shape, dtype)`, or an array of that shape and type."
)
MSG_CUSTOM_LAYOUT = (
    "`fx.custom_call` at {where} was given {given} as `{name}`. There is one layout for each flat array, None or all "
    "its axes from the slowest to the fastest. Pass a sequence for arrays with {ranks} axes."
)
MSG_CUSTOM_ALIAS = (
    "`fx.custom_call` at {where} was asked to give {operand} and {result} the same memory. An operand and a result, "
    "counted in flat order from 0, can share it if their shapes, types and layouts are the same. Change "
    "`input_output_aliases`."
)
MSG_CUSTOM_ALIASES = (
    "`fx.custom_call` at {where} was given {given} as `input_output_aliases`. It says which operand is the memory of "
    "which result, both counted in flat order from 0. Pass a dictionary, say `{{0: 0}}`."
)
MSG_CUSTOM_EFFECT = (
    "`fx.custom_call` at {where} was given the effect {effect}. An effect is registered before it is used; known are "
    "{known}. Write `fx.register_effect(fx.Effect('ping', kind='device'))`, and pass that."
)
MSG_ATTRIBUTE_NAME = (
    "`fx.custom_call` at {where} was given an attribute with the name {name}. A handler finds attributes by name, an "
    "identifier in ASCII letters. Rename it."
)
MSG_ATTRIBUTE = (
    "`fx.custom_call` at {where} was given {given} as the attribute `{name}`. An attribute is known while tracing: a "
    "number, a string, bytes, an array (of integers, float32 or float64), or a dictionary of these. Pass what is "
    "computed as an operand."
)
MSG_CUSTOM_VMAP_METHOD = (
    "`fx.custom_call` at {where} was given the vmap_method {given!r}. It says how a handler is called for many lanes. "
    "Pass one of {known}."
)
MSG_CUSTOM_VMAP = (
    "The custom call `{target}` at {where} is under `vmap`, and has no `vmap_method`. JAX cannot know what a handler "
    "makes of one more axis. Pass `vmap_method='sequential'` to call it lane by lane, or another that it understands."
)
MSG_CUSTOM_DERIVATIVE = (
    "A derivative was asked of the results of the custom call `{target}` at {where}. JAX cannot look into native code. "
    "Wrap the call in `jax.custom_jvp` or `jax.custom_vjp`, or its arguments in `jax.lax.stop_gradient`."
)
MSG_NOT_DIFFERENTIABLE = (
    "A derivative was asked of the results of the callback `{function}` at {where}. JAX cannot look into a Python "
    "function. Wrap the call in `jax.custom_jvp` or `jax.custom_vjp`, or its arguments in `jax.lax.stop_gradient`."
)
MSG_TRANSPOSED = (
    "Effect `{effect}` at {where} has an operand that depends on the argument of a linear function which is "
    "transposed. The transposed function gets a cotangent, and the argument never has a value there. Use "
    "`fx.print_grad` to see the cotangent, or move the effect out of the function."
)
MSG_LOG_EVENT = (
    "`fx.log` at {where} was given {event!r} as its event. An event is named by a non-empty string, and values are its "
    "fields. Write, say, `fx.log('step', loss=loss)`."
)
MSG_LOG_LEVEL = (
    "`fx.log` at {where} was given the level {level!r}. A level is a whole number, as for `logging`. Pass, say, "
    "`level=logging.WARNING`."
)
MSG_LOG_FIELD = (
    "`fx.log` at {where} was given fields named {names}. Every log record has attributes of these names for itself. "
    "Choose other names, say `{first}_`."
)
MSG_HANDLER = (
    "`add_handler` was given {handler}, which has no method `handle` and cannot be called. A handler takes one "
    "`Record` at a time. Pass a function of a record, or an object with `handle(record)`."
)
MSG_HANDLER_TOKEN = (
    "`remove_handler` was given {token}, which is no handler that is there. A handler is removed once, by what "
    "`add_handler` returned for it. Keep that, and pass it."
)
MSG_HANDLER_FAILED = (
    "The handler {handler} raised {error} for a record of `{effect}` at {where}. A handler's error is reported once; "
    "it gets the records after it all the same, as do the other handlers. Correct what the cause below says."
)

MSG_MISSING_RULE = (
    "Effect {effects} reached the primitive `{primitive}` at {where}, which has no token rule. Effects need one "
    "unbroken chain of tokens through the program, and it would break here. Move the effect out of `{primitive}`, or "
    "register a rule with `@lowering.register_token_rule({primitive}_p)`."
)
MSG_PARTLY_MANUAL = (
    "Effect {effects} at {where} is in a `jax.shard_map` over some axes of its mesh and not all, and JAX's setting "
    "`jax_use_shardy_partitioner` is off. The older partitioner does not say which devices are copies of each other "
    "there. Turn the setting on, name all axes in `axis_names`, or move the effect out."
)
MSG_REGION_IN_REGION = (
    "Effect {effects} at {where} is in a `jax.shard_map` inside another one that has effects of its own, or that not "
    "all devices may come to. A device counts its effects in one of them. Have the effects in the inner one only, or "
    "in the outer one only, by naming all axes in its `axis_names`."
)
MSG_REGION_WITHOUT_NATIVE = (
    "Effects in a `jax.shard_map` were lowered without the native module. Each device has effects of its own there, "
    "and JAX's Python callbacks, which stand in for it, do not say which device they are for. Use a platform with "
    "native handlers (CPU) with the setting `native`, or move the effects out."
)
MSG_PARTLY_OF_PROCESSES = (
    "Effect {effects} at {where} is in a `jax.shard_map` over some axes of its mesh, and there are several processes. "
    "One of the devices that are copies of each other speaks for them, and a process hears only its own. Name all axes "
    "in `axis_names`, or move the effect out."
)
MSG_MESH_ELSEWHERE = (
    "Effect {effects} at {where} is in a `jax.shard_map` over an abstract mesh, of {mesh} devices, and the program was "
    "called for {devices}. Every device of the mesh has a token of the program, which lies on the devices that the "
    "program is called for. Put an argument on all of them (`jax.device_put(x, jax.NamedSharding(mesh, spec))`), or "
    "call the program inside `jax.set_mesh(mesh)`, with a mesh that has devices."
)
MSG_REGION_OF_PROCESSES = (
    "Effects in a `jax.shard_map` over an abstract mesh were lowered where there are several processes. A process "
    "waits for the effects of its own devices, and an abstract mesh does not say which these are. Give `jax.shard_map` "
    "a mesh with devices, or call the program inside `jax.set_mesh(mesh)`."
)
MSG_MISSING_MASK = (
    "Effect {effects} reached the primitive `{primitive}` at {where}, under a predicate that differs between the lanes "
    "of a `vmap`. There only some lanes have the effect, and there is no rule by which `{primitive}` could tell. Move "
    "the effect out of `{primitive}`, or loop over the lanes with `jax.lax.map`."
)
MSG_MASKED_STATE = (
    "A {control} whose predicate differs between the lanes of a `vmap` has effects and uses a mutable reference from "
    "outside. It runs for all lanes together, and what a lane that is not there would write cannot be held back. "
    "Carry the value in place of the reference, or loop over the lanes with `jax.lax.map`."
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
    "`effects_barrier` was given the scope {scope!r}. A barrier is of this process, or of all processes of "
    "`jax.distributed`. Pass `scope='local'` or `scope='global'`."
)
TIMED_OUT = "DEADLINE_EXCEEDED"
"""In JAX's errors: a process did not come to a barrier in time."""
MSG_GLOBAL_TIMEOUT = (
    "The barrier of {count} processes {waited}, and {problem}. It returns when every process has called it and what "
    "each of them issued before is visible there. Wait longer, or look at what keeps a process that is missing, or has "
    "ended it."
)
MSG_BARRIER_TIMEOUT = (
    "The barrier waited {timeout} s and these have not ended: {outstanding}. A barrier returns when all that was "
    "issued before it is visible on the host. Wait longer, or look at what keeps the device busy."
)
MSG_UNKNOWN_CONTENT = (
    "A program has an effect whose records are described by {kind!r}, and this process knows those described by "
    "{known}. A description can be read where the modules of all effects of the program are imported. Install the "
    "version of token-effects that the program was made with, or import the module that declares the effect."
)
MSG_REPLAY = (
    "The effect `{effect}` at {where}, in {function}, could not be carried out on the host: {error}. It was replayed "
    "in its turn, and the effects after it went on. Correct what the cause below says."
)
MSG_CALLBACK = (
    "The callback `{name}` at {where}, in {function}, raised {error}. It ran in its turn, and the effects after it "
    "went on, since nobody waited for it. Correct what the cause below says."
)
WAITED = "The program waited for its results and could not go on without them."
MSG_AWAITED_CALLBACK = (
    "The callback `{name}` at {where}, in {function}, raised {error}. " + WAITED + " Correct what the cause below says."
)
NOTE_PROGRAM_ENDED = (
    "{before} effects of the program came before it. After it {after} that were already recorded were replayed, "
    "{cancelled} callbacks that had been asked for did not run, and what the program would have done later never was."
)
NOTE_MANY_FAILURES = "{count} more effects of this program could not be carried out either."
MSG_STUCK = (
    "The callback `{name}` at {where} waits for a computation over several devices, and its own program keeps these "
    "waiting for it. Devices run one program over several of them at a time, so neither could go on: the program was "
    "ended. Compute in the callback with NumPy or on one device, or ask for no results."
)
MSG_STARVED = (
    "The callback `{name}` at {where} waits for a computation that does not begin, and nothing is computed meanwhile. "
    "Programs that wait for callbacks, and its own is one, keep the devices, or all the threads on which XLA computes, "
    "as many as there are processors or CPU devices: the program was ended. Compute in the callback with NumPy, ask "
    "for no results, or set the environment variable `PJRT_NPROC` to a number of threads above that of devices."
)
MSG_CANCELLED = (
    "The {effect} at {where} did not run. Its program had failed before its turn came. See the error of that program."
)
MSG_PROCESS_ENDS = (
    "A callback did not run. The process ends, and no effects are replayed any more. Call `fx.effects_barrier()` first."
)
MSG_OUTPUT_CLOSED = (
    "Text of `print` could not be written: the output that was in force when the program was called is closed, and so "
    "is the present `sys.stdout`. Printed lines go to the `sys.stdout` of the call. Call `fx.effects_barrier()` before "
    "closing it."
)
MSG_LOG_UNREADABLE = (
    "The log {path} cannot be read: {why}. `effects merge` takes files that `fx.JsonLinesHandler` has written, one of "
    "each process. Look at the name and the permissions of the file."
)
MSG_LOG_EMPTY = (
    "The log {path} is empty. A log says with each record of which run and process it is. See why its process has "
    "written nothing."
)
MSG_LOG_LINE = (
    "Line {line} of the log {path} {why}. Each line is a record, as `fx.JsonLinesHandler` writes it, and a process "
    "that was ended may leave half of one. Remove the line, or take the file that the handler has written."
)
MSG_LOG_OF_SEVERAL = (
    "Line {line} of the log {path} is of another process or run than its first line. A log is of one process. Merge "
    "the logs as their processes have written them, each in a file of its own."
)
MSG_LOG_TWICE = (
    "Lines {known} and {line} of the log {path} have the same token. A token is a place in program order, and no two "
    "effects of a process have the same. Merge logs as their processes have written them, each in a file of its own."
)
MSG_LOG_RUNS = (
    "The logs {path} and {other} are of different runs. Logs are merged if they were written by the processes of one "
    "`jax.distributed.initialize`. Merge each run by itself."
)
MSG_LOG_PROCESS_TWICE = (
    "The logs {path} and {other} are both of process {process}. Each process of a run has one log. Leave one of them "
    "out."
)
MSG_LOG_MISSING = (
    "There is no log of process {missing}, of {count} processes in this run. The order can be found only if all "
    "processes have their say. Name the logs of all of them."
)
MSG_LOGS_DIFFER = (
    "The logs {a} and {b} differ: the first has {first}, where the second {second}. All processes of a run call the "
    "same programs in the same order, since that is what their tokens count. Call them alike in every process; what is "
    "to differ belongs into a `jax.shard_map`."
)
MSG_MERGE_OUTPUT = (
    "The merged log cannot be written to {path}: {why}. The output is a file of its own. Name another after `-o`."
)

MSG_NATIVE_MISSING = (
    "The native module `effects._native` is not there. It is built when the package is installed. Install the package "
    "with `pip install .` in its folder."
)
MSG_NATIVE_VERSION = (
    "The native module is of another version than the Python code: `{what}` is {found} there, and {expected} here. "
    "Both must come from one installation. Install the package anew with `pip install .`."
)
