"""DTensors: where the parts of a call are, what each process computes of it, and what processes tell each other.

placements    rules of public operators: batch dimensions stay sharded, shared scores are replicated
rows          softmax, sparsemax and entmax whose own dimension is sharded
words         the smoothed maximum of a linear layer whose weight is sharded by words
collectives   sums, maxima and lists over the processes of a group, with their derivatives
"""
