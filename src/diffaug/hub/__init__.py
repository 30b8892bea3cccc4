"""Models on the hub: pushing, and the model card."""
