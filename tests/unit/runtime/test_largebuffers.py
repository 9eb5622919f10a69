import subprocess
import sys

# The settings are those of a process. `os.read` allocates like the read of a TLS connection: 256 KiB, most of which it
# returns at once.
_SMALL_READS = """
import os, resource
from caphv.runtime import largebuffers
largebuffers.return_to_system()
reads, held = 1000, []
source, sink = os.pipe()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def read():
    os.write(sink, b"x" * 1000)
    held.append(os.read(source, 256 * 1024))
    del held[:-50]
for _ in range(100):
    read()
before = faults()
for _ in range(reads):
    read()
print((faults() - before) / reads)
"""
_LARGE_BODIES = """
from caphv.runtime import largebuffers
largebuffers.return_to_system()
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
before, held = resident(), []
for number in range(100):
    bodies = [bytearray(b"x") * (600 * 1024 + number * 20_000) for _ in range(4)]
    held.append([bytes(1000) for _ in range(20)])
    del bodies
print((resident() - before) / 1024)
"""


def measure(code: str) -> float:
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))


def test_small_reads_take_their_buffers_from_the_heap() -> None:
    assert measure(_SMALL_READS) < 0.2, "page faults of each read"


def test_large_bodies_leave_no_memory_behind() -> None:
    assert measure(_LARGE_BODIES) < 8, "MiB that are left"
