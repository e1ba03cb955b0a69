/* The folder in which simulated driver, targets and callers meet. */
#include "simcuda.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static _Thread_local const char *kept;

static const char *folder(void) {
    if (kept) return kept;
    const char *named = getenv("SIMCUDA_DIR");
    return named ? named : "/nonexistent";
}

char *copy_folder(void) { return strdup(folder()); }

void keep_folder(const char *copy) { kept = copy; }

void in_folder(char *path, const char *format, ...) {
    int length = snprintf(path, PATH_LENGTH, "%s/", folder());
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + length, (size_t)(PATH_LENGTH - length), format, arguments);
    va_end(arguments);
}

long control(const char *name, long otherwise) {
    char path[PATH_LENGTH], text[32] = "";
    in_folder(path, "control/%s", name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return otherwise;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    return got > 0 ? strtol(text, NULL, 10) : otherwise;
}

void set_control(const char *name, long value) {
    char path[PATH_LENGTH], text[32];
    in_folder(path, "control/%s", name);
    int length = snprintf(text, sizeof text, "%ld", value);
    write_whole(path, text, (size_t)length);
}

int read_exactly(const char *path, void *data, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = read(file, data, size);
    close(file);
    return got == (ssize_t)size;
}

int write_whole(const char *path, const void *data, size_t size) {
    char draft[PATH_LENGTH + 32];
    snprintf(draft, sizeof draft, "%s.%d.new", path, (int)gettid());
    int file = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return 0;
    int written = write(file, data, size) == (ssize_t)size;
    close(file);
    return written && rename(draft, path) == 0;
}

/* Field 22 of /proc/PID/stat, counted behind the bracketed name; 0 for no process or a zombie.
 * Only readers of one time namespace agree on it, and CRIU restores a process into a new one. */
unsigned long long start_of(pid_t pid) {
    char path[64], text[1024], state;
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0) return 0;
    text[got] = 0;
    char *rest = strrchr(text, ')');
    if (!rest) return 0;
    int found = sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                                 " %*s %*s %*s %llu", &state, &start);
    return found == 2 && state != 'Z' && state != 'X' ? start : 0;
}

int alive(pid_t pid, unsigned long long start) {
    return start != 0 && start_of(pid) == start;
}

void sleep_ms(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

int device_count(void) {
    long count = control("devices", 1);
    return count < MAX_DEVICES ? (int)count : MAX_DEVICES;
}

struct uuid device_uuid(int device) {
    struct uuid uuid;
    for (int i = 0; i < 16; i++) uuid.bytes[i] = (unsigned char)(0x11 * i);
    uuid.bytes[0] = 1;
    uuid.bytes[15] = (unsigned char)device;
    return uuid;
}

/* A process holds a lock on its memory, so what nobody locks belongs to the dead and is free. */
size_t device_used(int device) {
    char path[PATH_LENGTH];
    size_t used = 0;
    in_folder(path, "gpu%d", device);
    DIR *files = opendir(path);
    for (struct dirent *entry; files && (entry = readdir(files));) {
        struct stat status;
        if (strchr("0123456789", entry->d_name[0]) == NULL) continue;
        in_folder(path, "gpu%d/%s", device, entry->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        if (flock(file, LOCK_EX | LOCK_NB) == 0) unlink(path);
        else if (fstat(file, &status) == 0) used += (size_t)status.st_size;
        close(file);
    }
    if (files) closedir(files);
    return used;
}
