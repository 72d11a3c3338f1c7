"""The command `effects`. It stands beside the packages, and `effects run` imports none of them.

`effects run` is to change `jax.jit`, and nothing else. A program may set variables of the environment before it imports
JAX, which reads them then. So JAX and this library are imported when the program imports JAX.
"""

from __future__ import annotations

import argparse
import builtins
import linecache
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import BuiltinImporter, ModuleSpec, SourceFileLoader, SourcelessFileLoader

HELP = "Runs a Python program as it is, with `fx.jit` in place of `jax.jit`."
MSG_NO_PROGRAM = (
    "no program was given. It runs a file, a module or a text, with arguments of its own behind it. Write, say, "
    "`effects run train.py --steps 10`, `effects run -m package.module` or `effects run -c 'text'`."
)
MSG_NO_RECORD = (
    "`--collectives` was given without `--record`. What devices note is in the files of a recorded run. Write, say, "
    "`effects run --collectives --record runs/ train.py`."
)
MSG_ANOTHER_PACKAGE = (
    "The module `effects` at {path} is not that of token-effects: another package has a module of this name, and one "
    "environment can have only one. Remove both with `pip uninstall token-effects {others}`, and install token-effects "
    "again."
)
MSG_ANOTHER_FOLDER = (
    "The module `effects` at {path} is not that of token-effects, which it hides. Python looks for modules in the "
    "folder of the program first. Rename this file or folder, or start the program in another place."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand with these arguments, by default those of the process. Returns the exit status."""
    words = sys.argv[1:] if argv is None else [*argv]
    if words[:1] == ["run"]:
        return run(words[1:])
    _import_ours()
    from effects.cli import main

    return main(words)


def run(words: Sequence[str]) -> int:
    """The subcommand `run`: options of ours, a program, and its arguments. What ends the program passes on."""
    parser = argparse.ArgumentParser("effects run", usage="effects run [options] file | -m module | -c text [arg ...]")
    parser.description = f"{HELP} Its arguments, exit status, errors and signals are those of `python file`."
    parser.add_argument("--record", metavar="FILE", help="record the run into this file or folder, as EFFECTS_RUN does")
    parser.add_argument("--watch", action="store_true", help="find bad values: `fx.watch` around each jitted function")
    parser.add_argument(
        "--sites", metavar="RULES", help="change filters of lines, as EFFECTS_SITES does: 'train.py:40 every=100'"
    )
    parser.add_argument(
        "--collectives", action="store_true", help="have each device note, in the run, what it comes to and has done"
    )
    at = 0
    while at < len(words) and words[at][:1] == "-" and words[at] != "--" and words[at][:2] not in ("-", "-m", "-c"):
        at += 2 if words[at] in ("--record", "--sites") else 1
    options, program = parser.parse_args(words[:at]), words[at + (words[at : at + 1] == ["--"]) :]
    if not program or program in (["-m"], ["-c"]):
        parser.error(MSG_NO_PROGRAM)
    if options.collectives and not (options.record or os.environ.get("EFFECTS_RUN")):
        parser.error(MSG_NO_RECORD)
    if options.record is not None:  # the program may change its folder before it imports JAX
        is_folder = options.record.endswith(os.sep)
        os.environ["EFFECTS_RUN"] = os.path.abspath(options.record) + os.sep * is_folder
    if options.sites is not None:
        os.environ["EFFECTS_SITES"] = options.sites
    if "jax" in sys.modules:  # as in `python -m effects run`
        _follow_environment(options.record, options.sites)
        _install(options.watch, options.collectives)
    else:
        sys.meta_path.insert(0, _AfterJax(lambda: _install(options.watch, options.collectives)))
    return _run_program(program)


def _import_ours() -> None:
    """Imports this library. If `effects` is another package's, the command ends with a message."""
    effects = _import_module()
    if not hasattr(effects, "effects_barrier"):
        from importlib.metadata import packages_distributions

        path = effects.__file__ or next(iter(effects.__path__))
        if others := {*packages_distributions().get("effects", ())} - {"token-effects"}:
            sys.exit(MSG_ANOTHER_PACKAGE.format(path=path, others=" ".join(sorted(others))))
        sys.exit(MSG_ANOTHER_FOLDER.format(path=path))


def _import_module() -> types.ModuleType:
    """Imports the module `effects`. If it refuses this version of JAX, the command ends with a message."""
    try:
        import effects
    except ImportError as error:
        if error.name == "effects":
            sys.exit(str(error))
        raise
    return effects


def _follow_environment(record: str | None, rules: str | None) -> None:
    """Does what the import of this library would have done, had the variables been set before."""
    if record is not None:
        from effects.extensions.runs.recording import record_process

        record_process(os.environ["EFFECTS_RUN"])
    if rules is not None:
        from effects.extensions.sites.rules import follow_rules

        follow_rules(rules)


def _install(watch: bool, collectives: bool) -> None:
    _import_ours()
    import effects
    from effects import _lazy

    if collectives:
        with _lazy.required_by("effects run --collectives"):
            from effects.extensions.collectives.notes import note_programs
        note_programs()
    if watch:
        with _lazy.required_by("effects run --watch"):
            from effects.extensions.watching.everywhere import install_watching
        install_watching()
    else:
        effects.install()


class _AfterJax(MetaPathFinder):
    """Finds modules as the other finders do. JAX is followed by this library, and this by something to do."""

    def __init__(self, do: Callable[[], None]):
        self._do = do

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in ("jax", "effects"):
            return None
        specs = (finder.find_spec(name, None) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_then_do(module: types.ModuleType) -> None:
                load(module)
                if name == "jax":
                    _import_module()  # it may also be what imports JAX
                else:
                    sys.meta_path.remove(self)
                    self._do()

            spec.loader.exec_module = load_then_do  # type: ignore[method-assign]
        return spec


# The program, as Python itself runs it: `pymain_run_python` in CPython's `Modules/main.c`.


def _run_program(words: Sequence[str]) -> int:
    """Runs a program in a new `__main__`. Returns the exit status; what it raises passes on, without our frames."""
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __loader__=BuiltinImporter)
    if sys.version_info < (3, 14):
        vars(main).update(__annotations__={})
    shell, sys.modules["__main__"] = sys.modules["__main__"], main
    try:
        return _run_in(main, *words)
    except SystemExit:
        raise
    except BaseException as error:
        _show_without(error, 2)
        raise
    finally:
        del shell  # kept until here: it calls us


def _run_in(main: types.ModuleType, program: str, *arguments: str) -> int:
    option = program[:2]
    name, rest = (program[2:], arguments) if program[2:] else ("".join(arguments[:1]), arguments[1:])
    if option == "-m":
        _set_arguments("-m", rest, os.getcwd())
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return 0
    if option == "-c":
        _set_arguments("-c", rest, "")
        if sys.version_info >= (3, 13):  # errors show its lines
            linecache.cache["<string>"] = len(name), None, name.splitlines(keepends=True), "<string>"
        exec(compile(name, "<string>", "exec", dont_inherit=True), vars(main))
        return 0
    if program == "-":
        _set_arguments("-", arguments, "")
        vars(main).update(__file__="<stdin>", __cached__=None)
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), vars(main))
        return 0
    path = os.path.join(os.getcwd(), program)
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _set_arguments(program, arguments, path)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return 0
    _set_arguments(program, arguments, os.path.dirname(os.path.realpath(path)))
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        problem = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {problem}", file=sys.stderr)
        return 2
    vars(main).update(__file__=path, __cached__=None)
    if path.endswith(".pyc"):
        main.__loader__ = SourcelessFileLoader("__main__", path)
        code = main.__loader__.get_code("__main__")
    else:
        main.__loader__ = SourceFileLoader("__main__", path)
        code = compile(source, path, "exec", dont_inherit=True)
    exec(code, vars(main))  # type: ignore[arg-type]
    return 0


def _set_arguments(name: str, arguments: Sequence[str], folder: str) -> None:
    sys.argv[:] = [name, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = folder  # in the place of the folder of the command


def _show_without(error: BaseException, frames: int) -> None:
    """Has the error that is about to end the process shown without the frames that are ours: these, and all that come
    while it passes on."""
    traceback = error.__traceback__
    for _ in range(frames):
        traceback = None if traceback is None else traceback.tb_next
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, of_all: types.TracebackType | None) -> None:
        sys.excepthook = hook
        if value is error:
            value, of_all = value.with_traceback(traceback), traceback
        hook(kind, value, of_all)

    sys.excepthook = show
