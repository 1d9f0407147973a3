"""Tagging: a BiLSTM over words and their characters, and a chain whose loss is any of the structured ones."""
