// Ends the program with a sentence where a CUDA call fails.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                   \
    do {                                                                              \
        cudaError_t code = (call);                                                    \
        if (code != cudaSuccess) {                                                    \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(code));             \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)
