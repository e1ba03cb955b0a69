/* libnvidia-ml.so.1, as far as gpusnap asks it. What some boards do not offer is not offered. */
#include "simcuda.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_INSUFFICIENT_SIZE = 7,
};

struct pci_info {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char address[32];
};

struct memory_info {
    unsigned long long total, free, used;
};

struct process_info {
    unsigned int pid;
    unsigned long long memory;
    unsigned int gpu_instance, compute_instance;
};

struct temperature {
    unsigned int version, sensor;
    int celsius;
};

static int started;

/* Handles are the device's number plus one, so that none is NULL. */
static int device_of(const void *handle) { return (int)(intptr_t)handle - 1; }

EXPORT int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    int code = (int)control("nvml-error", 0);
    started = code == SUCCESS;
    return code;
}

EXPORT const char *nvmlErrorString(int code) {
    static char text[64];
    snprintf(text, sizeof text, "Simulated NVML error %d", code);
    return text;
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    snprintf(text, size, "%ld.00.01", control("driver-branch", 580));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = (unsigned int)device_count();
    return started ? SUCCESS : NVML_UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    long lost = control("lost-device", -1);
    if (lost >= 0 && (unsigned int)lost == index) return 15; /* GPU is lost */
    *handle = (void *)(intptr_t)(index + 1);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(const void *handle, char *text, unsigned int size) {
    struct uuid uuid = device_uuid(device_of(handle));
    int length = snprintf(text, size, "GPU");
    for (int i = 0; i < 16; i++) {
        int dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        length += snprintf(text + length, size - (unsigned int)length, "%s%02x", dash ? "-" : "",
                           uuid.bytes[i]);
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(const void *handle, char *text, unsigned int size) {
    (void)handle;
    snprintf(text, size, "Simulated H200");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v3(const void *handle, struct pci_info *info) {
    unsigned int bus = 0x41u + (unsigned int)device_of(handle);
    *info = (struct pci_info){.bus = bus};
    snprintf(info->address, sizeof info->address, "00000000:%02X:00.0", bus);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(const void *handle, int *major, int *minor) {
    (void)handle;
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(const void *handle, struct memory_info *info) {
    info->total = (unsigned long long)control("memory-mib", 1024) << 20;
    info->used = device_used(device_of(handle));
    info->free = info->total - info->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEccMode(const void *handle, unsigned int *now, unsigned int *pending) {
    (void)handle;
    *now = *pending = 1;
    return SUCCESS;
}

/* Corrected 0, uncorrected 1; volatile 0, aggregate 1: every counter has a number of its own. */
EXPORT int nvmlDeviceGetTotalEccErrors(const void *handle, unsigned int error, unsigned int counter,
                                       unsigned long long *count) {
    (void)handle;
    *count = 10 * (error + 1) + counter + 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(const void *handle, unsigned int *corrected,
                                     unsigned int *uncorrected, unsigned int *pending,
                                     unsigned int *failed) {
    (void)handle;
    *corrected = 3;
    *uncorrected = 2;
    *pending = 1;
    *failed = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRetiredPages(const void *handle, unsigned int cause, unsigned int *count,
                                     unsigned long long *pages) {
    (void)handle, (void)cause, (void)count, (void)pages;
    return NVML_NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetMigMode(const void *handle, unsigned int *now, unsigned int *pending) {
    (void)handle;
    *now = *pending = control("mig", 0) != 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPersistenceMode(const void *handle, unsigned int *mode) {
    (void)handle;
    *mode = control("no-persistence", 0) == 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureV(const void *handle, struct temperature *temperature) {
    (void)handle;
    temperature->celsius = 41;
    return SUCCESS;
}

static unsigned int add_process(struct process_info *list, unsigned int count, unsigned int pid,
                                unsigned long long memory) {
    for (unsigned int i = 0; i < count; i++)
        if (list[i].pid == pid) {
            list[i].memory += memory;
            return count;
        }
    list[count] = (struct process_info){.pid = pid, .memory = memory};
    return count + 1;
}

static unsigned int list_processes(int device, struct process_info *list, unsigned int most) {
    char path[PATH_LENGTH];
    unsigned int count = 0;
    device_used(device); /* removes what belongs to the dead */
    in_folder(path, "gpu%d", device);
    DIR *files = opendir(path);
    for (struct dirent *entry; files && count < most && (entry = readdir(files));) {
        unsigned int pid;
        struct stat status;
        in_folder(path, "gpu%d/%s", device, entry->d_name);
        if (sscanf(entry->d_name, "%u-", &pid) != 1 || stat(path, &status)) continue;
        count = add_process(list, count, pid, (unsigned long long)status.st_size);
    }
    if (files) closedir(files);
    return count;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned int *count,
                                                   struct process_info *list) {
    struct process_info found[64];
    unsigned int most = *count, number = 0;
    if (!control("nvml-hides-processes", 0)) number = list_processes(device_of(handle), found, 64);
    *count = number;
    if (number > most) return NVML_INSUFFICIENT_SIZE;
    if (number) memcpy(list, found, number * sizeof *found);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(const void *handle, unsigned int *count,
                                                      struct process_info *list) {
    if (control("mps", 0)) return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, list);
    *count = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle, unsigned int *count,
                                                    struct process_info *list) {
    (void)handle, (void)count, (void)list;
    return NVML_NOT_SUPPORTED;
}
