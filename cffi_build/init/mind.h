/* What the first process of a namespace does once all is ready. */
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

/* Reap what ends and pass signals on to the root of the restored tree. All signals are blocked.
 *
 * leash: gpusnap holds the other end. A byte from it lets go; without one, its end is the end of
 *        all in the namespace, because a half-restored tree is of no use to anybody.
 * Returns what to exit with once nothing else is left: the root's exit code, 128 + N for one
 * that signal N ended.
 */
int mind(int leash, pid_t root);
