/* Makes system calls inside another process, and compares the files of two. */
#ifndef GPUSNAP_INJECT_H
#define GPUSNAP_INJECT_H

#include <stddef.h>
#include <stdint.h>

struct gpusnap_call {
    int64_t number;
    uint64_t arguments[3];
    int64_t result;
};

/* Have a thread of another process make `count` system calls, one after another, and go on as if
 * nothing had been. `syscall_at` is the address of a system call instruction in its memory.
 *
 * A process of its own does it, which goes on to the end if the caller is killed meanwhile: a
 * thread that is left with other registers would crash. `timeout_ms` is how long the thread may
 * take to stop; nothing has been done to it when that runs out.
 *
 * Returns how many calls were made, each with its `result` as the kernel gave it, or -errno where
 * none was: ESRCH (gone), EPERM (traced by another, or not permitted), ETIMEDOUT, ENOEXEC (not of
 * this machine's word size), ENOSYS (not on this processor). */
int64_t gpusnap_inject(int32_t thread, uint64_t syscall_at, struct gpusnap_call *calls,
                       size_t count, int32_t timeout_ms);

/* Whether two processes hold the very same open file under one number; 0 also where the kernel
 * does not tell. */
int gpusnap_same_file(int32_t first, int32_t second, int32_t descriptor);

/* Whether two processes have one memory or one table of descriptors, as a child of vfork has with
 * its parent; 0 also where the kernel does not tell. */
int gpusnap_share(int32_t first, int32_t second);

#endif
