"""How a batch goes through the encoder: plain, with a gradient cache, packed, or by CUDA graphs."""
