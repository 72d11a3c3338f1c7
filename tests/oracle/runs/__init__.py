"""The oracle of run files: each case is recorded, and another process reads the file.

reader     the other process, which has imported nothing but the command
recorded   the sequential reading of what a run file must have
comparing  the difference between the two
mutating   programs in which one effect was changed, and what `diff` must say of them
"""
