"""A Llama-family decoder to read in one sitting, with its KV cache, weights and generation."""
