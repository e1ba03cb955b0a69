#define _GNU_SOURCE
#include "mind.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Everybody who is left: what kill() takes for that. */
#define ALL ((pid_t)-1)

struct tree {
    pid_t root; /* ALL once it has ended */
    int code;   /* the root's exit code */
};

static void pass_on(int signals, const struct tree *tree)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) == sizeof info && info.ssi_signo != SIGCHLD)
        kill(tree->root, (int)info.ssi_signo);
}

/* Returns whether anybody is left. */
static int reap(struct tree *tree)
{
    int status;
    pid_t ended;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
        if (ended == tree->root) {
            tree->root = ALL;
            tree->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    return ended == 0;
}

int mind(int leash, pid_t root)
{
    sigset_t all;
    sigfillset(&all);
    struct pollfd ready[] = {{.fd = signalfd(-1, &all, SFD_CLOEXEC), .events = POLLIN},
                             {.fd = leash, .events = POLLIN}};
    struct tree tree = {root, EXIT_FAILURE};
    int complete = 0;
    if (ready[0].fd < 0)
        return EXIT_FAILURE;
    for (;;) {
        if (poll(ready, 2, -1) < 0 && errno != EINTR)
            return EXIT_FAILURE;
        char byte;
        if (ready[1].revents) {
            if (read(leash, &byte, 1) != 1)
                return EXIT_FAILURE;
            complete = 1;
            if (byte != STAY) {
                close(leash);
                ready[1] = (struct pollfd){.fd = -1};
            }
        }
        if (ready[0].revents)
            pass_on(ready[0].fd, &tree);
        if (!reap(&tree) && complete)
            return tree.code;
    }
}
