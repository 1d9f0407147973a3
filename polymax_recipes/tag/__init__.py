"""Tagging: a BiLSTM over words and their characters, and a chain trained by any of the structured losses."""
