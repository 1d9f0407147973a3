"""Several processes: attention over a sequence, or a cache, that is spread over them, and plans for modules.

Public operators take DTensors, so most operations on several processes need no function of their own: see the page
"Many processes" of the documentation.
"""

from typing import Any

from polymax.nn.sequence_parallel import balanced_part as balanced_part
from polymax.nn.sequence_parallel import sequence_parallel_attention as sequence_parallel_attention
from polymax.nn.sequence_parallel import sharded_keys_attention as sharded_keys_attention


def attention_plan(input_layouts: Any = None, output_layouts: Any = None, use_local_output: bool = True) -> Any:
    """Return the plan by which `parallelize_module` gives each process some heads of a `pm.nn.MultiheadAttention`.

    The projections of query, key and value are divided by heads, the output projection by its inputs, and the
    parameters of a learned mapping by heads. There is one all-reduce in the forward pass and one in the backward pass.
    The three projections have a parameter each in the state_dict, `q_proj_weight`, `k_proj_weight`, `v_proj_weight`; a
    `MultiheadAttention` without a plan loads them.

    Args:
        input_layouts: the placement of query, key and value; None is Replicate(), Shard(1) is a part of the sequence
        output_layouts: the placement of the output; None is Replicate()
        use_local_output: return plain tensors; otherwise DTensors

    Returns:
        a ParallelStyle of torch

    Example:
        >>> # in each process:
        >>> # plan = {"attention": pm.distributed.attention_plan(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        >>> # parallelize_module(model, mesh, plan)
    """
    # torch.distributed.tensor is imported only where it is used
    from polymax.nn.head_parallel import HeadParallel

    return HeadParallel(input_layouts, output_layouts, use_local_output)


def words_plan() -> Any:
    """Return the plan by which `parallelize_module` gives each process some words of a `pm.nn.LinearEntmaxLoss`.

    States and targets are the same on all processes, and so is the loss. There are two collectives in the forward pass
    and one all-reduce in the backward pass, of the gradient of the states.

    Returns:
        a ParallelStyle of torch

    Example:
        >>> # in each process:
        >>> # plan = {"attention": pm.distributed.attention_plan(), "head": pm.distributed.words_plan()}
        >>> # parallelize_module(model, mesh, plan)
    """
    from polymax.nn.head_parallel import WordParallel

    return WordParallel()
