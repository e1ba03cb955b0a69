// forked LOG: counts on the GPU while a forked child, which does no GPU work, keeps what it
// inherited of the device: mappings and descriptors, as PyTorch's DataLoader workers do.
#include "check.cuh"
#include <cstdio>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

__global__ void increment(unsigned *counter) { (*counter)++; }

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: forked LOG\n");
        return 2;
    }
    unsigned *counter, rounds;
    CHECK(cudaMalloc(&counter, sizeof *counter));
    CHECK(cudaMemset(counter, 0, sizeof *counter));
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    for (;;) {
        increment<<<1, 1>>>(counter);
        CHECK(cudaMemcpy(&rounds, counter, sizeof rounds, cudaMemcpyDeviceToHost));
        FILE *log = fopen(argv[1], "w");
        if (!log) return 1;
        fprintf(log, "%u bad=0\n", rounds);
        fclose(log);
        usleep(50000);
    }
}
