"""Tensor parallelism of modules: each process has some heads of an attention, or some words of a last layer."""

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from polymax.nn.linear_entmax import LinearEntmaxLoss
from polymax.nn.multihead import MultiheadAttention


class HeadParallel(ParallelStyle):
    """The plan of `attention_plan`: parameters become DTensors, and inputs and outputs are placed by hooks."""

    def __init__(self, input_layouts: Any, output_layouts: Any, use_local_output: bool) -> None:
        self.input_layouts = Replicate() if input_layouts is None else input_layouts
        self.output_layouts = Replicate() if output_layouts is None else output_layouts
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self._check(module, device_mesh)
        assert isinstance(module, MultiheadAttention)
        heads = module.num_heads
        if module.in_proj_weight is not None:
            # a part of the three matrices, one below the other, would be heads of one of them alone
            for name, matrix in zip("qkv", module.in_proj_weight.detach().chunk(3), strict=True):
                parameter = nn.Parameter(matrix.clone(), module.in_proj_weight.requires_grad)
                module.register_parameter(f"{name}_proj_weight", parameter)
            module.register_parameter("in_proj_weight", None)
        places: dict[str, Any] = {f"{name}_proj_weight": Shard(0) for name in "qkv"}
        places |= {"in_proj_bias": Replicate(), "bias_k": Shard(2), "bias_v": Shard(2)}
        for name, place in places.items():
            _distribute(module, name, device_mesh, place)
        if isinstance(module.mapping, nn.Module):
            for inner in module.mapping.modules():
                for name, p in list(inner.named_parameters(recurse=False)):
                    of_heads = p.dim() > 0 and len(p) == heads and getattr(inner, "num_heads", None) == heads
                    _distribute(inner, name, device_mesh, Shard(0) if of_heads else Replicate())
        style = RowwiseParallel(output_layouts=self.output_layouts, use_local_output=False)
        parallelize_module(module.out_proj, device_mesh, style)
        module.register_forward_pre_hook(self._place_inputs(device_mesh), with_kwargs=True)
        module.register_forward_hook(self._place_outputs)
        return module

    def _check(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """Refuse other modules, heads that cannot be divided, and meshes of several dimensions."""
        if not isinstance(module, MultiheadAttention):
            raise TypeError(f"attention_plan is for pm.nn.MultiheadAttention; got {type(module).__name__}")
        if mesh.ndim != 1:
            raise ValueError(f"the device mesh must have one dim, such as mesh['tp']; got {mesh.ndim}")
        if module.num_heads % mesh.size():
            raise ValueError(f"num_heads must be divisible by {mesh.size()} processes; got {module.num_heads}")
        if module.add_zero_attn:
            raise ValueError("add_zero_attn must be False for a plan")

    def _place_inputs(self, mesh: DeviceMesh) -> Any:
        def replicated(t: Any, layout: Any, known: dict[int, Tensor]) -> Any:
            if not isinstance(t, Tensor):
                return t
            if t.is_nested:
                raise ValueError("query, key and value must not be nested tensors under a plan")
            # a tensor that is query, key and value at once is placed once
            if id(t) not in known:
                whole = t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, [layout], run_check=False)
                known[id(t)] = whole.redistribute(mesh, [Replicate()])
            return known[id(t)]

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            known: dict[int, Tensor] = {}
            inputs = ("query", "key", "value")
            layouts = [self.input_layouts if k < len(inputs) else Replicate() for k in range(len(args))]
            given = tuple(replicated(t, layout, known) for t, layout in zip(args, layouts, strict=True))
            named = {
                name: replicated(t, self.input_layouts if name in inputs else Replicate(), known)
                for name, t in kwargs.items()
            }
            return given, named

        return hook

    def _place_outputs(self, module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor | None]) -> Any:
        out, weights = output
        if weights is not None:
            assert isinstance(weights, DTensor)
            weights = weights.redistribute(weights.device_mesh, [Replicate()])
        if not self.use_local_output:
            return out, weights
        assert isinstance(out, DTensor)
        return out.to_local(), weights.to_local() if isinstance(weights, DTensor) else None


class WordParallel(ParallelStyle):
    """The plan of `words_plan`: the weight becomes a DTensor, and states and targets are replicated."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, LinearEntmaxLoss):
            raise TypeError(f"words_plan is for pm.nn.LinearEntmaxLoss; got {type(module).__name__}")
        for name in ("weight", "bias"):
            _distribute(module, name, device_mesh, Shard(0))
        if module.class_weights is not None:
            module.class_weights = distribute_tensor(module.class_weights, device_mesh, [Shard(0)])

        def place(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            whole = [Replicate()] * device_mesh.ndim
            plain = (t if isinstance(t, DTensor) else DTensor.from_local(t, device_mesh, whole) for t in args)
            return tuple(t.redistribute(device_mesh, whole) for t in plain)

        module.register_forward_pre_hook(place)
        module.register_forward_hook(lambda module, args, loss: loss.full_tensor())
        return module


def _distribute(module: nn.Module, name: str, mesh: DeviceMesh, place: Any) -> None:
    """Replace a parameter by a DTensor; None stays None."""
    p = getattr(module, name)
    if p is not None:
        module.register_parameter(name, nn.Parameter(distribute_tensor(p, mesh, [place]), p.requires_grad))
