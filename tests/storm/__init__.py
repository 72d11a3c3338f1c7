"""A storm of interrupts: Ctrl-C at random moments, in a thread that dispatches programs and waits for their effects.

Every call, barrier, capture and handler may be interrupted between any two of its steps, and once more while it is
left. What must hold all the same: nothing hangs; the effects of a call that returned are there once, whole and in the
order of the calls; those of a call that was interrupted are a beginning of what it has, or nothing; what a callback
raised is raised by a barrier, or is the context of the interrupt that came in the way.

    interrupts   a timer that interrupts, and what is interrupted
    operations   what is done meanwhile, and what must have come of it
    rounds       many operations, what they left behind, and whether one of them hangs
    mixtures     random programs over several devices, and how they are read
    asynchronous many runs of those, some of which fail, and whether one of them hangs
    __main__     the command

    python -m tests.storm --interrupts 100000
    python -m tests.storm --interrupts 10000 --devices 4
    python -m tests.storm --asynchronous 1000

With `--devices` programs run over so many CPU devices. Each storm over devices is followed by a control run, the same
storm over programs of plain JAX without effects, which does not import this library: what breaks there is JAX's own.

With `--asynchronous` nothing is interrupted: what is random is the programs, and which functions and handlers fail.
"""
