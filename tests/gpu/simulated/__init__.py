"""A machine with NVIDIA GPUs that are not there.

JAX, its plugin for CUDA, XLA's compiler and runtime for GPUs and this library are the real ones. NVIDIA's driver is
not: its devices are memory of the host's, its streams are threads, and it runs kernels instruction by instruction, from
the text that a compiler gives it. So programs are compiled and run as they are on a GPU, as far as the host has a part
in that. What a device does by itself, how fast any of this is, and what libraries like cuBLAS give, it does not show.

    python -m tests.gpu.simulated --gpus 4 -m pytest -m gpu tests/gpu/test_on_gpu.py

JAX's plugin has to be there: `pip install jax-cuda13-plugin jax-cuda13-pjrt`, of JAX's version and without what they
depend on. It may be in a folder of its own, which the environment names: `EFFECTS_CUDA_PLUGIN`.
"""
