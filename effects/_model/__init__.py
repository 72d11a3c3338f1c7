"""The parts of effects: sites, their content, operands, descriptions and records."""
