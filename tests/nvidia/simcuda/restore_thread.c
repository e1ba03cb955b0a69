/* The thread of a target that performs driver calls. It polls, so CRIU can dump and restore it. */
#include "simcuda.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char SUFFIX[] = ".request";

static void answer(char *request_path, struct reply reply) {
    char path[PATH_LENGTH];
    size_t stem = strlen(request_path) - strlen(SUFFIX);
    unlink(request_path);
    snprintf(path, sizeof path, "%.*s.reply", (int)stem, request_path);
    write_whole(path, &reply, sizeof reply);
}

/* Takes this process's mail. With a state to show, only states are answered. */
static void take_mail(const int *shown) {
    char path[PATH_LENGTH], own[64];
    in_folder(path, "mail");
    int length = snprintf(own, sizeof own, "%d.", (int)getpid());
    DIR *mail = opendir(path);
    for (struct dirent *entry; mail && (entry = readdir(mail));) {
        const char *name = entry->d_name, *end = name + strlen(name) - strlen(SUFFIX);
        struct request request;
        if (strncmp(name, own, (size_t)length) || end < name || strcmp(end, SUFFIX)) continue;
        /* A caller that died before its call was taken never made it. */
        if (start_of(atoi(name + length)) == 0) continue;
        in_folder(path, "mail/%s", name);
        if (!read_exactly(path, &request, sizeof request)) continue;
        if (!shown) answer(path, perform(&request));
        else if (request.operation == GET_STATE) answer(path, (struct reply){SUCCESS, *shown});
    }
    if (mail) closedir(mail);
}

void answer_states(int state) { take_mail(&state); }

static void *serve(void *folder) {
    keep_folder(folder);
    for (;;) {
        take_mail(NULL);
        sleep_ms(5);
    }
    return NULL;
}

int restore_thread_start(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, copy_folder())) return OPERATING_SYSTEM;
    /* Not by the thread itself: a process that computes already must be found by it. */
    return pthread_setname_np(thread, RESTORE_THREAD_NAME) ? OPERATING_SYSTEM : SUCCESS;
}
