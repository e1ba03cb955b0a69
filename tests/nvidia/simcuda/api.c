/* What a program calls to compute. */
#include "simcuda.h"

#include <stdlib.h>
#include <string.h>

/* Opaque to programs; one context a device, one module a program is enough here. */
static int contexts[MAX_DEVICES];
static __thread int *current;
static char *module;

EXPORT int cuDriverGetVersion(int *version) {
    *version = (int)control("cuda-version", 13000);
    return SUCCESS;
}

/* From here on a process can be checkpointed, and a forked child of it cannot use the driver. */
EXPORT int cuInit(unsigned int flags) {
    if (flags) return INVALID_VALUE;
    if (control("init-error", 0)) return (int)control("init-error", 0);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (device_count() == 0 || (visible && !*visible)) return NO_DEVICE;
    if (initialized()) return SUCCESS;
    int code = devices_open();
    if (code == SUCCESS) code = restore_thread_start();
    if (code == SUCCESS) mark_initialized();
    return code;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    if (!initialized()) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= device_count()) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    int code = gate_enter();
    if (code) return code;
    contexts[device] = device;
    *context = &contexts[device];
    gate_leave();
    return SUCCESS;
}

EXPORT int cuCtxSetCurrent(void *context) {
    current = context;
    return initialized() ? SUCCESS : NOT_INITIALIZED;
}

EXPORT int cuCtxSynchronize(void) {
    int code = gate_enter();
    if (code == SUCCESS) gate_leave();
    return code;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    int code = gate_enter();
    if (code) return code;
    code = current ? memory_allocate(*current, size, address) : 201;
    gate_leave();
    return code;
}

/* The oldest ABI, with 32-bit addresses, is what a plain symbol look-up finds. */
EXPORT int cuMemAlloc(uint32_t *address, uint32_t size) {
    (void)address, (void)size;
    return NOT_SUPPORTED;
}

EXPORT int cuMemAllocManaged(uint64_t *address, size_t size, unsigned int flags) {
    (void)flags;
    mark_unsupported();
    return cuMemAlloc_v2(address, size);
}

struct ipc_handle {
    char bytes[64];
};

/* Only its trace matters: a process that holds another's memory cannot be restored. */
EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, struct ipc_handle handle, unsigned int flags) {
    (void)handle, (void)flags;
    mark_importer();
    return cuMemAlloc_v2(address, 4096);
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
    int code = gate_enter();
    if (code) return code;
    code = memory_copy_in(to, from, size);
    gate_leave();
    return code;
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    int code = gate_enter();
    if (code) return code;
    code = memory_copy_out(from, to, size);
    gate_leave();
    return code;
}

EXPORT int cuModuleLoadData(void **loaded, const char *image) {
    if (!initialized()) return NOT_INITIALIZED;
    free(module);
    module = strdup(image);
    *loaded = module;
    return SUCCESS;
}

EXPORT int cuModuleGetFunction(void **function, const char *loaded, const char *name) {
    kernel_function found = find_kernel(loaded, name);
    memcpy(function, &found, sizeof found);
    return found ? SUCCESS : NOT_FOUND;
}

EXPORT int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y,
                          unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                          unsigned int block_z, unsigned int shared, void *stream,
                          void **parameters, void **extra) {
    kernel_function run;
    (void)shared, (void)stream, (void)extra;
    if (!(grid_x && grid_y && grid_z && block_x && block_y && block_z)) return INVALID_VALUE;
    int code = gate_enter();
    if (code) return code;
    memcpy(&run, &function, sizeof run);
    for (long gone = 0; gone < control("kernel-ms", 0); gone += 10) sleep_ms(10);
    run(parameters);
    gate_leave();
    return SUCCESS;
}
