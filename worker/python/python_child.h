/* A program in Python that a command starts as its child and asks: worker/python's command_*.py. Each request
 * has one answer. They travel over a socket of their own, the child's descriptor 3, in the machine's byte
 * order.
 *
 *     to the child      what the two agree on
 *     from the child    u32 status (enum status), u32 bytes; a sentence where the status is an error
 *
 * What the user's code prints goes to standard error. The child ends with its parent. One thread. */
#ifndef WORKER_PYTHON_PYTHON_CHILD_H
#define WORKER_PYTHON_PYTHON_CHILD_H

#include "kernels/base/status.h"

#include <stddef.h>

struct python_child;

/* Starts `interpreter`, a path or a name in PATH, with the worker `script`. `task` completes the sentence
 * "Python has ended with exit code 1: expected it to …", and outlives the child. SIGCHLD gets its default
 * action. STATUS_NOT_FOUND: there is no such interpreter or script; STATUS_IO, STATUS_NO_MEMORY. */
enum status python_child_open(struct python_child **out, const char *interpreter, const char *script,
                              const char *task, struct error *error);

/* Closes the socket, gives the child 2 seconds to end, then kills it. NULL is allowed. */
void python_child_close(struct python_child *child);

/* Empties the request, and appends bytes to it. STATUS_NO_MEMORY. */
void python_child_begin(struct python_child *child);
enum status python_child_append(struct python_child *child, const void *bytes, size_t size,
                                struct error *error);

/* Sends the request, and blocks until the child has answered or ended. A status in the answer is the child's
 * own, with its sentence. STATUS_UNAVAILABLE: the child has ended; STATUS_CORRUPT: the answer is too long, or
 * its status is none; STATUS_NO_MEMORY. */
enum status python_child_ask(struct python_child *child, struct error *error);

/* The newest answer, with a zero byte behind it. It is valid until the next call. */
const char *python_child_answer(const struct python_child *child, size_t *size);

#endif
