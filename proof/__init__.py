"""Tools that prove the laws and are no tests: chaos, interleavings, mutants, the model, screens."""
