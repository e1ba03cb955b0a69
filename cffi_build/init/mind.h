/* What the first process of a namespace does once all is ready. */
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

/* What keeps a tree that is complete on its leash. */
#define STAY 's'

/* Reap what ends and pass signals on to the root of the restored tree. All signals are blocked.
 *
 * leash: gpusnap holds the other end. As long as it is held, its end is the end of all in the
 *        namespace: a half-restored tree is of no use to anybody, and some are to end with gpusnap.
 *        A byte from it says that the tree is complete, and lets go unless it is STAY.
 * Returns what to exit with once nothing else is left: the root's exit code, 128 + N for one
 * that signal N ended.
 */
int mind(int leash, pid_t root);
