"""How a batch goes through the encoder: plain, with a gradient cache, packed on a CPU, or with CUDA graphs."""
