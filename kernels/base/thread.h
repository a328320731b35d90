/* Starting a thread or a process, and how many processors there are for them. Where the system refuses, the
 * message names the limits that may be the reason. */
#ifndef KERNELS_BASE_THREAD_H
#define KERNELS_BASE_THREAD_H

#include "kernels/base/status.h"

#include <pthread.h>
#include <stdint.h>

/* Starts a thread that takes no signals. `what` is for the message: "the thread that writes files".
 * STATUS_IO. */
enum status thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *what,
                         struct error *error);

/* The limits of this process on processes and memory, to stand behind a name: " (limits: 5 processes, 20000
 * KiB of memory)"; "" where there are none. */
enum { THREAD_LIMITS_BYTES = 96 };
void thread_limits(char limits[THREAD_LIMITS_BYTES]);

/* The size of the calling thread's affinity mask, on machines of any size; 1 when the kernel does not say. */
uint32_t processors_count(void);

#endif
