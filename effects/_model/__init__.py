"""What effects are made of: sites, their content, operands, descriptions and records."""
