"""The pytest plugin: what effects print and raise belongs to the test that caused them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tomllib

import pytest

from tests.forks import run_forked
from tests.helpers import ROOT, run_python

PLUGIN = "effects_pytest"
LISTENER = """
import json, os

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker's reports come to the one that started it
        name = report.nodeid.split("::", 1)[1]
        entry = [name, report.when, report.outcome, report.longreprtext, dict(report.sections)]
        with open("reports", "a") as file:
            print(json.dumps(entry), file=file)
"""


_PYTEST = """
import os, sys
[os.environ.pop(name) for name in [*os.environ] if name.startswith("PYTEST_")]
os.chdir({folder!r})
sys.path.insert(0, {folder!r})
import pytest
raise SystemExit(int(pytest.main({arguments})))
"""


@dataclasses.dataclass(frozen=True)
class Report:
    """What pytest says of a phase of a test."""

    outcome: str
    error: str
    sections: dict[str, str]


class Suite:
    """A suite of tests that has run in a process of its own, with `imports` in an interpreter that imports all."""

    def __init__(self, folder, files, *args, plugin=("-p", PLUGIN), path=(), imports=False):
        for name, text in {"conftest.py": LISTENER, **files}.items():
            (folder / name).write_text(text)
        code = _PYTEST.format(folder=str(folder), arguments=[*plugin, "-p", "no:cacheprovider", *args])
        env = {"PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])}
        done = (run_python if imports else run_forked)(code, env=env, timeout=300)
        self.status, self.stdout = done.returncode, done.stdout
        self.output = done.stdout + done.stderr
        written = folder / "reports"
        self._reports = [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []

    def report(self, test, phase="call"):
        (found,) = [Report(*rest) for name, when, *rest in self._reports if (name, when) == (test, phase)]
        return found

    @property
    def failed(self):
        return {(name, when) for name, when, outcome, *_ in self._reports if outcome == "failed"}

    @property
    def phases(self):
        return {(name, when) for name, when, *_ in self._reports}


COMMON = """
import logging, threading, unittest
import jax, pytest
import effects as fx

@fx.jit
def show(x):
    jax.lax.fori_loop(0, 2, lambda i, _: fx.print("{} {}", x, i), None)

@fx.jit
def log(x):
    fx.log("step", level=logging.WARNING, x=x)

def refuse(x):
    raise ValueError(f"no {x}")

@fx.jit
def fail(x):
    fx.callback(refuse, None, x)
"""


TESTS = (
    COMMON
    + """
@pytest.fixture
def shows():
    show(10)
    yield
    show(11)

@pytest.fixture
def fails_before():
    fail(12)

@pytest.fixture
def fails_after():
    yield
    fail(13)

def test_first():
    show(1)

def test_second():
    show(2)

def test_fixture(shows):
    show(3)

def test_capsys(capsys):
    show(4)
    assert capsys.readouterr() == ("4 0\\n4 1\\n", "")

def test_capfd(capfd):
    show(5)
    assert capfd.readouterr() == ("5 0\\n5 1\\n", "")

def test_failure_and_capsys(capsys):
    show(9)
    fail(29)
    assert capsys.readouterr().out == "9 0\\n9 1\\n"

def test_capsys_unread(capsys):
    show(6)

def test_caplog(caplog):
    log(7)
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("effects", "WARNING", "step x=7")
    ]

def test_log():
    log(8)

def test_error():
    fail(20)

def test_error_and_failure():
    fail(21)
    assert 1 == 2

def test_several_errors():
    fail(22)
    fail(23)

def test_error_in_another_thread():
    thread = threading.Thread(target=fail, args=(24,))
    thread.start()
    thread.join()

def test_error_and_skip():
    fail(25)
    pytest.skip("no reason")

@pytest.mark.xfail(raises=fx.EffectError, strict=True)
def test_expected_error():
    fail(26)

def test_error_in_setup(fails_before):
    raise AssertionError("is not called")

def test_error_in_teardown(fails_after):
    pass

class TestCase(unittest.TestCase):
    def test_error(self):
        fail(27)

    def test_error_and_failure(self):
        fail(28)
        self.assertEqual(1, 2)

def test_records(effects_records):
    show(30)
    thread = threading.Thread(target=show, args=(31,))
    thread.start()
    thread.join()
    fx.effects_barrier(all_threads=True)
    assert [record.text for record in effects_records] == ["30 0", "30 1"]
    show(32)
    fx.effects_barrier()
    assert [record.text for record in effects_records] == ["30 0", "30 1", "32 0", "32 1"]
    assert {(record.effect, record.fmt) for record in effects_records} == {("print", "{} {}")}

def test_records_begin_anew(effects_records):
    show(33)
    fx.effects_barrier()
    assert len(effects_records) == 2

def test_last():
    pass
"""
)


FAILING = {
    ("test_error", "call"),
    ("test_error_and_failure", "call"),
    ("test_several_errors", "call"),
    ("test_error_in_another_thread", "call"),
    ("test_error_and_skip", "call"),
    ("test_failure_and_capsys", "call"),
    ("test_error_in_setup", "setup"),
    ("test_error_in_teardown", "teardown"),
    ("TestCase::test_error", "call"),
    ("TestCase::test_error_and_failure", "call"),
}


@pytest.fixture(scope="module", params=[[], ["-n", "2"]], ids=["one process", "two workers"])
def suite(request, tmp_path_factory):
    return Suite(tmp_path_factory.mktemp("suite"), {"test_suite.py": TESTS}, *request.param)


@pytest.mark.parametrize("test, lines", [("test_first", "1 0\n1 1\n"), ("test_second", "2 0\n2 1\n")])
def test_output_belongs_to_the_test_that_caused_it(suite, test, lines):
    """What a test's programs print is in its captured output, without a barrier in the test."""
    assert suite.report(test).sections == {"Captured stdout call": lines}


def test_output_belongs_to_the_phase_that_caused_it(suite):
    """What fixtures print is the output of the setup and of the teardown."""
    assert suite.report("test_fixture", "teardown").sections == {
        "Captured stdout setup": "10 0\n10 1\n",
        "Captured stdout call": "3 0\n3 1\n",
        "Captured stdout teardown": "11 0\n11 1\n",
    }


@pytest.mark.parametrize("fixture", ["capsys", "capfd"])
def test_capturing_fixtures_see_output(suite, fixture):
    """`capsys` and `capfd` have what programs have printed, without a barrier of the test's."""
    assert suite.report(f"test_{fixture}").outcome == "passed"


def test_output_that_a_fixture_captured_and_nobody_read(suite):
    """What nobody took out of `capsys` is output of its test, as what Python prints is."""
    assert list(suite.report("test_capsys_unread", "teardown").sections.values()) == ["6 0\n6 1\n"]


def test_log_records_are_the_tests(suite):
    """Events go to `caplog`, without a barrier of the test's, and to the captured log of the test that caused them."""
    assert suite.report("test_caplog").outcome == "passed"
    assert "step x=8" in suite.report("test_log").sections["Captured log call"]


def test_errors_fail_the_tests_that_caused_them(suite):
    """A test fails in the phase whose effects raised, and no other test does."""
    assert suite.failed == FAILING
    assert ("test_error_in_setup", "call") not in suite.phases
    assert suite.status == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "test, phase, value",
    [
        ("test_error", "call", 20),
        ("test_error_in_another_thread", "call", 24),
        ("test_error_and_skip", "call", 25),
        ("test_failure_and_capsys", "call", 29),
        ("test_error_in_setup", "setup", 12),
        ("test_error_in_teardown", "teardown", 13),
        ("TestCase::test_error", "call", 27),
    ],
)
def test_error_says_where(suite, test, phase, value):
    """The failure names the line of the effect and shows the error that its function raised."""
    line = 1 + TESTS.splitlines().index("    fx.callback(refuse, None, x)")
    error = suite.report(test, phase).error
    assert "EffectError" in error and f"test_suite.py:{line}" in error
    assert f"ValueError: no {value}" in error
    assert "effects_barrier" not in error  # how it came out is of no interest


CHECKS = """
import unittest
import jax, pytest
import effects as fx

@fx.jit
def step(x):
    fx.check(x > 0, "x became {}", x)

@fx.jit
def two(x):
    fx.check(x > 0, "x became {}", x)
    fx.check(x > 1, "x stayed {}", x)

def helper(x):
    step(x)  # by helper

@pytest.fixture
def fails():
    step(-1)  # of fixture

def test_call():
    step(1)
    step(-1)  # of call
    x = 1

def test_helper():
    helper(-1)

def test_loop():
    for x in (1, -1, 1):
        step(x)  # of loop

def test_barrier():
    step(-1)  # before barrier
    fx.effects_barrier()

def test_fixture(fails):
    pass

def test_two():
    two(-1)  # of two

def test_beside():
    step(-1)  # beside
    assert 1 == 2

class TestCase(unittest.TestCase):
    def test_unit(self):
        step(-1)  # of unittest

def test_of_jax():
    jax.jit(lambda x: fx.check(x > 0, "x became {}", x))(-1)  # of JAX
"""


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    files = {"test_suite.py": CHECKS, "test_module.py": CHECKS.split("def test")[0] + "step(-1)  # of module\n"}
    return Suite(tmp_path_factory.mktemp("checks"), files, "--continue-on-collection-errors", imports=True)


def line_of(text):
    (line,) = [number for number, line in enumerate(CHECKS.splitlines(), 1) if line.endswith(f"# {text}")]
    return line


@pytest.mark.parametrize(
    "test, phase, text",
    [
        ("test_call", "call", "of call"),
        ("test_helper", "call", "by helper"),
        ("test_loop", "call", "of loop"),
        ("test_barrier", "call", "before barrier"),
        ("test_fixture", "setup", "of fixture"),
        ("TestCase::test_unit", "call", "of unittest"),
    ],
)
def test_failed_check_is_reported_at_the_line_of_its_call(checks, test, phase, text):
    """The report ends with the line that called the program, and names no file but the user's."""
    error = checks.report(test, phase).error
    assert error.splitlines()[-1] == f"test_suite.py:{line_of(text)}: CheckError"
    assert f"# {text}\nE  " in error and "CheckError: x became -1" in error
    assert set(re.findall(r"[\w.]+\.py", error)) == {"test_suite.py"}
    assert len(error.splitlines()) <= 20


def test_failures_at_several_lines_have_the_line_of_their_call(checks):
    """pytest writes exception groups as Python does."""
    error = checks.report("test_two").error
    lines = re.findall(r'File "(?:.*/)?(.*?)", line (\d+), in (\w+)', error)
    assert lines == 3 * [("test_suite.py", str(line_of("of two")), "test_two")]


def test_failed_check_beside_a_failure_has_the_line_of_its_call(checks):
    """The test's own failure is not shown a second time there."""
    beside = checks.report("test_beside").sections["Captured effect errors call"]
    assert beside.splitlines()[-1] == f"test_suite.py:{line_of('beside')}: CheckError"
    assert "assert 1 == 2" not in beside


def test_failed_check_of_a_module_has_the_line_of_its_call(checks):
    assert re.search(r"test_module\.py:\d+: in <module>\n    step\(-1\)  # of module\nE   .*x became -1", checks.stdout)


def test_failed_check_of_a_program_of_jax_has_its_own_line(checks):
    """JAX does not say where its program was called."""
    error = checks.report("test_of_jax").error
    assert re.search(rf"x became -1 \(.*test_suite\.py:{line_of('of JAX')}, ", error)


def test_several_errors_of_a_test_are_all_told(suite):
    """If several effects raised at one line, the failure shows the first and says of the others."""
    error = suite.report("test_several_errors").error
    assert "ValueError: no 22" in error and "And 1 more at this line, the last: ValueError('no 23')." in error


@pytest.mark.parametrize("test, value", [("test_error_and_failure", 21), ("TestCase::test_error_and_failure", 28)])
def test_failure_of_the_test_itself_comes_first(suite, test, value):
    """A test that fails by itself keeps its failure; what its effects raised stands in a section of its own."""
    report = suite.report(test)
    assert "AssertionError" in report.error and "EffectError" not in report.error
    told = report.sections["Captured effect errors call"]
    assert "EffectError" in told and f"ValueError: no {value}" in told


def test_expected_error_is_expected(suite):
    """`xfail` takes an effect's error as it takes any."""
    assert suite.report("test_expected_error").outcome == "skipped"


@pytest.mark.parametrize("test", ["test_records", "test_records_begin_anew"])
def test_records_of_the_test(suite, test):
    """`effects_records` has the records of the test's own thread, in order, and of no other test."""
    assert suite.report(test).outcome == "passed"


def test_output_without_capturing(tmp_path):
    """With `-s` the lines stand between the test's name and its result."""
    tests = COMMON + "def test_first(): show(1)\ndef test_second(): show(2)\n"
    suite = Suite(tmp_path, {"test_suite.py": tests}, "-s", "-v")
    assert "::test_first 1 0\n1 1\nPASSED\ntest_suite.py::test_second 2 0\n2 1\nPASSED\n" in suite.stdout, suite.output


def test_errors_of_a_module_are_its_own(tmp_path):
    """What a module's effects raise while it is imported fails its collection, and no test."""
    files = {
        "test_bad.py": COMMON + "fail(1)\ndef test_never(): pass\n",
        "test_good.py": COMMON + "def test_good(): pass\n",
        "test_worse.py": COMMON + "fail(2)\nassert 1 == 2\n",
    }
    suite = Suite(tmp_path, files, "--continue-on-collection-errors")
    assert suite.phases == {("test_good", phase) for phase in ("setup", "call", "teardown")} and not suite.failed
    assert "ERROR collecting test_bad.py" in suite.stdout and "ValueError: no 1" in suite.stdout
    assert "Captured effect errors" in suite.stdout and "ValueError: no 2" in suite.stdout


def test_barrier_has_a_time_limit_if_asked(tmp_path):
    """With `effects_barrier_timeout` a test whose effects do not end fails; the next one is itself again."""
    tests = (
        COMMON
        + """
gate = threading.Event()

@pytest.fixture
def opens():
    yield
    gate.set()

def test_stuck(opens):
    fx.jit(lambda x: fx.callback(lambda x: gate.wait(), None, x))(1)

def test_next():
    show(1)
"""
    )
    suite = Suite(tmp_path, {"test_suite.py": tests, "pytest.ini": "[pytest]\neffects_barrier_timeout = 0.5\n"})
    assert suite.failed == {("test_stuck", "call")}
    assert "BarrierTimeout" in suite.report("test_stuck").error


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_time_limit_that_is_none(tmp_path, value):
    """A time limit that is not a number of seconds is an error before anything runs."""
    suite = Suite(tmp_path, {"test_suite.py": "def test(): pass"}, "-o", f"effects_barrier_timeout={value}")
    assert suite.status == pytest.ExitCode.USAGE_ERROR
    assert f"`effects_barrier_timeout` was given '{value}'" in suite.output


def test_suites_without_effects_import_nothing(tmp_path):
    """In a suite that does not use effects, the plugin imports neither JAX nor any of the packages."""
    tests = """
import sys

def test_nothing_imported():
    assert not {"jax", "numpy", "effects"} & set(sys.modules)
"""
    no_other = ("-p", "no:jaxtyping")  # a plugin too, and it imports NumPy
    suite = Suite(tmp_path, {"test_suite.py": tests}, *no_other, imports=True)
    assert suite.status == 0, suite.output


def test_other_modules_of_these_names_are_left_alone(tmp_path):
    """A project's own `effects` and `dispatch` are none of the plugin's business."""
    files = {
        "effects.py": "def shake(): return 1\n",
        "dispatch.py": "raise ImportError\n",
        "test_suite.py": "import effects\ndef test(): assert effects.shake() == 1\n",
    }
    suite = Suite(tmp_path, files, imports=True)
    assert suite.status == 0, suite.output


def test_plugin_is_active_once_installed(tmp_path):
    """What the package says of itself when it is installed is enough for pytest to find the plugin."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert said == {PLUGIN: PLUGIN}  # the same, so that `-p` and `pytest_plugins` do not load it a second time
    installed = tmp_path / "installed" / "token_effects-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: token-effects\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{PLUGIN} = {said[PLUGIN]}\n")
    tests = COMMON + "def test_error(): fail(1)\n"
    for plugin in [(), ("-p", PLUGIN)]:
        (folder := tmp_path / f"suite{len(plugin)}").mkdir()
        suite = Suite(folder, {"test_suite.py": tests}, plugin=plugin, path=[installed.parent], imports=True)
        assert suite.failed == {("test_error", "call")}, suite.output
