/* The caller's side of the checkpoint API. */
#include "simcuda.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SIMCUDA_OLD_DRIVER

static int zero(const void *data, size_t size) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        if (bytes[i]) return 0;
    return 1;
}

static int find_restore_thread(int pid) {
    char path[PATH_LENGTH], name[32];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    for (struct dirent *entry; threads && !found && (entry = readdir(threads));) {
        snprintf(path, sizeof path, "/proc/%d/task/%.16s/comm", pid, entry->d_name);
        memset(name, 0, sizeof name);
        read_exactly(path, name, strlen(RESTORE_THREAD_NAME));
        if (strcmp(name, RESTORE_THREAD_NAME) == 0) found = atoi(entry->d_name);
    }
    if (threads) closedir(threads);
    return found;
}

static int maps_this_library(int pid) {
    char path[64], line[1024];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, "libcuda") != NULL;
    if (maps) fclose(maps);
    return found;
}

static int deliver(int pid, const struct request *request, struct reply *reply) {
    static atomic_uint numbers;
    char path[PATH_LENGTH];
    unsigned long long start = start_of(pid);
    unsigned int number = atomic_fetch_add(&numbers, 1);
    if (!initialized()) return NOT_INITIALIZED;
    if (!find_restore_thread(pid)) return INVALID_VALUE;
    in_folder(path, "mail/%d.%d-%u.request", pid, (int)getpid(), number);
    if (!write_whole(path, request, sizeof *request)) return OPERATING_SYSTEM;
    in_folder(path, "mail/%d.%d-%u.reply", pid, (int)getpid(), number);
    while (!read_exactly(path, reply, sizeof *reply)) {
        if (!alive(pid, start)) return OPERATING_SYSTEM;
        sleep_ms(3);
    }
    unlink(path);
    return reply->code;
}

EXPORT int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread) {
    if (!initialized()) return NOT_INITIALIZED;
    *thread = find_restore_thread(pid);
    return *thread ? SUCCESS : INVALID_VALUE;
}

/* Also answers for a process that merely inherited the library from its parent. */
EXPORT int cuCheckpointProcessGetState(int pid, int *state) {
    struct request request = {.operation = GET_STATE};
    struct reply reply = {0};
    int code = deliver(pid, &request, &reply);
    if (code == INVALID_VALUE && maps_this_library(pid)) code = SUCCESS;
    *state = reply.state;
    return code;
}

EXPORT int cuCheckpointProcessLock(int pid, struct lock_arguments *arguments) {
    struct request request = {.operation = LOCK};
    struct reply reply;
    if (arguments) {
        size_t used = sizeof arguments->timeout_ms;
        if (!zero((char *)arguments + used, sizeof *arguments - used)) return INVALID_VALUE;
        request.timeout_ms = arguments->timeout_ms;
    }
    return deliver(pid, &request, &reply);
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, struct plain_arguments *arguments) {
    struct request request = {.operation = CHECKPOINT};
    struct reply reply;
    if (arguments && !zero(arguments, sizeof *arguments)) return INVALID_VALUE;
    return deliver(pid, &request, &reply);
}

EXPORT int cuCheckpointProcessRestore(int pid, struct restore_arguments *arguments) {
    struct request request = {.operation = RESTORE};
    struct reply reply;
    if (arguments) {
        size_t used = offsetof(struct restore_arguments, reserved);
        if (!zero((char *)arguments + used, sizeof *arguments - used)) return INVALID_VALUE;
        if (arguments->count > MAX_DEVICES || !arguments->count != !arguments->pairs)
            return INVALID_VALUE;
        request.count = arguments->count;
        if (arguments->count)
            memcpy(request.pairs, arguments->pairs, arguments->count * sizeof *arguments->pairs);
    }
    return deliver(pid, &request, &reply);
}

EXPORT int cuCheckpointProcessUnlock(int pid, struct plain_arguments *arguments) {
    struct request request = {.operation = UNLOCK};
    struct reply reply;
    if (arguments && !zero(arguments, sizeof *arguments)) return INVALID_VALUE;
    return deliver(pid, &request, &reply);
}

#else

typedef int nothing_in_this_unit;

#endif
