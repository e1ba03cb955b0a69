/* Looks functions up by name and ABI version, as the driver does, and names its error codes. */
#include "simcuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { SYMBOL_FOUND, SYMBOL_NOT_FOUND };

/* Functions whose newest ABI here has another name than the plain one; the rest exports itself. */
static const struct {
    const char *name, *exported;
    int since;
} RENAMED[] = {
    {"cuMemAlloc", "cuMemAlloc_v2", 3020},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 3020},
};

static const char *exported_name(const char *name, int version) {
    for (size_t i = 0; i < sizeof RENAMED / sizeof *RENAMED; i++)
        if (strcmp(RENAMED[i].name, name) == 0 && version >= RENAMED[i].since)
            return RENAMED[i].exported;
    return name;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                               int *status) {
    Dl_info own;
    *found = NULL;
    if (flags || !dladdr((void *)RENAMED, &own)) return INVALID_VALUE;
    void *library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library) *found = dlsym(library, exported_name(name, version));
    if (library) dlclose(library);
    if (status) *status = *found ? SYMBOL_FOUND : SYMBOL_NOT_FOUND;
    return *found ? SUCCESS : NOT_FOUND;
}

static const struct {
    int code;
    const char *name;
} ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {NOT_READY, "CUDA_ERROR_NOT_READY"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

EXPORT int cuGetErrorName(int code, const char **name) {
    *name = NULL;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code) *name = ERRORS[i].name;
    return *name ? SUCCESS : INVALID_VALUE;
}
