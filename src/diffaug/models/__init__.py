"""What turns token rows into vectors: backbone, prefix hook, template, pooling, head, and the saved folder."""
