"""Search over the settings of a recipe, with Optuna."""
