"""Textual entailment: does a premise entail a hypothesis, contradict it, or neither."""
