"""Notes of what each device comes to: `effects run --collectives`."""
