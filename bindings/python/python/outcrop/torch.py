"""Keeps what PyTorch saves for the backward pass on a tape.

    with saved_tensors(host="2 GiB", dir="scratch"):
        loss = model(batch).sum()
    loss.backward()

Activations sink to the directories while the forward pass goes on, and come back up ahead of the backward pass, which reads them
in reverse. The gradients are the same, bit by bit.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import numpy
import torch

from . import OutcropError, Tape

__all__ = ["saved_tensors"]


@contextmanager
def saved_tensors(*, smallest_bytes: int = 64 << 10, **options: Any) -> Iterator[Tape]:
    """Within this context, tensors that are saved for the backward pass go to a tape with these options.

    Left alone are parameters, which are in memory anyway, tensors of fewer than `smallest_bytes`, and those that are sparse,
    quantised, or of a subclass. A tensor that several operations save is on the tape once. The backward pass may follow within
    the context or after it; the tape is closed when nothing refers to it any more.
    """
    tape = Tape(**{"order": "reverse", **options})
    keys = itertools.count()
    packed_before: WeakValueDictionary[Any, _Packed] = WeakValueDictionary()

    def pack(tensor: torch.Tensor) -> Any:
        owner = tensor if tensor._base is None else tensor._base
        is_parameter = owner.is_leaf and owner.requires_grad
        seen = _without_repeats(tensor)
        if is_parameter or not _is_plain(tensor) or seen.numel() * seen.element_size() < max(1, smallest_bytes):
            # With its history, an operation's result would keep itself alive.
            return tensor if is_parameter else tensor.detach()
        shape = tensor.size(), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
        identity = tensor.data_ptr(), tensor._version, shape
        packed = packed_before.get(identity)
        if packed is None or packed.storage() is not tensor.untyped_storage():
            packed = packed_before[identity] = _Packed(tape, next(keys), tensor, seen)
        return packed

    def unpack(packed: Any) -> torch.Tensor:
        return packed.tensor() if isinstance(packed, _Packed) else packed

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield tape


class _Packed:
    """A tensor on the tape. The graph may ask for it several times; it is removed when the graph lets go of it."""

    def __init__(self, tape: Tape, key: int, tensor: torch.Tensor, seen: torch.Tensor) -> None:
        self._tape = tape
        self._key = key
        self._dtype = tensor.dtype
        self._device = tensor.device
        self._size = tensor.size()
        self.storage = weakref.ref(tensor.untyped_storage())
        # In the order in which it lies in memory, as kernels may round differently for another one.
        self._order = sorted(range(seen.dim()), key=seen.stride, reverse=True)
        in_memory = seen.detach().permute(self._order)
        self._in_memory = in_memory.size()
        tape.save(key, bytes_of(in_memory))

    def tensor(self) -> torch.Tensor:
        """The tensor, in the tape's memory. Backward passes do not write to what was saved."""
        in_memory = tensor_over(self._tape.get(self._key), self._dtype, self._in_memory)
        inverse = sorted(range(len(self._order)), key=self._order.__getitem__)
        return in_memory.permute(inverse).expand(self._size).to(self._device)

    def __del__(self) -> None:
        # In a forked child there is nothing to remove.
        with suppress(OutcropError):
            if not self._tape.closed:
                self._tape.discard(self._key)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and not tensor.is_quantized


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what `expand` has repeated."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0:
            tensor = tensor.narrow(dim, 0, min(1, tensor.size(dim)))
    return tensor


def bytes_of(tensor: torch.Tensor) -> numpy.ndarray:
    """The bytes of a tensor, in place if it is contiguous and in host memory; NumPy does not know all of PyTorch's types."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def tensor_over(array: numpy.ndarray, dtype: torch.dtype, size: torch.Size) -> torch.Tensor:
    """A tensor over the memory of an array of bytes, which lives as long as the tensor does. PyTorch has no tensors that can only
    be read, and complains about memory that can only be read: so it is not told."""
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return torch.frombuffer(memory, dtype=dtype).view(size)
