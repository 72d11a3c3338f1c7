"""Calls of Python functions: the content of `fx.callback` and of JAX's own callbacks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects._model.content import Content, described_by

if TYPE_CHECKING:
    from effects._model.record import Record
    from effects._model.site import Operand


# Numbers for objects of one name: functions that are closures of one code, and classes that are defined again.
#
# They are the same in each process that meets the objects in the same order, where an address is not. So what is
# described by name and number is found again in JAX's persistent compilation cache, and two objects stay two.


class Numbering:
    """By name: the objects that have been met, from 0 on."""

    def __init__(self) -> None:
        self._next: dict[str, Iterator[int]] = {}
        # By name and identity. An entry goes with its object, ahead of the object's memory, so that none is met under
        # an address that another had before. There is no lock, as the object may go at any time.
        self._numbers: dict[Any, tuple[weakref.ref[Any], int]] = {}

    def number_of(self, name: str, owner: Any, part: Any = None) -> int:
        """The number of an object, or of a part that its owner keeps alive, among those of this name."""
        identity = name, id(owner), id(part)
        if (known := self._numbers.get(identity)) is not None:
            return known[1]
        number = next(self._next.setdefault(name, itertools.count()))
        with contextlib.suppress(TypeError):  # what cannot be referred to weakly is another one each time
            entry = weakref.ref(owner, lambda _: self._numbers.pop(identity, None)), number
            return self._numbers.setdefault(identity, entry)[1]  # another thread may have been first
        return number


# Functions of the user's that programs call, and the names under which other processes know them.

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


_F = TypeVar("_F", bound=Callable[..., Any])

_registered: dict[str, Callable[..., Any]] = {}  # by name; written under the lock, never removed from
_names: dict[int, str] = {}  # by the function's address, which is its own for good
_lock = threading.Lock()


def register_callback(name: str) -> Callable[[_F], _F]:
    """Gives a function a name by which programs of other processes find it.

    A program that is exported can call back registered functions only: it carries their names. The process that runs it
    registers its own function under the name.

    Registering a function again changes nothing; a different one under a taken name is an error.

    Args:
        name: The name. Choose one that means the same in every process.

    Returns:
        A decorator that returns the function itself.

    Example:
        >>> import effects as fx
        >>> @fx.register_callback("examples.greet")
        ... def greet(x):
        ...     print("hello", x)
        >>> fx.jit(lambda x: fx.callback(greet, None, x))(1)
        >>> fx.effects_barrier()
        hello 1
    """
    if not isinstance(name, str) or not name:
        raise TypeError(MSG_CALLBACK_NAME.format(name=errors.shown(name)))

    def register(fn: _F) -> _F:
        if not callable(fn):
            raise TypeError(MSG_CALLBACK_REGISTERED.format(name=name, fn=errors.shown(fn)))
        with _lock:
            known = _registered.setdefault(name, fn)
            if known is not fn:
                raise ValueError(MSG_CALLBACK_TAKEN.format(name=name, known=known, fn=fn))
            _names.setdefault(id(fn), name)
        return fn

    return register


class HostFunction:
    """A function of the user's, with a key by which records name it.

    The key of a registered function is its name, under which other processes find it. That of another says where it
    stands in the source, and never in memory: a process that traces the same programs has the same keys, and finds the
    programs in JAX's persistent compilation cache.
    """

    __slots__ = ("__weakref__", "_fn", "key", "name", "registered")

    def __init__(
        self, fn: Callable[..., Any] | None, key: str | None = None, name: str | None = None, registered: bool = False
    ):
        self._fn = fn
        self.name: str = name or function_name(fn)
        self.key: str = key or _local_key(fn, self.name)
        self.registered: bool = registered

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> HostFunction:
        """The function as records name it."""
        name = _names.get(id(fn))
        return cls(fn) if name is None else cls(None, name, name, True)

    @property
    def fn(self) -> Callable[..., Any] | None:
        """The function, if this process has it."""
        return _registered.get(self.key) if self.registered else self._fn


def function_name(fn: Any) -> str:
    """What a function is called in messages."""
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__


_numbering = Numbering()


def _local_key(fn: Any, name: str) -> str:
    """Module, qualified name and number: the same for the same function, and another for each other."""
    place = f"{getattr(fn, '__module__', None)}:{function_name(fn)}:{name}"
    if isinstance(fn, types.MethodType):  # made anew whenever it is asked for
        return f"{place}#{_numbering.number_of(place, fn.__self__, fn.__func__)}"
    return f"{place}#{_numbering.number_of(place, fn)}"


class UnexpectedResults(TypeError):
    """A function did not return what its program expects. Its arguments are both, in words."""


@described_by("function")
@dataclasses.dataclass(frozen=True)
class HostCall(Content):
    """A call of `fx.callback`, or of a callback of JAX's."""

    delivered_individually = True

    raises_itself: ClassVar[bool] = False
    """Whether what the function raises says all by itself, and is raised as it is: it ends the program."""

    function: HostFunction
    results: tuple[Operand, ...] | None = None  # types of the results in one lane; None: no program waits for any
    tree: Any = None  # their treedef, or its text in a process that has no more
    pass_record: bool = False
    vmap_method: str | None = None  # as for `jax.pure_callback`; None: lane by lane
    prints: bool = False  # whether the function returns text to print

    @property
    def title(self) -> str:
        return self.function.name

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        return (self.function,)

    @property
    def runs_with_empty_mask(self) -> bool:
        """Whether a device comes to it even if no lane has it there. `without_lanes` then says what this means."""
        return False

    def resized(self, resize: Callable[[Operand], Operand]) -> HostCall:
        """The content with other sizes in place of those that are symbols."""
        return dataclasses.replace(self, results=tuple(map(resize, self.results))) if self.results else self

    def describe(self) -> dict[str, Any]:
        described = {
            "function": self.function.key,
            "name": self.function.name,
            "registered": self.function.registered,
            "results": None if self.results is None else [result.describe() for result in self.results],
            "structure": str(self.tree),
            "pass_record": self.pass_record,
        }
        if self.vmap_method is not None:
            described["vmap_method"] = self.vmap_method
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> HostCall:
        function = HostFunction(None, description["function"], description["name"], description["registered"])
        results = description["results"]
        results = None if results is None else tuple(map(read_operand, results))
        tree, pass_record = description["structure"], description["pass_record"]
        return cls(function, results, tree, pass_record, description.get("vmap_method"))

    def text(self, record: Record) -> str:
        given = [*map(str, record.args), *(f"{name}={value}" for name, value in record.fields.items())]
        return f"{self.function.name}({', '.join(given)})"

    @property
    def is_vectorized(self) -> bool:
        """Whether it is called once for all lanes."""
        return self.vmap_method is not None and not self.vmap_method.startswith("sequential")

    @functools.cached_property
    def only_result(self) -> Operand | None:
        """What it returns, if that is one array by itself."""
        return self.results[0] if self.results and self.has_structure(_ONE) else None

    def has_structure(self, tree: Any) -> bool:
        """Whether results are of this structure."""
        return tree == self.tree or str(tree) == self.tree


_ONE = jax.tree.structure(0)
_SIMPLE = {str(jax.tree.structure(None)): "None", str(_ONE): "one array"}
"""What messages call a structure."""


def take_results(call: HostCall, returned: Any, types: Sequence[Operand]) -> list[np.ndarray]:
    """What a callback returned, for one lane or for all, as arrays of these types as they travel.

    Raises:
        UnexpectedResults: if structure, shapes or dtypes are not those that were asked for.
    """
    if call.only_result is not None and isinstance(returned, _ARRAY):
        return [_take_result(returned, types[0])]
    leaves, tree = jax.tree.flatten(returned)
    if not call.has_structure(tree):
        raise UnexpectedResults(*(_SIMPLE.get(x, f"the structure {x}") for x in (str(tree), str(call.tree))))
    return [_take_result(leaf, result) for leaf, result in zip(leaves, types, strict=True)]


_ARRAY = np.ndarray, np.generic


def _take_result(leaf: Any, result: Operand) -> np.ndarray:
    if type(leaf) is np.ndarray and leaf.dtype is result.stored and leaf.shape == result.shape:
        return leaf  # all the tests below, for what is most common
    if type(leaf) in (bool, int, float, complex):
        # A Python number has no type of its own: it takes the result's, if that can hold it.
        kinds = {bool: "b", int: "biufc", float: "fc", complex: "c"}[type(leaf)]
        kind = result.dtype.kind if result.dtype.kind in "biufc" else ("f" if _is_float(result.dtype) else "i")
        if result.shape or kind not in kinds or (kind == "b" and leaf not in (0, 1)):
            raise UnexpectedResults(f"the Python number {leaf!r}", _describe(result))
        if kind in "iu":
            bounds = jnp.iinfo(result.dtype)
            fits = bounds.min <= leaf <= bounds.max
        else:
            fits = _fits_float(leaf, result.dtype)
        if not fits:
            raise UnexpectedResults(f"the Python number {leaf!r}", _describe(result))
        return np.asarray(leaf, result.dtype).astype(result.stored)
    if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        raise UnexpectedResults(f"{leaf!r} of type `{type(leaf).__name__}`", _describe(result))
    if leaf.shape != result.shape or leaf.dtype != result.dtype:
        raise UnexpectedResults(_describe(leaf), _describe(result))
    value = np.asarray(leaf)
    return value if result.stored == result.dtype else value.astype(result.stored)


def _fits_float(number: Any, dtype: np.dtype) -> bool:
    """Whether a number that is finite stays so."""
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(number, dtype).astype(np.complex128)
        return bool(np.isfinite(value)) or not np.isfinite(complex(number))
    except OverflowError:
        return False


def _is_float(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, np.floating))


def _describe(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
