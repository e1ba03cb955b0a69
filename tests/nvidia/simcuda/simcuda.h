/* The simulated driver's own declarations; layouts as in CUDA's headers 12.8 to 13.5. */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    OPERATING_SYSTEM = 304,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
};

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED, CHECKPOINTING, RESTORING };

enum { MAX_DEVICES = 8, MAX_ALLOCATIONS = 64, PATH_LENGTH = 512 };

#define RESTORE_THREAD_NAME "sim-restore"

struct uuid {
    unsigned char bytes[16];
};

struct gpu_pair {
    struct uuid old_uuid, new_uuid;
};

struct lock_arguments {
    uint32_t timeout_ms;
    uint32_t reserved0;
    uint64_t reserved1[7];
};

struct plain_arguments {
    uint64_t reserved[8];
};

struct restore_arguments {
    struct gpu_pair *pairs;
    uint32_t count;
    unsigned char reserved[44];
    uint64_t reserved1;
};

/* One call on its way to a target; fixed size, so that it is written and read whole. */
enum operation { GET_STATE, LOCK, CHECKPOINT, RESTORE, UNLOCK };

struct request {
    uint32_t operation;
    uint32_t timeout_ms;
    uint32_t count;
    struct gpu_pair pairs[MAX_DEVICES];
};

struct reply {
    int32_t code;
    int32_t state;
};

/* control.c */
long control(const char *name, long otherwise);
void set_control(const char *name, long value);
void in_folder(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A thread that lives on must not read the environment, which the program may change meanwhile. */
char *copy_folder(void);
void keep_folder(const char *copy);
unsigned long long start_of(pid_t pid);
int alive(pid_t pid, unsigned long long start);
void sleep_ms(long ms);
int device_count(void);
struct uuid device_uuid(int device);
size_t device_used(int device);
int read_exactly(const char *path, void *data, size_t size);
int write_whole(const char *path, const void *data, size_t size);

/* memory.c */
int memory_allocate(int device, size_t size, uint64_t *address);
int memory_copy_in(uint64_t address, const void *data, size_t size);
int memory_copy_out(uint64_t address, void *data, size_t size);
int memory_move_out(void);
int memory_fits(const int *replacements);
int memory_move_back(const int *replacements);
int devices_open(void);
void devices_close(void);

/* kernels.c */
typedef void (*kernel_function)(void **parameters);
kernel_function find_kernel(const char *image, const char *name);

/* transitions.c */
int gate_enter(void);
void gate_leave(void);
void mark_unsupported(void);
void mark_importer(void);
void mark_initialized(void);
int initialized(void);
struct reply perform(const struct request *request);

/* restore_thread.c */
int restore_thread_start(void);
void answer_states(int state);

#endif
