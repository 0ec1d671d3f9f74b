"""Other engines' parts, timed like ours. Each module is also a script that needs only the engine it measures."""
