/* PTRACE_SEIZE and PTRACE_INTERRUPT stop a thread without a signal that its program would see.
 * The calls are run with PTRACE_SYSCALL at an instruction that is there already, so no text is
 * changed and no SIGTRAP is forced, which would reset the program's handler for it. A last
 * PTRACE_INTERRUPT stops the thread where signals are handled: there the kernel restarts, with
 * the old registers, a call that the thread was waiting in. */
#define _GNU_SOURCE
#include "inject.h"

#include <assert.h>
#include <elf.h>
#include <errno.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)

typedef struct user_regs_struct registers;

static bool is_native(const registers *saved)
{
    enum { CODE_64_BIT = 0x33 };
    return saved->cs == CODE_64_BIT;
}

static void prepare(registers *regs, const struct gpusnap_call *call, uint64_t syscall_at)
{
    regs->rip = syscall_at;
    regs->rax = (uint64_t)call->number;
    regs->orig_rax = (uint64_t)-1; /* not inside a call that the kernel might restart */
    regs->rdi = call->arguments[0];
    regs->rsi = call->arguments[1];
    regs->rdx = call->arguments[2];
}

static int64_t result_of(const registers *regs)
{
    return (int64_t)regs->rax;
}

static bool is_syscall(long word)
{
    return (word & 0xffff) == 0x050f; /* syscall */
}

#elif defined(__aarch64__)

typedef struct user_regs_struct registers;

static bool is_native(const registers *saved)
{
    enum { MODE_32_BIT = 0x10 };
    return !(saved->pstate & MODE_32_BIT);
}

static void prepare(registers *regs, const struct gpusnap_call *call, uint64_t syscall_at)
{
    regs->pc = syscall_at;
    regs->regs[8] = (uint64_t)call->number;
    regs->regs[0] = call->arguments[0];
    regs->regs[1] = call->arguments[1];
    regs->regs[2] = call->arguments[2];
}

static int64_t result_of(const registers *regs)
{
    return (int64_t)regs->regs[0];
}

static bool is_syscall(long word)
{
    return (word & 0xffffffff) == 0xd4000001; /* svc #0 */
}

#else
#define UNKNOWN_PROCESSOR
#endif

int gpusnap_same_file(int32_t first, int32_t second, int32_t descriptor)
{
    return syscall(SYS_kcmp, first, second, KCMP_FILE, descriptor, descriptor) == 0;
}

int gpusnap_share(int32_t first, int32_t second)
{
    return syscall(SYS_kcmp, first, second, KCMP_VM, 0, 0) == 0 ||
           syscall(SYS_kcmp, first, second, KCMP_FILES, 0, 0) == 0;
}

#ifdef UNKNOWN_PROCESSOR

int64_t gpusnap_inject(int32_t thread, uint64_t syscall_at, struct gpusnap_call *calls,
                       size_t count, int32_t timeout_ms)
{
    (void)thread, (void)syscall_at, (void)calls, (void)count, (void)timeout_ms;
    return -ENOSYS;
}

#else

enum { SYSCALL_STOP = SIGTRAP | 0x80 };

static int64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static long get_registers(pid_t thread, registers *regs)
{
    struct iovec part = {.iov_base = regs, .iov_len = sizeof *regs};
    return ptrace(PTRACE_GETREGSET, thread, (void *)NT_PRSTATUS, &part);
}

static long set_registers(pid_t thread, const registers *regs)
{
    struct iovec part = {.iov_base = (void *)regs, .iov_len = sizeof *regs};
    return ptrace(PTRACE_SETREGSET, thread, (void *)NT_PRSTATUS, &part);
}

/* The signal that a stop is about, which the thread is still to get; 0 for a stop of ptrace's. */
static int signal_of(int status)
{
    bool of_ptrace = status >> 16 == PTRACE_EVENT_STOP || WSTOPSIG(status) == SYSCALL_STOP;
    return of_ptrace ? 0 : WSTOPSIG(status);
}

/* Wait until PTRACE_INTERRUPT has stopped the thread; signals on the way are passed on. Without a
 * limit where `deadline` is 0. */
static int await_interrupt(pid_t thread, int64_t deadline)
{
    for (;;) {
        int status;
        pid_t found = waitpid(thread, &status, __WALL | (deadline ? WNOHANG : 0));
        if (found < 0 && errno == EINTR)
            continue;
        if (found < 0 || (found > 0 && !WIFSTOPPED(status)))
            return -ESRCH;
        if (found == 0) {
            if (now_ms() > deadline)
                return -ETIMEDOUT;
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        } else if (status >> 16 == PTRACE_EVENT_STOP) {
            return 0;
        } else if (ptrace(PTRACE_CONT, thread, NULL, (void *)(long)signal_of(status)) < 0) {
            return -ESRCH;
        }
    }
}

/* Run the thread to the next entry to, or exit from, a system call. */
static int run_to_syscall(pid_t thread)
{
    int signal = 0;
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(long)signal) < 0)
            return -ESRCH;
        int status;
        while (waitpid(thread, &status, __WALL) < 0)
            if (errno != EINTR)
                return -ESRCH;
        if (!WIFSTOPPED(status))
            return -ESRCH;
        if (WSTOPSIG(status) == SYSCALL_STOP)
            return 0;
        signal = signal_of(status); /* SIGSTOP, which no mask keeps away, and the stop it makes */
    }
}

static int run_call(pid_t thread, const registers *saved, struct gpusnap_call *call,
                    uint64_t syscall_at)
{
    registers regs = *saved;
    prepare(&regs, call, syscall_at);
    if (set_registers(thread, &regs) < 0 || run_to_syscall(thread) < 0 ||
        run_to_syscall(thread) < 0 || get_registers(thread, &regs) < 0)
        return -ESRCH;
    call->result = result_of(&regs);
    return 0;
}

static int64_t run_calls(pid_t thread, const registers *saved, struct gpusnap_call *calls,
                         size_t count, uint64_t syscall_at)
{
    size_t done = 0;
    while (done < count && run_call(thread, saved, &calls[done], syscall_at) == 0)
        done++;
    if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) < 0 ||
        ptrace(PTRACE_CONT, thread, NULL, NULL) < 0 || await_interrupt(thread, 0) < 0 ||
        set_registers(thread, saved) < 0)
        return -ESRCH;
    return (int64_t)done;
}

static int64_t inject(pid_t thread, uint64_t syscall_at, struct gpusnap_call *calls, size_t count,
                      int32_t timeout_ms)
{
    if (ptrace(PTRACE_SEIZE, thread, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0)
        return -errno;
    if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) < 0)
        return -errno;
    int stopped = await_interrupt(thread, now_ms() + timeout_ms);
    if (stopped < 0)
        return stopped; /* leaving lets go of the thread */
    registers saved;
    uint64_t mask;
    uint64_t all = ~UINT64_C(0);
    if (get_registers(thread, &saved) < 0 ||
        ptrace(PTRACE_GETSIGMASK, thread, (void *)sizeof mask, &mask) < 0)
        return -errno;
    if (!is_native(&saved))
        return -ENOEXEC;
    /* It may have begun another program since the address was found. */
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, thread, (void *)(uintptr_t)syscall_at, NULL);
    if (errno || !is_syscall(word))
        return -EAGAIN;
    if (ptrace(PTRACE_SETSIGMASK, thread, (void *)sizeof all, &all) < 0)
        return -errno;
    int64_t done = run_calls(thread, &saved, calls, count, syscall_at);
    ptrace(PTRACE_SETSIGMASK, thread, (void *)sizeof mask, &mask);
    ptrace(PTRACE_DETACH, thread, NULL, NULL);
    return done;
}

struct shared {
    int64_t outcome;
    struct gpusnap_call calls[];
};

static int64_t inject_in_child(pid_t thread, uint64_t syscall_at, struct shared *shared,
                               size_t count, int32_t timeout_ms)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t child = fork();
    if (child == 0) { /* only calls that are safe after a fork among threads from here on */
        setsid();
        shared->outcome = inject(thread, syscall_at, shared->calls, count, timeout_ms);
        _exit(0);
    }
    int failed = child < 0 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return -failed;
    /* It is reaped without us where SIGCHLD is ignored, but has ended then too. */
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    return shared->outcome;
}

int64_t gpusnap_inject(int32_t thread, uint64_t syscall_at, struct gpusnap_call *calls,
                       size_t count, int32_t timeout_ms)
{
    assert(calls != NULL || count == 0);
    size_t size = sizeof(struct shared) + count * sizeof *calls;
    struct shared *shared =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return -errno;
    shared->outcome = -ESRCH; /* what stays where the child is killed */
    memcpy(shared->calls, calls, count * sizeof *calls);
    int64_t outcome = inject_in_child(thread, syscall_at, shared, count, timeout_ms);
    memcpy(calls, shared->calls, count * sizeof *calls);
    munmap(shared, size);
    return outcome;
}

#endif
