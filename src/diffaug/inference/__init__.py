"""Computing vectors with a finished model: torch or ONNX Runtime."""
