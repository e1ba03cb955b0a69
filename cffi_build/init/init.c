/* The first process of a PID namespace that gpusnap restores into, and the way into it.
 *
 *   gpusnap_init new LEASH LAST ROOT       make a namespace; print its first process's PID
 *   gpusnap_init join PIDFD PROGRAM ...    run a program in the namespaces of a process
 *
 * Known to no Python: it outlives gpusnap, and stays as long as anything in its namespace does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mind.h"

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(EXIT_FAILURE);
}

static int number(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > 1L << 30) {
        errno = EINVAL;
        fail(text);
    }
    return (int)value;
}

/* A /proc of its own; what is mounted outside later is seen inside too, not the other way round. */
static void own_mounts(void)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
        fail("cannot part its mounts from the machine's");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
        fail("cannot mount /proc");
}

/* PIDs that nobody asks for come after this one: CRIU itself must not take one of the snapshot. */
static void skip_to(const char *last)
{
    int file = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, last, strlen(last)) < 0)
        fail("cannot choose PIDs");
    close(file);
}

/* Nothing of gpusnap stays open, and nobody's terminal sends it signals. */
static void detach(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
        fail("cannot open /dev/null");
    if (setsid() < 0 || chdir("/"))
        fail("cannot leave gpusnap's session");
}

static int first(int leash, const char *last, pid_t root)
{
    sigset_t all;
    sigfillset(&all);
    if (sigprocmask(SIG_BLOCK, &all, NULL) || fcntl(leash, F_SETFD, FD_CLOEXEC))
        fail("cannot begin");
    own_mounts();
    skip_to(last);
    detach();
    if (write(leash, "r", 1) != 1)
        return EXIT_FAILURE;
    return mind(leash, root);
}

static int new(int leash, const char *last, pid_t root)
{
    number(last);
    if (unshare(CLONE_NEWPID | CLONE_NEWNS))
        fail("cannot make a namespace");
    pid_t child = fork();
    if (child < 0)
        fail("cannot fork");
    if (child == 0)
        return first(leash, last, root);
    printf("%d\n", child);
    return EXIT_SUCCESS;
}

/* End as the program did, so that the caller sees its end in this process's. */
static int end_as(int status)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    return 128 + WTERMSIG(status);
}

static int join(int pidfd, char **command)
{
    if (setns(pidfd, CLONE_NEWPID | CLONE_NEWNS))
        fail("cannot enter the namespace");
    close(pidfd);
    pid_t child = fork();
    if (child < 0)
        fail("cannot fork");
    if (child == 0) {
        /* A parent outside the namespace has number 0; any other means that it is gone. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != 0)
            _exit(EXIT_FAILURE);
        execvp(command[0], command);
        fail(command[0]);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail("cannot wait");
    return end_as(status);
}

int main(int count, char **arguments)
{
    if (count == 5 && !strcmp(arguments[1], "new"))
        return new(number(arguments[2]), arguments[3], number(arguments[4]));
    if (count >= 4 && !strcmp(arguments[1], "join"))
        return join(number(arguments[2]), arguments + 3);
    fputs("usage: gpusnap_init new LEASH LAST ROOT | join PIDFD PROGRAM [ARGUMENT ...]\n", stderr);
    return 2;
}
