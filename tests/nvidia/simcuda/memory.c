/* Device memory of a target: files outside its address space, until a checkpoint moves them in. */
#include "simcuda.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
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
    int file; /* open and locked while the memory is on the device */
} allocations[MAX_ALLOCATIONS];
static int allocation_count;
static unsigned char *moved_out; /* where the checkpointed memory lies */
static size_t moved_size;
static int open_device = -1;

static void path_of(char *path, const char *prefix, const struct allocation *one) {
    in_folder(path, "gpu%d/%s%d-%llx", one->device, prefix, (int)getpid(),
              (unsigned long long)one->address);
}

/* Locked before it has its name, for what is not locked is taken for the memory of the dead. */
static int create_memory(struct allocation *one) {
    char path[PATH_LENGTH], draft[PATH_LENGTH];
    in_folder(path, "gpu%d", one->device);
    mkdir(path, 0700);
    path_of(path, "", one);
    path_of(draft, "new-", one);
    one->file = open(draft, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (one->file < 0 || ftruncate(one->file, (off_t)one->size)) return OPERATING_SYSTEM;
    return flock(one->file, LOCK_EX) || rename(draft, path) ? OPERATING_SYSTEM : SUCCESS;
}

static void remove_memory(struct allocation *one) {
    char path[PATH_LENGTH];
    path_of(path, "", one);
    unlink(path);
    close(one->file);
    one->file = -1;
}

static size_t device_memory(void) { return (size_t)control("memory-mib", 1024) << 20; }

int memory_allocate(int device, size_t size, uint64_t *address) {
    if (allocation_count == MAX_ALLOCATIONS) return OUT_OF_MEMORY;
    if (device_used(device) + size > device_memory()) return OUT_OF_MEMORY;
    struct allocation *one = &allocations[allocation_count];
    const struct allocation *last = one - 1;
    *one = (struct allocation){FIRST_ADDRESS, size, device, -1};
    if (allocation_count) one->address = (last->address + last->size + ALIGNMENT) & -ALIGNMENT;
    if (create_memory(one)) return OPERATING_SYSTEM;
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
    ssize_t done = pwrite(one->file, data, size, (off_t)(address - one->address));
    return done == (ssize_t)size ? SUCCESS : OPERATING_SYSTEM;
}

int memory_copy_out(uint64_t address, void *data, size_t size) {
    const struct allocation *one = holder(address, size);
    if (!one) return INVALID_VALUE;
    ssize_t done = pread(one->file, data, size, (off_t)(address - one->address));
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
        struct allocation *one = &allocations[i];
        if (memory_copy_out(one->address, memory + offset, one->size)) return OPERATING_SYSTEM;
        remove_memory(one);
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
        if (create_memory(one)) return OPERATING_SYSTEM;
        if (memory_copy_in(one->address, moved_out + offset, one->size)) return OPERATING_SYSTEM;
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
