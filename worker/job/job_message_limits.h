/* The largest messages that the workers of a model-parallel job send each other.
 *
 * The wire carries at most WIRE_BODY_BYTES_MAX in one message. The check holds every message to that limit
 * wherever the layers lie and however tensors travel, so that a job that runs in one placement and over one
 * transport runs in all of them. Tensors within the limit are within the kernels' limits, too: the widest
 * ones, the logits, travel, and the gates of an LSTM are 4 times as wide as its output, which travels. Pure.
 */
#ifndef WORKER_JOB_JOB_MESSAGE_LIMITS_H
#define WORKER_JOB_JOB_MESSAGE_LIMITS_H

#include "worker/job/job.h"
#include "worker/net/wire.h"

enum { JOB_MESSAGES_MAX = 7, JOB_MESSAGE_TEXT_BYTES = 160 };

struct job_message {
    const char *what;    /* the tensor in it */
    const char *keys[2]; /* that make it large; /model/tokens stands for a text's vocabulary, too */
    uint64_t bytes;
    char how[JOB_MESSAGE_TEXT_BYTES]; /* the product that gives `bytes`, with keys and sizes */
};

/* For a vocabulary of `tokens` words; with 0, not known yet, messages that depend on it are left out. Returns
 * their number. The messages of evaluations are among them only where the data is a text: synthetic data is
 * not evaluated. */
uint32_t job_messages(const struct job *job, uint32_t tokens, struct job_message out[JOB_MESSAGES_MAX]);

#endif
