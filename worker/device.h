/* From a job's /device to a backend (backend_load_device in kernels/backend.h), and the line that names it.
 * Any worker, at its start: all functions block while a plug-in is loaded. */
#ifndef WORKER_DEVICE_H
#define WORKER_DEVICE_H

#include "kernels/kernels.h"
#include "worker/job/job.h"

/* Which of several GPUs this process takes, modulo their count: a worker, that of its own number. 0 before
 * the call. */
void device_number(uint32_t number);

/* Opens the job's /device with `threads` math threads. If that is `auto` and `logs` is true, a line in the
 * log names the device: of several equal workers, one logs. Errors as backend_load_device. */
enum status device_open(struct backend **out, const struct job *job, uint32_t threads, bool logs,
                        struct error *error);

/* Whether the job's /device is a GPU in every process of this host: `gpu`, or `auto` where one is found. With
 * `auto` a process may still compute on the CPU, if the GPU cannot be opened. */
bool device_is_gpu(const struct job *job);

/* device_open for a role that needs no backend on the CPU: *out is NULL there, and oneDNN is not loaded. With
 * `auto` a line in the log names the device. STATUS_UNAVAILABLE: the job demands a GPU, and none works. */
enum status device_open_gpu(struct backend **out, const struct job *job, struct error *error);

#endif
