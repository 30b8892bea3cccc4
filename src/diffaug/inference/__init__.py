"""Inference with PyTorch or ONNX Runtime."""
