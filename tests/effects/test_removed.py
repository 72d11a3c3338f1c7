"""Every name, setting, argument and option that was removed raises an error that says what to write instead."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import effects as fx
from effects import _removed, cli
from effects._config import Config
from tests.helpers import ROOT

NAMES = [name for name in _removed.REMOVED if re.fullmatch(r"fx\.\w+", name)]
SETTINGS = [name for name in _removed.REMOVED if re.fullmatch(r"fx\.config\.\w+", name)]
VALUES = [name for name in _removed.REMOVED if name.endswith('"')]
ARGUMENTS = [name for name in _removed.REMOVED if name.endswith("=)")]
OPTIONS = [name for name in _removed.REMOVED if name.startswith("effects ")]


def test_rows_are_of_five_kinds():
    """Each row of the table is a name, a setting, one of its values, an argument or an option, and its sentence ends
    with a period."""
    assert sorted(_removed.REMOVED) == sorted([*NAMES, *SETTINGS, *VALUES, *ARGUMENTS, *OPTIONS])
    assert all(re.fullmatch(r"[A-Z].*[.`]", instead, re.DOTALL) for instead in _removed.REMOVED.values())


def test_changelog_names_each():
    """The changelog has what was removed under "Removed"."""
    (removed,) = re.findall(
        r"^### Removed\n(.*?)(?=^##)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL
    )
    for name in _removed.REMOVED:
        last = re.findall(r"[\w-]+", name)[-1]
        assert last in removed, name


@pytest.mark.parametrize("name", NAMES)
def test_name(name):
    """A public name that was removed says what to write instead, as an attribute and in an import."""
    short = name.removeprefix("fx.")
    assert not hasattr(fx, short)
    with pytest.raises(AttributeError, match=re.escape(_removed.REMOVED[name])):
        getattr(fx, short)
    with pytest.raises(ImportError, match=re.escape(_removed.REMOVED[name])):
        exec(f"from effects import {short}", {})
    if short.endswith("Handler"):
        assert not hasattr(fx.handlers, short)
        with pytest.raises(ImportError, match=re.escape(_removed.REMOVED[name])):
            exec(f"from effects.handlers import {short}", {})


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(name):
    """A setting that was removed says so when it is read, written, overridden, or set in the environment."""
    short = name.removeprefix("fx.config.")
    text = re.escape(_removed.REMOVED[name])
    assert not hasattr(fx.config, short)
    with pytest.raises(AttributeError, match=text):
        getattr(fx.config, short)
    with pytest.raises(AttributeError, match=text):
        setattr(fx.config, short, True)
    with pytest.raises(AttributeError, match=text), fx.config.override(**{short: True}):
        pass
    with pytest.raises(ValueError, match=text):
        Config({f"EFFECTS_{short.upper()}": "1"})


@pytest.mark.parametrize("name", VALUES)
def test_value(name):
    """A value that a setting no longer takes says so when it is set, overridden, or set in the environment."""
    setting, value = re.fullmatch(r'fx\.config\.(\w+)="(\w+)"', name).groups()
    text = re.escape(_removed.REMOVED[name])
    with pytest.raises(ValueError, match=text):
        setattr(fx.config, setting, value)
    with pytest.raises(ValueError, match=text), fx.config.override(**{setting: value}):
        pass
    with pytest.raises(ValueError, match=text):
        Config({f"EFFECTS_{setting.upper()}": value})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument(name):
    """An argument that was removed is no argument of the function, and says what to write instead."""
    call, argument = re.fullmatch(r"(?:fx|effects)\.([\w.]+)\((\w+)=\)", name).groups()
    module, _, function = call.rpartition(".")
    function = getattr(importlib.import_module(f"effects.{module}") if module else fx, function)
    assert argument not in inspect.signature(function).parameters
    with pytest.raises(TypeError, match=re.escape(_removed.REMOVED[name])):
        function(**{argument: True})


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name, capsys):
    """An option of the command that was removed ends it with status 2 and says what to write instead."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split()[1:], "a", "b"])
    assert ended.value.code == 2
    assert _removed.REMOVED[name] in capsys.readouterr().err
