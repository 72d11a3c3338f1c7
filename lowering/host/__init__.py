"""The native module, and what the host publishes and knows by itself."""
