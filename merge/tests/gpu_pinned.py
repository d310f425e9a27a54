#!/usr/bin/env python3
"""On a machine with an NVIDIA GPU: memory that its driver has pinned keeps what the GPU writes, before it is
advised and after. By `cudaHostRegister` (cuMemHostRegister of libcuda alone) and by PyTorch's pin_memory.

  merge/tests/gpu_pinned.py [--library libmayfly_merge.so] [--mayfly mayfly]

Without --mayfly it uses `target/release/mayfly`, without --library `target/release/libmayfly_merge.so` (cargo
build --release -p mayfly -p mayfly_merge). A part that cannot run here prints why it is skipped."""

import argparse
import ctypes
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = 4096
PAGES = 2048
FIRST, PINNED = 600, 300  # the part that is pinned


class Skipped(Exception):
    """Why a part cannot run here."""


class Library:
    """Mayfly's library, by its C interface."""

    def __init__(self, path):
        self.c = ctypes.CDLL(str(path))
        self.c.mayfly_merge_error.restype = ctypes.c_char_p

    def advise(self, address, length):
        if self.c.mayfly_advise(ctypes.c_void_p(address), ctypes.c_size_t(length), 0):
            raise AssertionError(f"advise: {self.c.mayfly_merge_error().decode()}")


class Cuda:
    """The driver's interface, without CUDA's runtime."""

    def __init__(self):
        try:
            self.c = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Skipped(f"no driver of NVIDIA ({error})") from None
        if status := self.c.cuInit(0):
            raise Skipped(f"no GPU (cuInit: {status})")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        status = getattr(self.c, name)(*arguments)
        if status:
            raise AssertionError(f"{name}: {status}")

    def filled(self, length, byte):
        """Memory of the GPU."""
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(length))
        self.call("cuMemsetD8_v2", memory, ctypes.c_ubyte(byte), ctypes.c_size_t(length))
        return memory

    def copy_to_host(self, address, memory, length):
        """By the GPU: it writes to the pages that were pinned."""
        self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(address), memory, ctypes.c_size_t(length), None)
        self.call("cuCtxSynchronize")


def page(number):
    """The contents of a page, the same in every process."""
    return number.to_bytes(8, "little") * (PAGE // 8)


def block():
    """Anonymous memory, filled; its address and the mapping."""
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for n in range(PAGES):
        memory[n * PAGE : (n + 1) * PAGE] = page(n + 1)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def expect(memory, first, last, want, when):
    for n in range(first, last):
        if memory[n * PAGE : (n + 1) * PAGE] != want(n):
            raise AssertionError(f"{when}: page {n} holds other contents")


def written(memory, byte, when):
    expect(memory, FIRST, FIRST + PINNED, lambda _: bytes([byte]) * PAGE, f"{when}: what the GPU wrote")
    expect(memory, 0, FIRST, lambda n: page(n + 1), f"{when}: in front")
    expect(memory, FIRST + PINNED, PAGES, lambda n: page(n + 1), f"{when}: behind")


def registered(library, is_advised_before):
    """cuMemHostRegister, before or after the first call."""
    cuda = Cuda()
    address, memory = block()
    pinned, length = address + FIRST * PAGE, PINNED * PAGE
    if is_advised_before:
        library.advise(address, PAGES * PAGE)
    cuda.call("cuMemHostRegister_v2", ctypes.c_void_p(pinned), ctypes.c_size_t(length), 0)
    for turn in range(3):
        library.advise(address, PAGES * PAGE)
        byte = 0x50 + turn
        cuda.copy_to_host(pinned, cuda.filled(length, byte), length)
        written(memory, byte, f"call {turn}")
    cuda.call("cuMemHostUnregister", ctypes.c_void_p(pinned))
    library.advise(address, PAGES * PAGE)
    written(memory, 0x52, "no longer registered")


def registered_before(library):
    """cuMemHostRegister before the first call"""
    registered(library, is_advised_before=False)


def registered_after(library):
    """cuMemHostRegister of memory that is shared"""
    registered(library, is_advised_before=True)


def torch_pin_memory(library):
    """PyTorch: pin_memory"""
    try:
        import torch
    except ImportError:
        raise Skipped("PyTorch is not installed") from None
    if not torch.cuda.is_available():
        raise Skipped("PyTorch finds no GPU")
    host = torch.arange(1 << 22, dtype=torch.int32).pin_memory()
    length = host.numel() * 4
    start = -(-host.data_ptr() // PAGE) * PAGE
    whole = (host.data_ptr() + length) // PAGE * PAGE - start
    try:
        library.advise(start, whole)
    except AssertionError as error:
        # Memory of the driver's own device, which is refused, is left as it is.
        print(f"  {error}")
    for value in (7, 8):
        host.copy_(torch.full((1 << 22,), value, dtype=torch.int32, device="cuda"), non_blocking=True)
        torch.cuda.synchronize()
        if not bool((host == value).all()):
            raise AssertionError("a copy from the GPU to pinned memory was lost")


def main():
    plain = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    options.add_argument("--library", type=pathlib.Path, default=ROOT / "target/release/libmayfly_merge.so")
    options.add_argument("--mayfly", type=pathlib.Path, default=ROOT / "target/release/mayfly")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        socket = pathlib.Path(folder) / "share.socket"
        os.environ["MAYFLY_SHARE_SOCKET"], os.environ["MAYFLY_MERGE_PATH"] = str(socket), "engine"
        store = subprocess.Popen([str(chosen.mayfly), "share", "--socket", str(socket)])
        try:
            while not socket.exists():
                if store.poll() is not None:
                    sys.exit(f"{chosen.mayfly} share has ended")
                time.sleep(0.01)
            library = Library(chosen.library)
            failed = False
            for part in (registered_before, registered_after, torch_pin_memory):
                try:
                    part(library)
                    said = "passed"
                except Skipped as why:
                    said = f"skipped: {why}"
                except AssertionError as error:
                    said, failed = f"FAILED: {error}", True
                print(f"{part.__doc__}: {said}", flush=True)
        finally:
            store.terminate()
            store.wait()
    sys.exit(failed)


if __name__ == "__main__":
    main()
