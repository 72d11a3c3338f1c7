"""Functions of the user's that programs call, and the names under which other processes know them."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any, TypeVar

from effects import _errors as errors
from effects._model.numbering import Numbering

_PAGE = "docs/guide/export.md"
MSG_CALLBACK_NAME = (
    "`register_callback` was given the name {name}. A name is a non-empty string, the same in every process. Write, "
    "say, `@fx.register_callback('training.save')`."
)
MSG_CALLBACK_REGISTERED = (
    "`register_callback({name!r})` was given {fn} as its function. A callback is a function, or another callable. Use "
    "it as a decorator of a function."
)
MSG_CALLBACK_TAKEN = (
    "The name {name!r} is taken: {known!r} is registered under it, and {fn!r} cannot be. A name means one function for "
    "the whole process, because programs carry it. Choose another name."
)


_F = TypeVar("_F", bound=Callable[..., Any])

_registered: dict[str, Callable[..., Any]] = {}  # by name; written under the lock, never removed from
_names: dict[int, str] = {}  # by address, which is not reused, since `_registered` keeps the function
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
        raise errors.type_error(MSG_CALLBACK_NAME.format(name=errors.shown(name)))

    def register(fn: _F) -> _F:
        if not callable(fn):
            raise errors.type_error(MSG_CALLBACK_REGISTERED.format(name=name, fn=errors.shown(fn)))
        with _lock:
            known = _registered.setdefault(name, fn)
            if known is not fn:
                raise errors.value_error(MSG_CALLBACK_TAKEN.format(name=name, known=known, fn=fn))
            _names.setdefault(id(fn), name)
        return fn

    return register


class HostFunction:
    """A function of the user's, with a key by which records name it.

    The key of a registered function is its name, under which other processes find it. The key of another function is
    its place in the source, never its address: a process that traces the same programs makes the same keys, and finds
    the programs in JAX's persistent compilation cache.
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
    """Returns the name of a function in messages."""
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__


_numbering = Numbering()


def _local_key(fn: Any, name: str) -> str:
    """Module, qualified name and number: the same key for the same function, and different keys for different ones."""
    place = f"{getattr(fn, '__module__', None)}:{function_name(fn)}:{name}"
    if isinstance(fn, types.MethodType):  # a new object at each access
        return f"{place}#{_numbering.number_of(place, fn.__self__, fn.__func__)}"
    return f"{place}#{_numbering.number_of(place, fn)}"
