"""The order oracle: random programs with side effects, each read twice.

A program here is a small tree of frozen dataclasses. `source.render` turns it into ordinary Python source, and running
that source on one thread is what the library promises to look like; `jax_.to_jax` turns it into a function for
`effects.jit`. `compare.check` dispatches a short sequence of programs without waiting, meets the barrier once, and
compares final states, lines and errors. Everything that happens ends as a line in one place: prints are written there
by the library, events by a handler of Python's logging, and callbacks write their own. A check that fails has no line:
it is raised, and it is among the records where these are captured.

    language     the words that programs are made of, programs, and sequences of dispatches
    expressions  a register, a literal, a sum
    statements/  effects, callbacks, arrays, asynchronous operations, control flow, calls, refs, derivatives: each with
                 its two readings
    source       a program as Python source
    mapped       along which axes of lanes JAX's own effects happen more than once
    python_      the sequential reading: Python runs that source
    jax_         the reading of JAX: a program as a function to be jitted
    host         what a program runs on, and what its callbacks do
    runners      the library under test, and JAX's own ordered effects
    observe      what is expected of a sequence, and what a runner makes of it
    tokens       where records stand, by their tokens
    rings        rings that fill
    failures     what a failure leaves open
    compare      the difference, shown with the program's source
    place        where decisions come from, and what JAX allows where
    leaves       random statements without statements inside
    generator    random programs
    cases        random sequences of programs, by number and for Hypothesis
    devices/     the same over several devices
    kernels/     the same with Pallas kernels
    runs/        each case is recorded, another process reads the file, and `diff` compares two of them
    campaign     many cases in many processes, and their tally
    __main__     the command

    python -m tests.oracle --programs 5000 --seed 0 --jobs 2
    python -m tests.oracle --seed 0 --only 1234          # one case again, with its source
    python -m tests.oracle --devices --programs 2000     # over several devices
    python -m tests.oracle --kernels --programs 1000     # with Pallas kernels
    python -m tests.oracle --runs --programs 1000        # recorded and read, too; with --devices or --kernels
"""
