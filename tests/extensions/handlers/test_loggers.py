"""Handlers that hand records to logging libraries."""

from __future__ import annotations

import logging
import os
import sys

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.extensions.handlers.common import Point
from tests.helpers import run_python


@fx.jit
def _program(x):
    fx.log("step {braces}", loss=x, a=jnp.array([1, 2]), p=Point(x, None), word="w")
    fx.log("odd", level=25)
    fx.log("bad", level="error", x=x)
    fx.log("fine", level=5)
    fx.print("x = {x}", x=x)


LINE = _program.__wrapped__.__code__.co_firstlineno + 2


@pytest.fixture
def messages():
    """What loguru has been given, as its records."""
    logger = pytest.importorskip("loguru", reason="loguru, of the extra `loguru`, is not installed").logger
    made = []
    sink = logger.add(lambda message: made.append(message.record), level=0)
    yield made
    logger.remove(sink)


def test_loguru_gets_messages_of_the_users_line(handled, messages):
    """With level, file, line, function and time of the record, and the fields as `extra`."""
    with fx.capture(suppress=True) as records:
        handled(fx.LoguruHandler(), _program, 0.1)
    assert [(made["level"].name, made["level"].no, made["message"]) for made in messages] == [
        ("INFO", 20, records[0].text), ("Level 25", 25, "odd"), ("ERROR", 40, "bad x=0.1"), ("Level 5", 5, "fine"),
        ("INFO", 20, records[-1].text),
    ]  # fmt: skip
    first, *_, last = messages
    assert (first["line"], first["function"], first["name"], first["module"]) == (
        LINE, "_program", "test_loggers", "test_loggers",
    )  # fmt: skip
    assert (first["file"].name, first["file"].path) == ("test_loggers.py", __file__)
    assert first["time"].timestamp() == pytest.approx(records[0].time, abs=1e-6)
    extra = {name: value for name, value in first["extra"].items() if name != "effects_record"}
    assert extra == {
        "effect": "log", "event": "step {braces}", "device": 0, "lane": (), "loss": 0.1, "a": [1, 2], "p": [0.1, None],
        "word": "w",
    }  # fmt: skip
    assert last["extra"]["effect"] == "print" and last["extra"]["effects_record"].args == ()


def test_loguru_of_a_logger_of_ones_own(handled, messages):
    """What is bound stays; lanes say which they are, in order."""
    from loguru import logger

    program = fx.jit(jax.vmap(lambda x: fx.log("step", x=x)))
    with fx.capture(suppress=True):
        handled(fx.LoguruHandler(logger.bind(run=7)), program, jnp.arange(2))
    assert [(made["extra"]["run"], made["extra"]["lane"], made["extra"]["x"]) for made in messages] == [
        (7, (0,), 0), (7, (1,), 1),
    ]  # fmt: skip


def test_structlog_gets_events_with_fields(handled):
    """As values of Python's own, at the level of the record or the next below."""
    structlog = pytest.importorskip("structlog", reason="structlog, of the extra `structlog`, is not installed")
    where = f"test_loggers.py:{LINE}"
    with structlog.testing.capture_logs() as logs, fx.capture(suppress=True) as records:
        handled(fx.StructlogHandler(), _program, 0.1)
        handled(fx.StructlogHandler(), fx.jit(jax.vmap(lambda x: fx.log("lane", x=x))), jnp.arange(2))
    assert logs[0] == {
        "event": "step {braces}", "log_level": "info", "where": where, "loss": 0.1, "a": [1, 2], "p": [0.1, None],
        "word": "w",
    }  # fmt: skip
    assert [(log["event"], log["log_level"]) for log in logs[1:5]] == [
        ("odd", "info"), ("bad", "error"), ("fine", "debug"), (records[4].text, "info"),
    ]  # fmt: skip
    assert [(log["lane"], log["x"]) for log in logs[5:]] == [((0,), 0), ((1,), 1)]


def test_structlog_of_pythons_logging(handled, caplog):
    """A logger of structlog's that hands on to `logging` does so."""
    structlog = pytest.importorskip("structlog", reason="structlog, of the extra `structlog`, is not installed")
    processors = [structlog.stdlib.filter_by_level, structlog.processors.KeyValueRenderer(key_order=["event"])]
    made = logging.getLogger("tests.structlog")
    logger = structlog.wrap_logger(made, processors, structlog.stdlib.BoundLogger)
    with caplog.at_level(logging.INFO, "tests.structlog"), fx.capture(suppress=True):
        handled(fx.StructlogHandler(logger.bind(run=7)), _program, 0.5, effects="log")
    messages = [record.getMessage() for record in caplog.records if record.name == "tests.structlog"]
    assert len(messages) == 3 and messages[2].startswith("event='bad' run=7 where='test_loggers.py:")


# Libraries that are missing


@pytest.mark.parametrize(
    ("call", "library", "extra"),
    [
        ("LoguruHandler()", "loguru", "loguru"),
        ("StructlogHandler()", "structlog", "structlog"),
        ("TensorBoardHandler('runs')", "tensorboardX", "tensorboard"),
        ("WandbHandler()", "wandb", "wandb"),
        ("ParquetHandler('run')", "pyarrow", "parquet"),
    ],
)
def test_handler_says_what_to_install(call, library, extra, monkeypatch, tmp_path):
    """Three sentences, of which the last is what to do; nothing is made on the way."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    name = call.partition("(")[0]
    with pytest.raises(ImportError, match=rf"^`fx.{name}` needs {library}, which cannot be imported") as caught:
        eval(f"fx.{call}")
    assert str(caught.value).endswith(f"Run `pip install 'token-effects[{extra}]'`.") and not os.listdir(tmp_path)


def test_libraries_are_imported_when_their_handlers_are_made():
    """Importing `effects` imports none of them."""
    libraries = {"loguru", "structlog", "tensorboardX", "wandb", "pyarrow"}
    done = run_python(f"import sys, effects; print(sorted({libraries} & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stderr
