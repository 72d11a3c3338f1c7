"""Calling: a function becomes a program with tokens, is called, and returns what the user asked for."""
