"""Triton's interpreter in a quarter of its time.

It looks through all of Triton's language at every call of a device function, for what to replace; here it does so once
in a launch. It combines the entries of a row one by one; here halves of all rows are combined, as a GPU does. It makes
objects for the shape of every result; here those of each shape are made once.
"""

import builtins
import inspect
from functools import cache

import numpy as np

# modules of the language that the launch that runs has replaced; None between launches
_replaced = None


def quicken(interpreter):
    """Replace what is slow in the module of the interpreter, between launches."""
    if not hasattr(interpreter, "_LangPatchScope"):
        # an older Triton, whose interpreter has other parts
        return
    _replace_once(interpreter)
    _know_types(interpreter)
    _know_shapes(interpreter.tl.core)
    # a dozen tensors to see whether a sum of integers is one, of which nothing is made but under TRITON_DEBUG
    semantic = type(interpreter.interpreter_semantic)
    semantic.binary_op_sanitize_overflow_impl = lambda self, left, right, op: None
    interpreter.ReduceOps.generic_reduce = _reduce
    interpreter.ScanOps.generic_scan = _scan


def _replace_once(interpreter):
    language, core = interpreter.tl, interpreter.tl.core
    run, replace, replace_all = interpreter.GridExecutor.__call__, interpreter._patch_lang, interpreter._patch_builtin
    owners = (language, language.tensor, language.math, core, core.tensor_descriptor_base)
    replaceable = {o: [name for name, member in inspect.getmembers(o) if core.is_builtin(member)] for o in owners}

    @cache
    def modules(fn):
        return frozenset(k for k, own in enumerate((language, core)) if any(m is own for m in fn.__globals__.values()))

    def launch(self, *args, **kwargs):
        global _replaced
        before, _replaced = _replaced, set()
        try:
            return run(self, *args, **kwargs)
        finally:
            _replaced = before

    def patch(fn):
        if _replaced is None:
            return replace(fn)
        if modules(fn) <= _replaced:
            # of a device function, whose caller does not look at the result
            return None
        _replaced.update(modules(fn))
        return replace(fn)

    def patch_all(owner, builder, scope):
        if owner not in replaceable:
            return replace_all(owner, builder, scope)
        for name in replaceable[owner]:
            if core.is_builtin(member := getattr(owner, name)):
                interpreter._patch_attr(owner, name, member, builder, scope)

    @cache
    def called(member):
        # without a look for the argument that is given here
        fn = getattr(member, "__wrapped__", member)

        def call(*args, **kwargs):
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return fn(*args, **kwargs)

        return call

    def patch_one(owner, name, member, builder, scope):
        scope.set_attr(owner, name, called(member))

    interpreter.GridExecutor.__call__ = launch
    interpreter._patch_lang, interpreter._patch_builtin, interpreter._patch_attr = patch, patch_all, patch_one


def _know_types(interpreter):
    found, known = interpreter._get_np_dtype, {}

    def known_type(dtype):
        name = dtype.scalar.name
        if name not in known:
            known[name] = found(dtype)
        return known[name]

    interpreter._get_np_dtype = known_type


def _know_shapes(core):
    """Blocks of one shape share its numbers, and so do tensors."""
    make, known, of_tensors = core.block_type.__init__, {}, {}
    integers = frozenset(core.dtype.SINT_TYPES + core.dtype.UINT_TYPES)

    def block(self, element_ty, shape):
        numbers = builtins.tuple(getattr(s, "value", s) for s in shape)
        key = element_ty.name, numbers
        if key not in known:
            make(self, element_ty, shape)
            known[key] = self.shape, self.numel, self.name
            shaped = core.tuple([core.constexpr(n) for n in numbers])
            of_tensors[id(self.shape)] = shaped, core.constexpr(self.numel)
        self.element_ty = element_ty
        self.shape, self.numel, self.name = known[key]

    alone = core.tuple([]), core.constexpr(1)

    def tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = of_tensors[id(type.shape)] if type.is_block() else alone

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    core.dtype.is_int = lambda self: self.name in integers


def _combined(op, left, right, types):
    """What the function of a reduction makes of two lists of arrays."""
    found = op.combine_fn.fn(*(op.to_tensor(a, t) for a, t in zip([*left, *right], [*types, *types], strict=True)))
    found = found if isinstance(found, tuple) else (found,)
    found = [f.handle.data if hasattr(f, "handle") else f for f in found]
    return [np.broadcast_to(f, a.shape).astype(a.dtype) for f, a in zip(found, left, strict=True)]


def _reduce(self, input):
    given, axis = self.unravel(input, self.axis)
    types, found = [t.dtype for t in given], [t.handle.data for t in given]
    dims = input[0].handle.data.ndim
    while (n := found[0].shape[axis]) > 1:
        left, right = ([a.take(range(start, n, 2), axis) for a in found] for start in (0, 1))
        found = _combined(self, left, right, types)
    if self.axis is None:
        found = [a.reshape((1,) * dims) if self.keep_dims else a.item() for a in found]
    elif not self.keep_dims:
        found = [a.take(0, axis) for a in found]
    return [self.to_tensor(a, t) for a, t in zip(found, types, strict=True)]


def _scan(self, input):
    types, found = [t.dtype for t in input], [t.handle.data for t in input]
    axis, n = self.axis, found[0].shape[self.axis]
    place = np.arange(n).reshape([-1 if d == axis % found[0].ndim else 1 for d in range(found[0].ndim)])
    reach = 1
    while reach < n:
        # each entry has the result of as many entries up to it; the first ones have all
        both = _combined(self, [np.roll(a, reach, axis) for a in found], found, types)
        found = [np.where(place < reach, a, b) for a, b in zip(found, both, strict=True)]
        reach *= 2
    return [self.to_tensor(a, t) for a, t in zip(found, types, strict=True)]
