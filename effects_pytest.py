"""The pytest plugin: what effects print and raise belongs to the test that caused them.

It stands beside the packages and imports none of them: pytest loads it in every suite of a machine where token-effects
is installed, and most of those use no JAX.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

MSG_TIMEOUT_OPTION = (
    "The option `effects_barrier_timeout` was given {value!r}. It is the number of seconds, zero or more, to wait for "
    "the effects of a test's setup, call or teardown. Write, say, `effects_barrier_timeout = 60`, or leave it out to "
    "wait for as long as it takes."
)

_timeout = pytest.StashKey[float | None]()
_configs: list[pytest.Config] = []  # of the sessions that are under way


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "effects_barrier_timeout",
        "seconds to wait for the effects of a test's setup, call or teardown (default: as long as it takes)",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    value = config.getini("effects_barrier_timeout")
    try:
        timeout = float(value) if value else None
        if timeout is not None and not timeout >= 0:
            raise ValueError
    except ValueError:
        raise pytest.UsageError(MSG_TIMEOUT_OPTION.format(value=value)) from None
    config.stash[_timeout] = timeout
    _configs.append(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if config in _configs:  # else it was refused
        _configs.remove(config)


@contextlib.contextmanager
def without_capture() -> Iterator[bool]:
    """The output and the input are those of pytest itself, as in `pytest.set_trace()`. Gives whether they were not."""
    capture: Any = _configs[-1].pluginmanager.getplugin("capturemanager") if _configs else None
    if capture is None:
        yield False
        return
    capture.suspend(in_=True)
    try:
        yield True
    finally:
        capture.resume()


@pytest.fixture
def effects_records() -> Iterator[list[Any]]:
    """The `Record`s of the effects that the test's thread issues, in order.

    The list grows while effects are replayed: after `fx.effects_barrier()` it holds all that were issued before.
    """
    import effects as fx

    with fx.capture() as records:
        yield records


# What a test reads of its output and its log is what its programs have printed and logged by then.


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    value = yield
    if isinstance(value, pytest.CaptureFixture):
        read = value.readouterr
        value.readouterr = lambda: (_wait(request.config), read())[1]  # type: ignore[method-assign]
    elif type(value) is pytest.LogCaptureFixture:
        value.__class__ = _LogOfPrograms
    return value


class _LogOfPrograms(pytest.LogCaptureFixture):  # type: ignore[misc]  # pytest makes them, and says that they are final
    """`caplog`, all of whose views of the log go through the handler."""

    @property
    def handler(self) -> Any:
        _wait(self._item.config)
        return super().handler


def _wait(config: pytest.Config) -> None:
    """Waits for the effects of the test's thread. What they raise, the end of the phase reports."""
    runtime = getattr(sys.modules.get("effects.dispatch.runtime.runtime"), "runtime", None)
    if runtime is not None:
        runtime.waiting.for_thread(config.stash[_timeout])


# The barriers are the innermost wrappers: pytest's capturing of the phase is still on, and so are its log handlers, and
# the fixtures of a test that has been called are not torn down yet.


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    __tracebackhide__ = True
    return (yield from _then_barrier(item, "setup"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    __tracebackhide__ = True
    return (yield from _then_barrier(item, "call"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    __tracebackhide__ = True
    return (yield from _then_barrier(item, "teardown"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Effects of a module that is imported are the module's, and not those of the first test that runs."""
    report = yield
    if (failure := _barrier(collector.config)) is not None:
        if report.outcome == "failed":
            report.sections.append(("Captured effect errors", _text(collector, failure)))
        else:
            report.outcome = "failed"
            report.longrepr = _text(collector, failure)
            report.result = []
    return report


def _then_barrier(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    """Lets a phase of a test run, and waits for its effects."""
    __tracebackhide__ = True
    try:
        result = yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise  # whoever wants to leave does not want to wait
    except BaseException as error:
        _end(item, phase, failed=not isinstance(error, pytest.skip.Exception))
        raise
    # A `unittest.TestCase` raises nothing: pytest takes its failures from here, and then not what we raise.
    _end(item, phase, failed=bool(getattr(item, "_excinfo", None)))
    return result


def _end(item: pytest.Item, phase: str, *, failed: bool) -> None:
    """Waits for the effects of a phase. What they raised fails it, or stands beside the failure that it has already."""
    __tracebackhide__ = True
    failure = _barrier(item.config)
    if failure is not None and not failed:
        raise failure
    if failure is not None:
        item.add_report_section(phase, "effect errors", _text(item, failure))


def _barrier(config: pytest.Config) -> BaseException | None:
    """Waits for all effects. Returns what they raised. Where `effects` has not been imported, there are none."""
    __tracebackhide__ = True
    barrier = getattr(sys.modules.get("effects"), "effects_barrier", None)
    if barrier is None:
        return None
    try:
        barrier(all_threads=True, timeout=config.stash[_timeout])
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return failure  # its traceback ends with the line that called the program, which pytest shows
    return None


def _text(node: pytest.Item | pytest.Collector, failure: BaseException) -> str:
    failure.__suppress_context__ = True  # the failure beside which it is shown
    return str(node.repr_failure(pytest.ExceptionInfo.from_exception(failure)))
