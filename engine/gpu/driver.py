"""CUDA's virtual memory management by ctypes: physical memory and address ranges are allocated separately, then mapped.

Torch has no interface for it. It must never wait for the device.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from typing import Any

import torch
from torch import Tensor

PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED: memory that cannot migrate
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE
MINIMUM = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class DriverError(RuntimeError):
    """A call of the driver failed; the message names the call and the error."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


class _Location(Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Flags(Structure):
    _fields_ = [
        ("compression", c_ubyte), ("rdma", c_ubyte), ("usage", c_ushort), ("reserved", c_ubyte * 4),
    ]  # fmt: skip


class _Properties(Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", c_int), ("handle_types", c_int), ("location", _Location), ("win32", c_void_p), ("flags", _Flags),
    ]  # fmt: skip


class _Access(Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", _Location), ("flags", c_int)]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Properties), c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Properties), c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
}


class _TensorMemory:
    """Mapped memory under torch's array interface. torch keeps this object while a tensor uses the memory."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip
        self._owner = owner


class DriverMemory:
    """Memory of one device, whose context exists already. Any thread may call."""

    def __init__(self, device: torch.device) -> None:
        """Raises DriverError, or OSError without a driver."""
        assert device.index is not None
        self._device = device
        self._cuda = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._cuda, name)
            function.argtypes, function.restype = arguments, c_int
        location = _Location(ON_DEVICE, device.index)
        self._properties = _Properties(type=PINNED, location=location)
        self._access = _Access(location, READ_WRITE)

    def granularity(self) -> int:
        """Bytes of which chunk sizes are multiples."""
        size = c_size_t()
        self._call("cuMemGetAllocationGranularity", byref(size), byref(self._properties), MINIMUM)
        return size.value

    def create(self, size: int) -> int:
        """Allocate physical memory; returns its handle."""
        handle = c_uint64()
        self._call("cuMemCreate", byref(handle), size, byref(self._properties), 0)
        return handle.value

    def release_chunk(self, handle: int) -> None:
        """Release a handle. Its memory is free once it is mapped nowhere."""
        self._call("cuMemRelease", handle)

    def reserve_addresses(self, size: int) -> int:
        """Reserve an address range without memory."""
        address = c_uint64()
        self._call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
        return address.value

    def free_addresses(self, address: int, size: int) -> None:
        """Free an address range in which nothing is mapped."""
        self._call("cuMemAddressFree", address, size)

    def map(self, address: int, size: int, handle: int) -> None:
        """Map a handle, which may be mapped at other addresses too. Raises DriverError; nothing is mapped then."""
        self._call("cuMemMap", address, size, 0, handle, 0)
        try:
            self._call("cuMemSetAccess", address, size, byref(self._access), 1)
        except DriverError:
            self.unmap(address, size)
            raise

    def unmap(self, address: int, size: int) -> None:
        """Unmap exactly the range of one `map`, which no running device work may use."""
        self._call("cuMemUnmap", address, size)

    def tensor(self, address: int, size: int, owner: object) -> Tensor:
        """A tensor uint8 [size] over mapped memory, which keeps `owner` alive."""
        shown = _TensorMemory(address, size, owner)
        tensor = torch.as_tensor(shown, device=self._device)
        assert tensor.data_ptr() == address, "torch copied what it was to show"
        return tensor

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            found = c_char_p()
            self._cuda.cuGetErrorName(code, byref(found))
            raise DriverError(name, code, found.value.decode() if found.value else f"error {code}")
