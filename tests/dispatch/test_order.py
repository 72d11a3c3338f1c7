"""The order of effects: by call, by thread, by process; and the barrier that waits for them."""

from __future__ import annotations

import contextlib
import io
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.dispatch.programs import count_lines
from tests.forks import run_forked


def test_programs_on_different_devices_print_in_call_order(lines, gates):
    """A program that finishes first prints second if it was called second, and does not wait for the first."""
    gate = gates()
    first = fx.jit(lambda x: (fx.print("first {}", gate(x)), x)[1])
    second = fx.jit(lambda x: (fx.print("second {}", x), x + 1)[1])
    x0, x1 = (jax.device_put(jnp.float32(i), jax.devices()[i]) for i in range(2))
    second(x1)

    def call():
        first(x0)
        result = second(x1)
        result.block_until_ready()  # while the first is held
        with pytest.raises(fx.BarrierTimeout):
            fx.effects_barrier(timeout=0.05)
        print("the second has finished")
        gate.open()

    assert lines(call) == ["the second has finished", "first 0.0", "second 1.0"]


def test_call_returns_while_the_program_runs(gates):
    """A call with prints in it returns before the program has run, as a plain one does."""
    gate = gates()
    program = fx.jit(lambda x: (fx.print("x {}", x), gate(x))[1])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = program(jax.device_put(jnp.ones((), jnp.float32), jax.devices()[0]))
        assert not result.is_ready()
        gate.open()
        fx.effects_barrier(timeout=60)
    assert out.getvalue() == "x 1.0\n"


def test_lines_go_to_the_output_of_their_call():
    """Each line goes to the `sys.stdout` that was in force when its program was called."""
    program = count_lines("line")
    outs = [io.StringIO() for _ in range(3)]
    for i, out in enumerate(outs):
        with contextlib.redirect_stdout(out):
            program(i)
    fx.effects_barrier(timeout=60)
    assert [out.getvalue().count("line") for out in outs] == [0, 1, 2]


def test_closed_output_falls_back_to_the_present_one(capsys, gates):
    """If the output of the call is closed, the line goes to the present one; nothing crashes."""
    gate = gates()
    program = fx.jit(lambda x: fx.print("x {}", gate(x)))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program(jnp.float32(1))
    out.close()
    gate.open()
    fx.effects_barrier(timeout=60)
    assert capsys.readouterr().out == "x 1.0\n"


class _Broken(io.StringIO):
    def write(self, text):
        raise OSError("disk full")


def test_output_that_fails_is_an_error_at_the_barrier_once(lines):
    """What writing raised is raised by the barrier, with its cause, and is gone after that."""
    program = count_lines("line")
    with contextlib.redirect_stdout(_Broken()):
        program(2)
    with pytest.raises(fx.EffectError, match="`print`.*could not be carried out") as caught:
        fx.effects_barrier(timeout=60)
    assert isinstance(caught.value.__cause__, OSError)
    fx.effects_barrier()
    assert lines(program, 1) == ["line 0"]


def test_failing_program_between_good_ones(lines, gates):
    """A program that fails on the device loses nothing of the others' and does not poison the next."""
    good = count_lines("good")
    gate = gates(fails=True)

    @fx.jit
    def bad(x):
        fx.print("bad begins {}", x)
        y = gate(x)
        fx.print("bad ends {}", y)
        return y

    def call():
        good(2)
        result = bad(jnp.float32(0))
        good(1)
        gate.open()
        with pytest.raises(Exception, match="boom"):
            result.block_until_ready()
        good(3)

    shown = lines(call)
    assert [line for line in shown if line.startswith("good")] == [
        f"good {i}" for count in (2, 1, 3) for i in range(count)
    ]
    assert "bad ends" not in "".join(shown)


def test_program_that_fails_at_the_call(lines):
    """A program whose failure is known when the call returns loses nothing of the others' either."""
    good = count_lines("good")

    def fail(x):
        raise RuntimeError("boom")

    @fx.jit
    def bad(x):
        fx.print("x {}", x)
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), x)

    def call():
        good(2)
        with pytest.raises(Exception, match="boom"):
            jax.block_until_ready(bad(jnp.float32(0)))
        good(1)

    shown = lines(call)
    assert [line for line in shown if line.startswith("good")] == ["good 0", "good 1", "good 0"]


def test_failed_input_fails_its_program_alone(lines, gates):
    """A program whose input failed never runs; those after it do."""
    gate = gates(fails=True)
    broken = jax.jit(gate)
    program = fx.jit(lambda x: (fx.print("x {}", x), x)[1])

    def call():
        program(1.0)
        result = program(broken(jnp.float32(0)))
        program(2.0)
        gate.open()
        with pytest.raises(Exception, match="boom"):
            result.block_until_ready()
        program(3.0)

    assert lines(call) == ["x 1.0", "x 2.0", "x 3.0"]


def test_barrier_timeout_names_what_is_outstanding(gates):
    """A barrier that gives up says what it waited for, and the effects come later all the same."""
    gate = gates()

    def slow_program(x):
        fx.print("x {}", gate(x))

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        fx.jit(slow_program)(jnp.float32(1))
        with pytest.raises(fx.BarrierTimeout, match="slow_program` .*effects: .*print") as caught:
            fx.effects_barrier(timeout=0.02)
        assert isinstance(caught.value, TimeoutError)
        gate.open()
        fx.effects_barrier(timeout=60)
    assert out.getvalue() == "x 1.0\n"


def test_barrier_for_other_effects_does_not_wait(gates):
    """A barrier for effects that a running program does not have returns at once."""
    other = fx.register_effect(fx.Effect("test-barrier-other"))
    gate = gates()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        fx.jit(lambda x: fx.print("x {}", gate(x)))(jnp.float32(1))
        fx.effects_barrier(effects=[other])
        assert out.getvalue() == ""
        with pytest.raises(fx.BarrierTimeout):
            fx.effects_barrier(effects="print", timeout=0.01)
        gate.open()
        fx.effects_barrier(effects=["print"], timeout=60)
        assert out.getvalue() == "x 1.0\n"


def test_barrier_waits_for_its_own_thread_only(gates):
    """Without `all_threads` a barrier does not wait for what other threads dispatched."""
    gate = gates()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        called, over = threading.Event(), threading.Event()

        def run():
            fx.jit(lambda x: fx.print("x {}", gate(x)))(jnp.float32(1))
            called.set()
            over.wait(60)  # a barrier waits for threads that have ended

        thread = threading.Thread(target=run)
        thread.start()
        called.wait(60)
        fx.effects_barrier(timeout=60)
        with pytest.raises(fx.BarrierTimeout):
            fx.effects_barrier(timeout=0.02, all_threads=True)
        gate.open()
        fx.effects_barrier(timeout=60, all_threads=True)
        over.set()
        thread.join()
    assert out.getvalue() == "x 1.0\n"


def test_sync_interleaves_with_pythons_own_prints(lines):
    """With `sync`, every outermost call ends with a barrier."""
    program = count_lines("line")

    def call():
        with fx.config.override(sync=True):
            for i in range(3):
                print("python", i)
                program(1)

    assert lines(call) == [line for i in range(3) for line in (f"python {i}", "line 0")]


@pytest.mark.slow
def test_threads_keep_their_own_order():
    """32 threads, 1,000 dispatches each, loops inside: every thread's lines in its order, none lost, none torn."""
    program = fx.jit(
        lambda thread, call: jax.lax.fori_loop(0, 3, lambda i, _: fx.print("{} {} {}", thread, call, i), None)
    )
    threads, calls = 32, 1000

    def work(thread):
        for call in range(calls):
            program(thread, call)

    with contextlib.redirect_stdout(io.StringIO()) as out:
        program(-1, 0)
        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        fx.effects_barrier(all_threads=True, timeout=240)
    seen: dict[str, list[str]] = {}
    for line in out.getvalue().splitlines():
        thread, rest = line.split(" ", 1)
        seen.setdefault(thread, []).append(rest)
    del seen["-1"]
    expected = [f"{call} {i}" for call in range(calls) for i in range(3)]
    assert seen == {str(i): expected for i in range(threads)}


def test_process_order_is_the_order_of_calls(gates):
    """With `order="process"` the lines of all threads come in the order of their calls."""
    program = fx.jit(lambda n: fx.print("call {}", n))
    gate = gates()
    held = fx.jit(lambda x: fx.print("held {}", gate(x)))
    with contextlib.redirect_stdout(io.StringIO()) as out, fx.config.override(order="process"):
        for call in (lambda: held(jnp.float32(0)), lambda: program(1), lambda: program(2)):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()
        assert out.getvalue() == ""
        gate.open()
        fx.effects_barrier(timeout=60)
    assert out.getvalue().splitlines() == ["held 0.0", "call 1", "call 2"]


@pytest.mark.parametrize("orders", [("thread", "process", "thread"), ("process", "thread", "process")])
def test_order_that_changes_between_calls(orders, gates):
    """A thread's lines come in the order of its calls all the same, and its barrier raises what callbacks raised."""

    @fx.jit
    def raises(x):
        fx.print("{}", x)
        fx.callback(lambda: 1 / 0, None)

    gate = gates()
    held = fx.jit(lambda x: raises(gate(x)))
    settings = fx.config.override(order=orders[0], errors="barrier")
    with contextlib.redirect_stdout(io.StringIO()) as out, settings:
        held(jnp.float32(0))
        threading.Thread(target=gate.open).start()
        for call, order in enumerate(orders[1:], start=1):
            fx.config.order = order
            raises(jnp.float32(call))
        with pytest.raises(fx.EffectError) as caught:
            fx.effects_barrier(timeout=60)
        fx.effects_barrier()
    assert out.getvalue().splitlines() == ["0.0", "1.0", "2.0"]
    assert [type(error.__cause__) for error in caught.value.failures] == [ZeroDivisionError] * 3


@pytest.mark.parametrize("jit", [fx.jit, lambda f: f], ids=["fx.jit", "eager"])
def test_call_after_a_change_of_the_order_comes_behind_those_before(jit, gates):
    """On another device, too, which does not wait for what is called before by itself."""
    gate, called = gates(), threading.Event()
    held, program = fx.jit(lambda x: fx.print("held {}", gate(x))), jit(lambda x: fx.print("next {}", x))
    x = jax.device_put(jnp.float32(1), jax.devices()[1])
    with contextlib.redirect_stdout(io.StringIO()) as out, fx.config.override(order="thread"):
        program(x)  # compiled
        held(jnp.float32(0))
        opener = threading.Thread(target=lambda: (called.wait(0.3), gate.open()))  # it is not called before
        opener.start()
        fx.config.order = "process"
        program(x)
        called.set()
        fx.effects_barrier(timeout=60)
        opener.join()
    assert out.getvalue().splitlines() == ["next 1.0", "held 0.0", "next 1.0"]


def test_order_is_left_while_a_callback_runs(lines):
    """A change waits for nothing; the thread's next call does."""
    gate = threading.Event()
    waits = fx.jit(lambda: fx.callback(lambda: gate.wait() and None, None))

    def call():
        with pytest.raises(fx.BarrierTimeout), fx.config.override(order="process"):
            waits()
            fx.effects_barrier(timeout=0)
        gate.set()
        fx.jit(lambda: fx.print("next"))()

    assert lines(call) == ["next"]


def test_ended_threads_are_forgotten():
    """A thread that is gone leaves nothing behind."""
    from tests.internals import runtime

    program = count_lines("x")
    program(0)
    fx.effects_barrier()
    before = len(runtime.streams.all())
    for _ in range(20):
        thread = threading.Thread(target=program, args=(0,))
        thread.start()
        thread.join()
    fx.effects_barrier(all_threads=True, timeout=60)
    program(0)  # the drain looks after them while programs run
    assert runtime.drain.wait(lambda: len(runtime.streams.all()) <= before, timeout=60)


def test_full_ring_drops_and_counts():
    """If configured so, a full ring drops records and counts them; what stays is in order, and programs end."""
    program = count_lines("line")
    n = 30000
    before = fx.stats()
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        fx.config.override(when_full="drop", ring_bytes=4096),
    ):
        thread = threading.Thread(target=program, args=(n,))  # a new thread has a ring of the size that is set now
        thread.start()
        thread.join()
        fx.effects_barrier(all_threads=True, timeout=60)
    numbers = [int(line.split()[1]) for line in out.getvalue().splitlines()]
    after = fx.stats()
    dropped = after["dropped"] - before["dropped"]
    assert numbers == sorted(numbers) and len(numbers) + dropped == n
    after_drop = io.StringIO()
    with contextlib.redirect_stdout(after_drop):
        program(2)
        fx.effects_barrier(timeout=60)
    assert after_drop.getvalue() == "line 0\nline 1\n"


def test_full_ring_waits_and_loses_nothing(lines):
    """By default a program waits for room in the ring, and everything arrives."""
    program = count_lines("line")
    n = 200_000
    before = fx.stats()
    shown = lines(program, n)
    assert shown == [f"line {i}" for i in range(n)]
    assert fx.stats()["dropped"] == before["dropped"]


def test_process_order_begins_with_a_program_without_effects():
    """A first program without effects blocks nothing."""
    done = run_forked(
        "import effects as fx\nfx.config.order = 'process'\nfx.jit(lambda x: x + 1)(1)\n"
        "fx.jit(lambda x: fx.print('{}', x))(1)\nfx.effects_barrier(timeout=60)"
    )
    assert done.returncode == 0 and done.stdout == "1\n", done.stderr


def test_programs_without_effects_leave_nothing_behind():
    """A process that calls only programs without effects keeps nothing of them."""
    done = run_forked(
        "import effects as fx\nfrom tests.internals import runtime\nf = fx.jit(lambda x: x + 1)\n"
        "for i in range(5000): f(i)\nfx.effects_barrier(timeout=60)\nprint(len(runtime.streams.current().calls))"
    )
    assert done.stdout == "0\n", done.stderr


def test_program_of_jax_comes_ahead_of_ours(lines):
    """What `jax.jit` dispatched on the thread is waited for, however long it takes."""

    @jax.jit
    def plain(x):
        y = jax.lax.fori_loop(0, 20, lambda _, y: y @ y / 512, jnp.ones((512, 512)))
        fx.print("plain {}", x + y[0, 0])

    ours = fx.jit(lambda x: fx.print("ours {}", x))
    ours(0.0)
    assert lines(lambda: [plain(0.0), ours(1.0)])[-2:] == ["plain 1.0", "ours 1.0"]
