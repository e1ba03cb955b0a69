/* The part of the CUDA driver API that gpusnap_nvidia calls, for cffi.
 *
 * Each function is declared as the pointer type that cudaTypedefs.h calls PFN_<name>_v<version>.
 * The version is that of the ABI declared here, and it is what cuGetProcAddress is asked for:
 * libcuda exports under a plain name its oldest ABI. Layouts follow cuda.h of CUDA 12.8 to 13.5.
 */

typedef int CUresult;
typedef int CUdevice;
typedef int CUprocessState;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;

/* Finding functions */

typedef CUresult (*PFN_cuGetProcAddress_v12000)(const char *symbol, void **pfn, int cudaVersion,
                                                uint64_t flags, int *symbolStatus);

/* Every driver */

typedef CUresult (*PFN_cuInit_v2000)(unsigned int flags);
typedef CUresult (*PFN_cuDriverGetVersion_v2020)(int *driverVersion);
typedef CUresult (*PFN_cuGetErrorName_v6000)(CUresult error, const char **name);

/* Checkpoints: driver 570 and newer. Every argument struct is 64 bytes, unused ones zero. */

typedef struct {
    unsigned int timeoutMs; /* 0 waits for ever */
    unsigned int reserved0;
    uint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct {
    uint64_t reserved[8];
} CUcheckpointCheckpointArgs;

typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef struct {
    CUuuid oldUuid;
    CUuuid newUuid;
} CUcheckpointGpuPair;

typedef struct {
    CUcheckpointGpuPair *gpuPairs;
    unsigned int gpuPairsCount;
    char reserved[44];
    uint64_t reserved1;
} CUcheckpointRestoreArgs;

typedef struct {
    uint64_t reserved[8];
} CUcheckpointUnlockArgs;

typedef CUresult (*PFN_cuCheckpointProcessGetState_v13040)(int pid, CUprocessState *state);
typedef CUresult (*PFN_cuCheckpointProcessGetRestoreThreadId_v13040)(int pid, int *tid);
typedef CUresult (*PFN_cuCheckpointProcessLock_v13040)(int pid, CUcheckpointLockArgs *args);
typedef CUresult (*PFN_cuCheckpointProcessCheckpoint_v13040)(int pid,
                                                             CUcheckpointCheckpointArgs *args);
typedef CUresult (*PFN_cuCheckpointProcessRestore_v13040)(int pid, CUcheckpointRestoreArgs *args);
typedef CUresult (*PFN_cuCheckpointProcessUnlock_v13040)(int pid, CUcheckpointUnlockArgs *args);

/* What gpusnap_nvidia.program computes with */

typedef CUresult (*PFN_cuDeviceGet_v2000)(CUdevice *device, int ordinal);
typedef CUresult (*PFN_cuDevicePrimaryCtxRetain_v7000)(CUcontext *context, CUdevice device);
typedef CUresult (*PFN_cuCtxSetCurrent_v4000)(CUcontext context);
typedef CUresult (*PFN_cuCtxSynchronize_v2000)(void);
typedef CUresult (*PFN_cuMemAlloc_v3020)(CUdeviceptr *address, size_t bytes);
typedef CUresult (*PFN_cuMemcpyHtoD_v3020)(CUdeviceptr to, const void *from, size_t bytes);
typedef CUresult (*PFN_cuMemcpyDtoH_v3020)(void *to, CUdeviceptr from, size_t bytes);
typedef CUresult (*PFN_cuModuleLoadData_v2000)(CUmodule *module, const void *image);
typedef CUresult (*PFN_cuModuleGetFunction_v2000)(CUfunction *function, CUmodule module,
                                                  const char *name);
typedef CUresult (*PFN_cuLaunchKernel_v4000)(CUfunction function, unsigned int gridX,
                                             unsigned int gridY, unsigned int gridZ,
                                             unsigned int blockX, unsigned int blockY,
                                             unsigned int blockZ, unsigned int sharedBytes,
                                             CUstream stream, void **parameters, void **extra);

/* The C library's own: libcuda is opened at run time, its symbols are looked up by name */

void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *symbol);
char *dlerror(void);
