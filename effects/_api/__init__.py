"""What users call, a module for each function and for what it brings along."""
