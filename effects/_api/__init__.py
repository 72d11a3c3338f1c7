"""The functions that users call, a module for each with its effect."""
