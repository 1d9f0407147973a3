"""The price of a small call."""
