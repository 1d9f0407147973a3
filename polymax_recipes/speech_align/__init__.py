"""Speech and its tokens: where each token of an utterance begins and ends, learned from transcripts alone."""
