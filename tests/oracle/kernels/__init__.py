"""What Pallas kernels add to the oracle.

The language has one statement more that is a whole kernel, and a few that stand only inside of one. The block of a
`Kernel` runs once for each program of its grid, in row-major order, and may hold whatever other blocks hold: loops,
branches, lanes, callbacks. Its arrays are NumPy arrays in the sequential reading, and what a program of the grid gets
of them is a view.

    blocks       the arrays of a kernel, and the part that each program gets
    kernel       the kernel itself
    statements   what stands only in kernels: indices of the grid, elements, stores, scopes
    generator    random programs with kernels, and random cases
    rewriting    the same cases with kernels that write a log, as compiled ones do

How kernels run is the runner's affair: `Runner.kernel`. `runners.library` has JAX simulate them.
"""
