"""A GPU program with a checkable result: ``python -m gpusnap_amd.program LOG STEPS``.

The counterpart of ``gpusnap_nvidia.program``. AMD's driver compiles no text, so this compiles
HIP with ``hipcc`` beside the log and becomes what comes out. Each step runs a kernel on all of the
buffer and appends ``step checksum`` to the log; the last line ``done digest`` covers the buffer.
The log depends on nothing but the arguments.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

COMPILER_VARIABLE = "GPUSNAP_HIPCC"
"""Environment variable that names the compiler."""

DEFAULT_MEMORY = 64 << 20
SOURCE = r"""
#include <hip/hip_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

static const size_t THREADS = 256, WINDOW = 512;
static const uint64_t PRIME = 1099511628211ull;

static void check(hipError_t error)
{
	if (error != hipSuccess) {
		fprintf(stderr, "%s\n", hipGetErrorString(error));
		exit(1);
	}
}

__global__ void mix(uint64_t *words, size_t count, uint64_t seed)
{
	size_t index = blockIdx.x * (size_t)blockDim.x + threadIdx.x;

	if (index < count)
		words[index] = (words[index] ^ (seed + index)) * 6364136223846793005ull + 1;
}

static void run(uint64_t *words, size_t count, uint64_t seed)
{
	dim3 grid((count + THREADS - 1) / THREADS), block(THREADS);

	hipLaunchKernelGGL(mix, grid, block, 0, 0, words, count, seed);
	check(hipGetLastError());
	check(hipDeviceSynchronize());
}

static uint64_t digest(const uint64_t *words, size_t first, size_t count, uint64_t seed)
{
	std::vector<uint64_t> copy(count);

	check(hipMemcpy(copy.data(), words + first, count * sizeof(uint64_t), hipMemcpyDeviceToHost));
	for (size_t i = 0; i < count; i++)
		seed = (seed ^ copy[i]) * PRIME;
	return seed;
}

static void say(int log, const char *line)
{
	if (write(log, line, strlen(line)) < 0) {
		perror("write");
		exit(1);
	}
}

int main(int, char **arguments)
{
	int log = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
	unsigned long steps = strtoul(arguments[2], nullptr, 10);
	size_t size = strtoull(arguments[3], nullptr, 10), count = size / sizeof(uint64_t);
	useconds_t pause = strtoul(arguments[4], nullptr, 10);
	uint64_t *words, seed = 1;
	char line[64];

	check(hipMalloc(reinterpret_cast<void **>(&words), size));
	check(hipMemset(words, 0, size));
	for (unsigned long step = 0; step < steps; step++) {
		run(words, count, seed);
		seed = digest(words, step * WINDOW % (count - WINDOW + 1), WINDOW, seed);
		snprintf(line, sizeof(line), "%lu %08x\n", step, (unsigned)(seed >> 32));
		say(log, line);
		usleep(pause);
	}
	seed = digest(words, 0, count, seed);
	snprintf(line, sizeof(line), "done %016llx\n", (unsigned long long)seed);
	say(log, line);
	return 0;
}
"""


def build(folder: Path) -> Path:
    """Compile the program into a folder, once.

    Raises:
        OSError: There is no compiler.
        subprocess.CalledProcessError: It failed, and has said why.
    """
    program, source = folder / "hip-program", folder / "hip-program.hip"
    if not program.exists():
        source.write_text(SOURCE)
        compiler = os.environ.get(COMPILER_VARIABLE) or "hipcc"
        subprocess.run([compiler, "-O1", "-o", str(program), str(source)], check=True)
    return program


def main() -> None:
    """Read the command line, compile, and become the program."""
    parser = argparse.ArgumentParser(prog="python -m gpusnap_amd.program")
    parser.add_argument("log", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--memory", type=int, default=DEFAULT_MEMORY, metavar="BYTES")
    parser.add_argument("--step-us", type=int, default=10_000, metavar="MICROSECONDS")
    given = parser.parse_args()
    try:
        program = build(given.log.parent)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The HIP program cannot be compiled: {error}")
    numbers = map(str, (given.steps, given.memory, given.step_us))
    os.execv(program, [str(program), str(given.log), *numbers])  # noqa: S606 - it is the program


if __name__ == "__main__":
    main()
