"""Sentences as words and characters, and the network that reads them; tagging and parsing use both."""
