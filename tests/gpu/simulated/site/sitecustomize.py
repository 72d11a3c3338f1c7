"""Every interpreter that has this folder on its path takes the simulated GPUs for real ones: JAX looks for a device's
file before it opens the driver."""

import os

_exists = os.path.exists
os.path.exists = lambda path: path == "/dev/nvidia0" or _exists(path)
