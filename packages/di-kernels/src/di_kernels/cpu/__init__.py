"""CPU backend: thin wrappers that allocate results and call the native module."""
