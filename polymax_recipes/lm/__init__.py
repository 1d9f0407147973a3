"""Language models: decoder-only transformers whose attention is any mapping of the entmax family."""
