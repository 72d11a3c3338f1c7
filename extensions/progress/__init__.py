"""Progress bars that compiled loops drive, on terminals and in notebooks."""
