"""Barriers over all processes of one computation."""

from effects.extensions.processes import meetings as meetings
