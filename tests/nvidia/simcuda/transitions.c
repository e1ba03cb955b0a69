/* States of a target, and the gate in front of its device that a lock closes. */
#include "simcuda.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int closed, inside, state;
static int unsupported; /* holds managed memory */
static int importer;    /* holds memory of another process */
static int spoiled;     /* a restore failed for want of memory: all later ones fail */
static pid_t owner;     /* a forked child inherits all of this and may use none of it */

void mark_initialized(void) { owner = getpid(); }
int initialized(void) { return owner == getpid(); }
void mark_unsupported(void) { unsupported = 1; }
void mark_importer(void) { importer = 1; }

int gate_enter(void) {
    if (!initialized()) return NOT_INITIALIZED;
    pthread_mutex_lock(&mutex);
    while (closed) pthread_cond_wait(&changed, &mutex);
    inside++;
    pthread_mutex_unlock(&mutex);
    return SUCCESS;
}

void gate_leave(void) {
    pthread_mutex_lock(&mutex);
    inside--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static void gate_open(void) {
    pthread_mutex_lock(&mutex);
    closed = 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* Waits for the work under way; 0 waits for ever. */
static int gate_close(uint32_t timeout_ms) {
    struct timespec end;
    int waited = 0;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += timeout_ms / 1000;
    end.tv_nsec += timeout_ms % 1000 * 1000000;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    pthread_mutex_lock(&mutex);
    closed = 1;
    while (inside && waited != ETIMEDOUT)
        waited = timeout_ms ? pthread_cond_timedwait(&changed, &mutex, &end)
                            : pthread_cond_wait(&changed, &mutex);
    int busy = inside;
    pthread_mutex_unlock(&mutex);
    if (busy) gate_open();
    return busy ? NOT_READY : SUCCESS;
}

/* Delays and hangs on demand, by the call's own name. */
static void take_time(const char *delay, const char *hang, int transit) {
    int shown = control("transit-states", 0) ? transit : state;
    for (long gone = 0; gone < control(delay, 0); gone += 10) {
        sleep_ms(10);
        if (control("transit-states", 0)) answer_states(shown);
    }
    while (control(hang, 0)) {
        answer_states(state);
        sleep_ms(10);
    }
}

static int lock(uint32_t timeout_ms) {
    long busy = control("busy-locks", 0);
    if (state != RUNNING) return ILLEGAL_STATE;
    take_time("lock-ms", "lock-hang", RUNNING);
    if (control("lock-error", 0)) return (int)control("lock-error", 0);
    if (busy > 0) {
        set_control("busy-locks", busy - 1);
        return NOT_READY;
    }
    int code = gate_close(timeout_ms);
    if (code == SUCCESS) state = LOCKED;
    return code;
}

static int checkpoint(void) {
    if (state != LOCKED) return ILLEGAL_STATE;
    if (unsupported) return NOT_SUPPORTED;
    if (control("checkpoint-error", 0)) return (int)control("checkpoint-error", 0);
    if (control("mig", 0)) return OUT_OF_MEMORY;
    set_control("checkpoint-begun", 1);
    take_time("checkpoint-ms", "checkpoint-hang", CHECKPOINTING);
    int code = memory_move_out();
    if (code != SUCCESS) return code;
    devices_close();
    state = CHECKPOINTED;
    return SUCCESS;
}

/* Fills in which device replaces which: pairs must name every device the driver sees, or none. */
static int replace(const struct request *request, int *replacements) {
    for (int i = 0; i < MAX_DEVICES; i++) replacements[i] = request->count ? -1 : i;
    for (uint32_t i = 0; i < request->count; i++)
        for (int old = 0; old < device_count(); old++)
            for (int new = 0; new < device_count(); new++) {
                struct uuid before = device_uuid(old), after = device_uuid(new);
                const struct gpu_pair *pair = &request->pairs[i];
                if (memcmp(&pair->old_uuid, &before, sizeof before)) continue;
                if (memcmp(&pair->new_uuid, &after, sizeof after)) continue;
                replacements[old] = new;
            }
    for (int i = 0; i < device_count(); i++)
        if (replacements[i] < 0) return INVALID_VALUE;
    return SUCCESS;
}

static int restore(const struct request *request) {
    int replacements[MAX_DEVICES];
    if (state != CHECKPOINTED) return ILLEGAL_STATE;
    if (spoiled) return OPERATING_SYSTEM;
    if (importer || replace(request, replacements)) return INVALID_VALUE;
    if (control("restore-error", 0)) return (int)control("restore-error", 0);
    take_time("restore-ms", "restore-hang", RESTORING);
    spoiled = !memory_fits(replacements);
    if (spoiled || devices_open()) return OPERATING_SYSTEM;
    int code = memory_move_back(replacements);
    state = code == SUCCESS ? LOCKED : FAILED;
    return code;
}

static int unlock(void) {
    if (state != LOCKED) return ILLEGAL_STATE;
    state = RUNNING;
    gate_open();
    return SUCCESS;
}

static int perform_one(const struct request *request) {
    switch (request->operation) {
    case GET_STATE: return SUCCESS;
    case LOCK: return lock(request->timeout_ms);
    case CHECKPOINT: return checkpoint();
    case RESTORE: return restore(request);
    case UNLOCK: return unlock();
    default: return INVALID_VALUE;
    }
}

struct reply perform(const struct request *request) {
    int code = perform_one(request);
    return (struct reply){code, state};
}
