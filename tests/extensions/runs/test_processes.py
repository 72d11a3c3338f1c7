"""A process records into its own file, always: whoever starts it, and whatever is at the path."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import effects as fx
from effects.lowering.native_module import native
from tests.helpers import run_python

pytestmark = pytest.mark.slow


def run_program(folder: Path, code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder, from a file, so that children can be spawned."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(code))
    command = [sys.executable, str(program)]
    environment = {**os.environ, "PYTHONPATH": str(Path(fx.__file__).parents[1]), **(env or {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def read_texts(path: Path) -> list[str]:
    return [record.text for record in fx.runs.read(path)]


def read_all(folder: Path) -> dict[str, list[str]]:
    return {path.name: read_texts(path) for path in sorted(folder.glob("*.fx*"))}


CHILDREN = """
import multiprocessing, os, subprocess, sys
{imports}
def show(text):
    import effects as fx
    fx.jit(lambda x: fx.print(text + " {{}}", x))(1)

def work(has_effects):
    if has_effects:
        show("child")
    os.chdir("/")

if __name__ == "__main__":
    {before}
    for has_effects in (True, True, False):
        if {how!r} == "subprocess":
            code = "import os, program; os.chdir('/'); program.work(%r)" % has_effects
            subprocess.run([sys.executable, "-c", code], check=True)
        else:
            child = multiprocessing.get_context({how!r}).Process(target=work, args=(has_effects,))
            child.start()
            child.join()
            assert child.exitcode == 0
    {after}
"""
PARENT = "show('parent')"


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn", "subprocess"])
@pytest.mark.parametrize("order", ["parent first", "children first", "children only"])
def test_children_have_files_of_their_own(how, order, tmp_path):
    """A child that has effects has a file, beside its parent's, and no other child has. Nothing is overwritten."""
    if how == "fork" and order == "parent first":
        pytest.skip("a child has no effects that is forked behind its parent's first")
    check_children(how, order, tmp_path)


def check_children(how: str, order: str, folder: Path, slip: str = "") -> None:
    before, after = PARENT if order == "parent first" else "pass", "pass" if order == "children only" else PARENT
    code = CHILDREN.format(how=how, imports=f"import effects\n{slip}", before=before, after=after)
    run_program(folder, code, {"EFFECTS_RUN": "run.fx"})
    found = read_all(folder)
    parents = ["parent 1"] * ((before == PARENT) + (after == PARENT))
    assert sorted(found.values()) == sorted([["child 1"], ["child 1"], *[parents] * bool(parents)])
    assert found["run.fx"] == (parents if order == "parent first" else ["child 1"])
    assert all(name == "run.fx" or (name.startswith("run-") and name.endswith(".fx")) for name in found)
    assert all(fx.runs.read(path).processes[0].is_closed for path in folder.glob("*.fx"))


@pytest.mark.parametrize("order", ["parent first", "children first"])
def test_child_that_takes_its_parents_file_is_noticed(order, tmp_path):
    """A slip in which all processes of a run have one name for their files."""
    slip = (
        "import effects.extensions.runs.recording as module\n"
        "module._ProcessRecording._files = lambda self: [(self.path, None)]"
    )
    with pytest.raises(AssertionError, match="child 1"):
        check_children("subprocess", order, tmp_path, slip)


FORKED = """
import os, sys
import effects as fx

def leave(how):
    if how == "raises":
        raise ValueError("the child's own")
    if how == "exits":
        sys.exit(0)

f = fx.jit(lambda x: fx.print("{{}}", x))
try:
    with fx.record("run.fx") as recording:
        f(1)
        fx.effects_barrier()
        is_child = os.fork() == 0
        if is_child:
            leave({how!r})
        else:
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            f(2)
            fx.effects_barrier()
            assert fx.runs.read("run.fx").processes[0].is_written
except BaseException as error:
    if not is_child:
        raise
    assert type(error) is {{"raises": ValueError, "exits": SystemExit}}[{how!r}], error
if is_child:
    recording.close()
    sys.stdout.flush()
    os._exit(0)
f(3)
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["goes on", "raises", "exits"])
def test_forked_child_leaves_its_parents_block(how, tmp_path):
    """It closes nothing of its parent's, writes nothing there, and the block raises nothing of ours."""
    run_program(tmp_path, FORKED.format(how=how), {"PYTHONWARNINGS": "ignore"})
    assert read_texts(tmp_path / "run.fx") == ["1", "2"]
    assert fx.runs.read(tmp_path / "run.fx").processes[0].is_closed


def test_child_records_where_it_says(tmp_path):
    """One whose parent has a block may have one itself, and they go on side by side."""
    code = """
    import os
    import effects as fx
    with fx.record("run.fx"):
        if (child := os.fork()) == 0:
            with fx.record("child.fx"):
                fx.jit(lambda x: fx.print("child {}", x))(1)
            os._exit(0)
        os.waitpid(child, 0)
        fx.jit(lambda x: fx.print("parent {}", x))(1)
    """
    run_program(tmp_path, code, {"PYTHONWARNINGS": "ignore"})
    assert read_all(tmp_path) == {"run.fx": ["parent 1"], "child.fx": ["child 1"]}


def test_child_may_record_into_another_file_as_the_variable_says(tmp_path):
    code = """
    import os, subprocess, sys
    import effects as fx
    fx.jit(lambda x: fx.print("{}", x))(1)
    child = "import effects as fx; fx.jit(lambda x: fx.print('{}', x))(2)"
    subprocess.run([sys.executable, "-c", child], env={**os.environ, "EFFECTS_RUN": "other.fx"}, check=True)
    """
    run_program(tmp_path, code, {"EFFECTS_RUN": "run.fx"})
    assert read_all(tmp_path) == {"run.fx": ["1"], "other.fx": ["2"]}


def test_readers_do_not_record(tmp_path):
    """Nor does what only imports the library, or reads a run in Python."""
    environment = {**os.environ, "EFFECTS_RUN": "run.fx"}
    code = "import effects as fx; fx.jit(lambda x: fx.log('step', x=x))({})"
    run_program(tmp_path, code.format(1), {"EFFECTS_RUN": "run.fx"})
    before = (tmp_path / "run.fx").read_bytes()
    for words in (
        *(["show", "run.fx"], ["show", "--last", "run.fx"], ["tail", "run.fx"], ["diff", "run.fx", "run.fx"]),
        *(["trace", "run.fx", "-o", "trace.json"], ["doctor"]),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "effects", *words], cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, (words, done.stderr)
    run_program(tmp_path, "import effects as fx; assert len(fx.runs.read('run.fx')) == 1", {"EFFECTS_RUN": "run.fx"})
    assert [*tmp_path.glob("*.fx*")] == [tmp_path / "run.fx"] and (tmp_path / "run.fx").read_bytes() == before


def test_run_is_never_overwritten(tmp_path):
    """What has the name is kept under another one, also what is no run."""
    (tmp_path / "run.fx").write_text("notes")
    for number in range(2):
        with fx.record(tmp_path / "run.fx"), fx.capture(suppress=True):
            fx.print(f"{number}")
    run_program(tmp_path, "import effects as fx; fx.print('2')", {"EFFECTS_RUN": "run.fx"})
    assert (tmp_path / "run.fx.1").read_text() == "notes"
    assert [read_texts(tmp_path / name) for name in ("run.fx.2", "run.fx.3", "run.fx")] == [["0"], ["1"], ["2"]]


def test_recording_that_is_refused_touches_no_file(tmp_path):
    """`fx.record` is refused if EFFECTS_RUN is set, whose recording begins only with the first effect."""
    (tmp_path / "run.fx").write_text("notes")
    code = "import effects as fx\ntry: fx.record('other.fx')\nexcept RuntimeError as error: print(error)\n"
    assert "run.fx. A process records into one file" in run_program(tmp_path, code, {"EFFECTS_RUN": "run.fx"}).stdout
    assert [*tmp_path.glob("*.fx*")] == [tmp_path / "run.fx"] and (tmp_path / "run.fx").read_text() == "notes"
    run_program(tmp_path, code + "fx.print('1')", {"EFFECTS_RUN": "run.fx"})
    assert read_texts(tmp_path / "run.fx") == ["1"]


def test_reader_does_not_keep_a_run_from_starting(tmp_path):
    """It asks whether a process records into the file, and takes no lock for that."""
    path, has_ended = tmp_path / "run.fx", threading.Event()
    with fx.record(path):
        pass

    def look() -> None:
        while not has_ended.is_set():
            with contextlib.suppress(fx.runs.RunError):  # it is begun just now
                fx.runs.read(path)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(300):
            with fx.record(path, max_bytes=1 << 16):
                path.with_name("run.fx.1").unlink()
    finally:
        has_ended.set()
        reader.join()


def size_needed(path: Path) -> tuple[int, int]:
    """The bytes of records in a file, and the file's expected size: a page for its header, pages for the records, and
    the descriptions, whose size depends on the program's arguments and paths."""
    taken = int.from_bytes(path.read_bytes()[48:56], "little")
    described = [text for _, _, text in native.RunFile(str(path)).described()]
    return taken, 4096 + -(-taken // 4096) * 4096 + sum(64 + -(-len(text) // 8) * 8 for text in described)


def test_closed_file_takes_what_its_records_need(tmp_path):
    """A closed file is as long as its records, not as the room for them."""
    f = fx.jit(lambda x: fx.log("step", x=x))
    for count in (0, 1, 20, 3000):
        path = tmp_path / f"{count}.fx"
        with fx.record(path), fx.capture(suppress=True):
            for i in range(count):
                f(i)
            fx.effects_barrier()
            assert path.stat().st_size > 1 << 26
        status, (taken, size) = path.stat(), size_needed(path)
        assert taken <= 1000 + 500 * count
        assert status.st_size == size and status.st_blocks * 512 < size + (1 << 14)
        assert [int(record.fields["x"]) for record in fx.runs.read(path) if record.event] == [*range(count)]
    full = tmp_path / "full.fx"
    with fx.record(full, max_bytes=1 << 16), fx.capture(suppress=True):
        for i in range(3000):
            f(i)
    assert [int(record.fields["x"]) for record in fx.runs.read(full)][-1] == 2999


PLACES = {
    "folder": "Is a directory",
    "pipe": "it is no file",
    "/dev/null": "it is no file",
    "missing/run.fx": "No such file or directory",
    "file/run.fx": "Not a directory",
    "another's": "another process records into it",
    "full": "No space left on device",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("by", ["fx.record", "EFFECTS_RUN"])
def test_what_cannot_be_written(place, by, tmp_path):
    """An error at once, or where the environment asks for it one line, and the program goes on. What is there stays."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    if by == "EFFECTS_RUN" and place in ("folder", "missing/run.fx", "another's"):
        pytest.skip("a process finds a file of its own there")
    lines = "import effects as fx\n"
    if place == "full":
        if not Path("/dev/shm").is_dir() or os.statvfs("/dev/shm").f_bavail * 4096 > 1 << 39:
            pytest.skip("no small disk")
        path = f"/dev/shm/effects-{os.getpid()}.fx"
    else:
        path = str(tmp_path / place)
    size = ", max_bytes=1 << 40" if place == "full" else ""
    if by == "fx.record":
        lines += f"try: fx.record({path!r}{size})\nexcept OSError as error: print(error)\n"
    lines += "fx.jit(lambda x: fx.print('{}', x))(1)\nfx.effects_barrier()\n"
    if by == "EFFECTS_RUN" and place == "full":
        pytest.skip("it asks for 64 MiB")
    recording = fx.record(path) if place == "another's" else None
    done = run_python(lines, env={"EFFECTS_RUN": path} if by == "EFFECTS_RUN" else {})
    assert done.returncode == 0, done.stderr
    if recording is not None:
        recording.close()
    told = done.stdout.splitlines()[0] if by == "fx.record" else done.stderr.strip()
    assert PLACES[place] in told and told.startswith("The run file ") and "\n" not in told
    assert ("lower `max_bytes`" in told) == (place == "full")
    assert done.stdout.splitlines()[-1] == "1" and (by == "EFFECTS_RUN" or done.stderr == "")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and (place != "full" or not Path(path).exists())


INTERRUPTED = """
import itertools, os, sys
import effects as fx
import effects.extensions.runs.recording as module

class Interrupt(KeyboardInterrupt):
    pass

f = fx.jit(lambda x: fx.print("{}", x))
f(0)
fx.effects_barrier()
for step in itertools.count():
    left = step
    def trace(frame, event, argument):
        global left
        if frame.f_code.co_filename != module.__file__:
            return None
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise Interrupt
        return trace
    recording = None
    sys.settrace(trace)
    try:
        with fx.record("run.fx", max_bytes=1 << 16) as recording:
            f(1)
    except Interrupt:
        pass
    finally:
        sys.settrace(None)
    has_come = left >= 0
    if recording is not None:
        recording.close()
    recording = None
    with fx.record("after.fx", max_bytes=1 << 16):
        f(2)
    assert [record.text for record in fx.runs.read("after.fx")] == ["2"]
    for name in os.listdir("."):
        if ".fx" in name:
            os.unlink(name)
    if has_come:
        break
assert step > 20, step
"""


def test_interrupt_between_any_two_steps(tmp_path):
    """The next recording begins, and has what is recorded in it."""
    run_program(tmp_path, INTERRUPTED)
