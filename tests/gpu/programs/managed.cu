// managed LOG: counts in managed memory (UVM), which the driver cannot checkpoint.
#include "check.cuh"
#include <cstdio>
#include <unistd.h>

__global__ void increment(unsigned *counter) { (*counter)++; }

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: managed LOG\n");
        return 2;
    }
    unsigned *counter;
    CHECK(cudaMallocManaged(&counter, 64 << 20));
    *counter = 0;
    for (;;) {
        increment<<<1, 1>>>(counter);
        CHECK(cudaDeviceSynchronize());
        FILE *log = fopen(argv[1], "w");
        if (!log) return 1;
        fprintf(log, "%u bad=0\n", *counter);
        fclose(log);
        usleep(50000);
    }
}
