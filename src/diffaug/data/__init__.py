"""From text to tensors."""
