/* Device memory of a target: files outside its address space, until a checkpoint moves them in. */
#include "simcuda.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static const uint64_t FIRST_ADDRESS = 0x7a0000000000, ALIGNMENT = 2 << 20;

static struct allocation {
    uint64_t address;
    size_t size;
    int device;
} allocations[MAX_ALLOCATIONS];
static int allocation_count;
static unsigned char *moved_out; /* where the checkpointed memory lies */
static size_t moved_size;
static int open_device = -1;

static void path_of(char *path, const struct allocation *one) {
    in_folder(path, "gpu%d/%d-%llu-%llx", one->device, (int)getpid(), start_of(getpid()),
              (unsigned long long)one->address);
}

static int open_memory(const struct allocation *one, int flags) {
    char path[PATH_LENGTH];
    path_of(path, one);
    return open(path, flags | O_CLOEXEC, 0600);
}

static int create_memory(const struct allocation *one) {
    char path[PATH_LENGTH];
    in_folder(path, "gpu%d", one->device);
    mkdir(path, 0700);
    int file = open_memory(one, O_RDWR | O_CREAT | O_EXCL);
    if (file >= 0 && ftruncate(file, (off_t)one->size) != 0) {
        close(file);
        return -1;
    }
    return file;
}

static size_t device_memory(void) { return (size_t)control("memory-mib", 1024) << 20; }

int memory_allocate(int device, size_t size, uint64_t *address) {
    if (allocation_count == MAX_ALLOCATIONS) return OUT_OF_MEMORY;
    if (device_used(device) + size > device_memory()) return OUT_OF_MEMORY;
    struct allocation *one = &allocations[allocation_count];
    const struct allocation *last = one - 1;
    *one = (struct allocation){FIRST_ADDRESS, size, device};
    if (allocation_count) one->address = (last->address + last->size + ALIGNMENT) & -ALIGNMENT;
    int file = create_memory(one);
    if (file < 0) return OPERATING_SYSTEM;
    close(file);
    allocation_count++;
    *address = one->address;
    return SUCCESS;
}

static const struct allocation *holder(uint64_t address, size_t size) {
    for (int i = 0; i < allocation_count; i++) {
        const struct allocation *one = &allocations[i];
        if (address >= one->address && address + size <= one->address + one->size) return one;
    }
    return NULL;
}

int memory_copy_in(uint64_t address, const void *data, size_t size) {
    const struct allocation *one = holder(address, size);
    if (!one) return INVALID_VALUE;
    int file = open_memory(one, O_WRONLY);
    ssize_t done = pwrite(file, data, size, (off_t)(address - one->address));
    close(file);
    return done == (ssize_t)size ? SUCCESS : OPERATING_SYSTEM;
}

int memory_copy_out(uint64_t address, void *data, size_t size) {
    const struct allocation *one = holder(address, size);
    if (!one) return INVALID_VALUE;
    int file = open_memory(one, O_RDONLY);
    ssize_t done = pread(file, data, size, (off_t)(address - one->address));
    close(file);
    return done == (ssize_t)size ? SUCCESS : OPERATING_SYSTEM;
}

/* A process that only opened the device has a context to save all the same. */
static size_t moving_size(void) {
    size_t size = (size_t)getpagesize();
    for (int i = 0; i < allocation_count; i++) size += allocations[i].size;
    return size;
}

int memory_move_out(void) {
    size_t offset = 0, size = moving_size();
    unsigned char *memory =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    for (int i = 0; i < allocation_count; i++) {
        const struct allocation *one = &allocations[i];
        char path[PATH_LENGTH];
        if (memory_copy_out(one->address, memory + offset, one->size)) return OPERATING_SYSTEM;
        path_of(path, one);
        unlink(path);
        offset += one->size;
    }
    memset(memory + offset, 0xc7, size - offset);
    moved_out = memory;
    moved_size = size;
    return SUCCESS;
}

int memory_fits(const int *replacements) {
    size_t needed[MAX_DEVICES] = {0};
    for (int i = 0; i < allocation_count; i++)
        needed[replacements[allocations[i].device]] += allocations[i].size;
    for (int device = 0; device < device_count(); device++)
        if (needed[device] && device_used(device) + needed[device] > device_memory()) return 0;
    return 1;
}

int memory_move_back(const int *replacements) {
    size_t offset = 0;
    for (int i = 0; i < allocation_count; i++) {
        struct allocation *one = &allocations[i];
        one->device = replacements[one->device];
        int file = create_memory(one);
        ssize_t done = file < 0 ? -1 : write(file, moved_out + offset, one->size);
        if (file >= 0) close(file);
        if (done != (ssize_t)one->size) return OPERATING_SYSTEM;
        offset += one->size;
    }
    munmap(moved_out, moved_size);
    moved_out = NULL;
    return SUCCESS;
}

/* CRIU refuses a userfaultfd as it refuses an open device. */
int devices_open(void) {
    open_device = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    return open_device < 0 ? OPERATING_SYSTEM : SUCCESS;
}

void devices_close(void) {
    close(open_device);
    open_device = -1;
}
