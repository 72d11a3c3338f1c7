"""Programs for NVIDIA's GPUs, lowered where there is none."""
