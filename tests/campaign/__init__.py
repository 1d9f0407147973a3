"""Hostile scores for every mapping and structure, for as long as there is time.

    python -m tests.campaign --minutes 20

Operators take turns. A trial is the same for the same seed, operator and number, so that a breach can be called again.
"""
