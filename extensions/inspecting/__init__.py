"""What effects and asynchronous operations make of a compiled program: `fx.inspect`."""
