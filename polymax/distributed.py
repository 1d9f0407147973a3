"""Several processes: attention over a sequence, or a cache, that is spread over them.

Public operators take DTensors, so most of what several processes need has no name of its own: see the page "Many
processes" of the documentation.
"""

from polymax.nn.sequence_parallel import balanced_part as balanced_part
from polymax.nn.sequence_parallel import sequence_parallel_attention as sequence_parallel_attention
from polymax.nn.sequence_parallel import sharded_keys_attention as sharded_keys_attention
