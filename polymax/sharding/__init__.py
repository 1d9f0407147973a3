"""DTensors: places of the parts of a call, the share of each process, and communication between processes.

placements    rules of public operators: batch dimensions stay sharded, shared scores are replicated
rows          softmax, sparsemax and entmax whose own dimension is sharded
words         the smoothed maximum of a linear layer whose weight is sharded by words
collectives   sums, maxima and lists over the processes of a group, with their derivatives
"""
