"""Programs on NVIDIA's GPUs: on one, where there is one, and on CPUs with a stand-in for its driver."""
