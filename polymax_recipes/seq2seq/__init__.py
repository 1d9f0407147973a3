"""Translation and summarization: an attentional LSTM whose attention is any mapping."""
