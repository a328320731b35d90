/* The largest messages that the workers of a model-parallel job send each other. The wire takes
 * WIRE_BODY_BYTES_MAX of each, wherever the parts lie and however tensors travel, so that a job which runs in
 * one placement and over one transport runs in all. Pure. */
#ifndef WORKER_JOB_JOB_MESSAGES_H
#define WORKER_JOB_JOB_MESSAGES_H

#include "worker/job/job.h"
#include "worker/net/wire.h"

enum { JOB_MESSAGES_MAX = 7, JOB_MESSAGE_TEXT_BYTES = 160 };

struct job_message {
    const char *what; /* is in it */
    const char *one,
        *other; /* the keys that make it large; /model/tokens stands for a text's vocabulary, too */
    uint64_t bytes;
    char how[JOB_MESSAGE_TEXT_BYTES]; /* they come about, naming keys and sizes */
};

/* For a vocabulary of `tokens` words (0: not known yet, what hangs on it is left out). Returns how many there
 * are. Those of evaluations only where the data is a text: nothing else is evaluated. */
uint32_t job_messages(const struct job *job, uint32_t tokens, struct job_message out[JOB_MESSAGES_MAX]);

#endif
