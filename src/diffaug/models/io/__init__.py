"""Save and load models: our folder, sentence-transformers, transformers."""
