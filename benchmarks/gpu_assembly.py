"""Estimates from a kernel's GPU assembly, without the GPU: instructions and their time."""

import re
from typing import NamedTuple

LOADS_AND_STORES = re.compile(r"(LD|ST)(G|S|SM|GSTS)\b")
TENSOR_CORES = re.compile(r"U?[A-Z]*MMA\b")
CACHE_LINE = 128  # bytes that a multiprocessor's cache gives or takes in a cycle


class Gpu(NamedTuple):
    """A multiprocessor's limits, and the rates of the GPU named.

    The memory bandwidth (bytes a second) is what copies reach, 0.9 of what the maker promises. All
    have 65,536 registers, 64 warps, 32 blocks and four schedulers a multiprocessor.
    """

    name: str
    multiprocessors: int
    clock: float  # cycles a second
    memory_rate: float
    shared_memory: int  # bytes, of which every block takes 1,024 more than it asks for

    def occupancy(self, registers: int, shared_memory: int, warps: int) -> float:
        """The share of the warps that a multiprocessor could have."""
        of_registers = 65_536 // (-(-registers * 32 // 256) * 256 * warps)
        of_memory = self.shared_memory // (shared_memory + 1024)
        return min(of_registers, of_memory, 64 // warps, 32) * warps / 64


GPUS = {
    "80": Gpu("A100 80 GB", 108, 1.41e9, 1.84e12, 164 * 1024),
    "90": Gpu("H200", 132, 1.98e9, 4.3e12, 228 * 1024),
    "100": Gpu("B200", 148, 1.96e9, 7.2e12, 228 * 1024),
}


def instructions(listing: str, rounds: float) -> dict[str, float]:
    """How often a warp executes each instruction of a listing by ``cuobjdump -sass``.

    What lies beyond the kernel's end are waits that were moved there; they make no loop.
    """
    found = re.findall(r"^\s+/\*([0-9a-f]+)\*/\s+(@!?U?P\w+ )?([A-Z][\w.]+)(.*?);", listing, re.M)
    lines = [(int(address, 16), bool(when), name, rest) for address, when, name, rest in found]
    ends = [address for address, when, name, _ in lines if name == "EXIT" and not when]
    end = min(ends, default=lines[-1][0])
    loops = []
    for address, _, name, rest in lines:
        target = re.search(r"0x([0-9a-f]+)", rest) if name.startswith("BRA") else None
        if target and int(target[1], 16) < address < end:
            loops.append((int(target[1], 16), address))
    counts: dict[str, float] = {}
    for address, _, name, _ in lines:
        if name != "NOP":
            looped = any(first <= address <= last for first, last in loops)
            counts[name] = counts.get(name, 0) + (rounds if looped else 1)
    return counts


def width(instruction: str) -> int:
    """Bits that each thread loads or stores; ``LDSM`` with four matrices has 128."""
    if matrices := re.search(r"M88\.?(\d?)", instruction):
        return 32 * int(matrices[1] or 1)
    found = re.search(r"\.[US]?(8|16|64|128|256)\b", instruction)
    return int(found[1]) if found else 32


def mix(counts: dict[str, float]) -> dict:
    """Global loads and stores by bits, and the tensor cores' instructions."""
    found: dict[str, dict[int, float]] = {"loads": {}, "stores": {}}
    for name, count in counts.items():
        if name.startswith(("LDG", "STG")):
            by_width = found["loads" if name.startswith("LDG") else "stores"]
            by_width[width(name)] = by_width.get(width(name), 0) + count
    tensor = sum(count for name, count in counts.items() if TENSOR_CORES.match(name))
    return found | {"all": sum(counts.values()), "tensor_cores": tensor}


def estimate(gpu: Gpu, counts: dict[str, float], warps: int, floor: float | None) -> dict:
    """Lower bounds of the kernel's time in microseconds; the largest one counts."""
    per_second = gpu.multiprocessors * gpu.clock
    lines = sum(
        count * max(1, width(name) * 32 / 8 / CACHE_LINE)
        for name, count in counts.items()
        if LOADS_AND_STORES.match(name)
    )
    return {
        "memory": floor and 1e6 * floor / gpu.memory_rate,
        "issue": 1e6 * sum(counts.values()) * warps / (4 * per_second),
        "load_store": 1e6 * lines * warps / per_second,
    }
