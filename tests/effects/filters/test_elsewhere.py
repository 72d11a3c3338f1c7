"""Filters of programs that are read from elsewhere, and of those that are forgotten."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.effects.filters.common import counts_of, loop, new_title, texts_of
from tests.extensions.export.common import again
from tests.helpers import let_go, run_python
from tests.internals import known_sites, native

pytestmark = pytest.mark.slow


def _program(title):
    return lambda n: loop(n, lambda i: fx.print(f"{title} {{}}", i, every=3))


def test_exported_program_in_this_process():
    """An exported program and the function that it was made of have one line, and one count."""
    title = new_title()
    f = _program(title)
    exported = again(fx.export(f)(jax.ShapeDtypeStruct((), "int32")))
    assert texts_of(lambda: exported.call(jnp.int32(4))) == ["0", "3"]
    assert texts_of(fx.jit(f), jnp.int32(4)) == ["2"]
    assert texts_of(lambda: exported.call(jnp.int32(4))) == ["1"]
    assert counts_of(title) == (12, 4)


READ = """
import sys
import jax, jax.numpy as jnp
import effects as fx
with open(PATH, "rb") as file:
    program = fx.deserialize(file.read())
for _ in range(2):
    program.call(jnp.int32(4))
fx.effects_barrier()
print([(site.count, site.shown, site.filter) for site in fx.sites(effect="print")])
with fx.sites(effect="print").off():
    program.call(jnp.int32(4))
    fx.effects_barrier()
program.call(jnp.int32(4))
"""


def test_exported_program_in_another_process(tmp_path):
    """What a line asks for travels with its program, and `fx.sites` finds and switches it there."""
    path = tmp_path / "program"
    path.write_bytes(fx.export(_program("exported"))(jax.ShapeDtypeStruct((), "int32")).serialize())
    done = run_python(READ.replace("PATH", repr(str(path))))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(f"exported {i}" for i in (0, 3, 2)),  # numbers 0, 3 and 6
        "[(8, 3, 'every 3')]",
        *(f"exported {i}" for i in (0, 3)),  # 12 and 15
    ]


CACHED = """
import jax, jax.monitoring
import effects as fx
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rsplit("/", 1)[-1]))

def program(n):
    def body(i, _):
        fx.print("cached {}", i, every=3)
        fx.print("few {}", i, first=1)
        fx.print("warning {}", i, level="debug", when=i == 1)
    jax.lax.fori_loop(0, n, body, None)

for _ in range(2):
    fx.jit(program)(4)
    fx.effects_barrier()
print("hit", "cache_hits" in events)
print([(site.count, site.shown) for site in fx.sites(effect="print")])
"""


def test_persistent_cache_in_two_processes(tmp_path):
    """A program from the persistent cache shows what it shows where it was compiled."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for hit in (False, True):
        done = run_python(CACHED, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            *("cached 0", "few 0", "warning 1", "cached 3", "warning 1", "cached 2"),
            f"hit {hit}",
            "[(8, 3), (8, 1), (2, 2)]",
        ]


def test_program_that_comes_again_while_its_line_is_being_forgotten(monkeypatch):
    """A site that native code has forgotten, and Python has not, has its filter when a program has it again."""
    title, forgotten = new_title(), []
    forget = known_sites.forget
    f = fx.jit(_program(title))
    assert texts_of(f, 4) == ["0", "3"]
    (site,) = [site for site in known_sites._sites.values() if site.content.title.startswith(title)]
    monkeypatch.setattr(known_sites, "forget", forgotten.extend)
    jax.clear_caches()
    let_go(lambda: native.site_description(site.id) or site.id not in forgotten)
    assert texts_of(f, 4) == ["2"]
    monkeypatch.undo()
    forget(forgotten)
    assert texts_of(f, 4) == ["1"]
    assert counts_of(title) == (12, 4)
