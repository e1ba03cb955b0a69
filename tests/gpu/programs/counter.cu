// counter GIB LOG: fills device memory with a pattern, then counts with a kernel and checks the
// whole pattern every round. Writes "ROUND bad=MISMATCHES" over the log each time.
#include "check.cuh"
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

typedef unsigned long long u64;

__device__ u64 pattern(size_t index, u64 seed) {
    u64 value = (index + seed) * 0x9E3779B97F4A7C15ull;
    value ^= value >> 31;
    value *= 0xBF58476D1CE4E5B9ull;
    return value ^ (value >> 27);
}

__global__ void fill(u64 *words, size_t count, u64 seed) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += step)
        words[i] = pattern(i, seed);
}

__global__ void compare(const u64 *words, size_t count, u64 seed, u64 *bad) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += step)
        if (words[i] != pattern(i, seed)) atomicAdd(bad, 1ull);
}

__global__ void increment(u64 *counter) { (*counter)++; }

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: counter GIB LOG\n");
        return 2;
    }
    size_t count = (size_t)(atof(argv[1]) * (1ull << 30) / sizeof(u64));
    const u64 seed = 42;
    u64 *words, *counter, *bad;
    CHECK(cudaMalloc(&words, count * sizeof(u64)));
    CHECK(cudaMalloc(&counter, sizeof(u64)));
    CHECK(cudaMalloc(&bad, sizeof(u64)));
    CHECK(cudaMemset(counter, 0, sizeof(u64)));
    CHECK(cudaMemset(bad, 0, sizeof(u64)));
    fill<<<1024, 256>>>(words, count, seed);
    CHECK(cudaDeviceSynchronize());
    for (;;) {
        u64 rounds, mismatches;
        increment<<<1, 1>>>(counter);
        CHECK(cudaMemcpy(&rounds, counter, sizeof(u64), cudaMemcpyDeviceToHost));
        compare<<<1024, 256>>>(words, count, seed, bad);
        CHECK(cudaMemcpy(&mismatches, bad, sizeof(u64), cudaMemcpyDeviceToHost));
        FILE *log = fopen(argv[2], "w");
        if (!log) return 1;
        fprintf(log, "%llu bad=%llu\n", rounds, mismatches);
        fclose(log);
        usleep(50000);
    }
}
