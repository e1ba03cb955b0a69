/* HIP's names on the CPU, so that the program's logic can be run without ROCm. */
#ifndef FAKE_HIP_RUNTIME_H
#define FAKE_HIP_RUNTIME_H

#include <cstdlib>
#include <cstring>

#define __global__ static

enum hipError_t { hipSuccess, hipErrorOutOfMemory };
enum hipMemcpyKind { hipMemcpyDeviceToHost };

struct dim3 {
	unsigned x;
	explicit dim3(unsigned count) : x(count) {}
};

static dim3 blockIdx(0), blockDim(0), threadIdx(0);

static inline const char *hipGetErrorString(hipError_t) { return "out of memory"; }
static inline hipError_t hipGetLastError() { return hipSuccess; }
static inline hipError_t hipDeviceSynchronize() { return hipSuccess; }

static inline hipError_t hipMalloc(void **memory, size_t size)
{
	*memory = malloc(size);
	return *memory ? hipSuccess : hipErrorOutOfMemory;
}

static inline hipError_t hipMemset(void *memory, int value, size_t size)
{
	memset(memory, value, size);
	return hipSuccess;
}

static inline hipError_t hipMemcpy(void *to, const void *from, size_t size, hipMemcpyKind)
{
	memcpy(to, from, size);
	return hipSuccess;
}

template <typename Kernel, typename... Arguments>
static void hipLaunchKernelGGL(Kernel kernel, dim3 grid, dim3 block, int, int, Arguments... rest)
{
	blockDim = block;
	for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
		for (threadIdx.x = 0; threadIdx.x < block.x; threadIdx.x++)
			kernel(rest...);
}

#endif
