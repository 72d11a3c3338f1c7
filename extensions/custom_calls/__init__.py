"""Native functions of the user's as part of a program: `fx.custom_call`."""

from effects.extensions.custom_calls import failures as failures
from effects.extensions.custom_calls import rules as rules
