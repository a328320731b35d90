/* Computes the sizes of the largest messages of a model-parallel job.
 *
 * The calls of layers (worker/model_parallel/layer.h) carry their tensors together with the call's two
 * numbers, and gradients come back in messages of the same sizes. Parameters, and their momentum, travel one
 * at a time when a checkpoint is written. */
#include "worker/job/job_message_limits.h"

#include <stdarg.h>
#include <stdio.h>

enum { NUMBER_BYTES = sizeof(float), CALL_BYTES = 2 * sizeof(uint64_t) };

struct message_list {
    struct job_message *messages;
    uint32_t count;
};

__attribute__((format(printf, 6, 7))) static void message_add(struct message_list *list, const char *what,
                                                              const char *one, const char *other,
                                                              uint64_t bytes, const char *how, ...)
{
    struct job_message *message = &list->messages[list->count++];
    *message = (struct job_message){.what = what, .keys = {one, other}, .bytes = bytes};
    va_list arguments;
    va_start(arguments, how);
    vsnprintf(message->how, sizeof message->how, how, arguments);
    va_end(arguments);
}

/* No key exceeds 2^20, and no product of keys here 2^54. */
static void messages_add_calls(struct message_list *list, const struct job *job, uint64_t tokens,
                               const char *batch, uint32_t columns)
{
    static const char steps[] = "/data/steps";
    const uint64_t rows = (uint64_t)job->sequence.steps * columns;
    const uint64_t width = job->rnn.embedding > job->rnn.hidden ? job->rnn.embedding : job->rnn.hidden;
    const uint64_t state = 2 * (uint64_t)job->rnn.layers * columns * job->rnn.hidden;
    if (tokens > 0)
        message_add(list, "the logits", steps, batch, rows * tokens * NUMBER_BYTES,
                    "%s %u * %s %u * %llu tokens * %d", steps, job->sequence.steps, batch, columns,
                    (unsigned long long)tokens, NUMBER_BYTES);
    message_add(list, "the LSTM's input and state", steps, batch,
                (rows * width + state) * NUMBER_BYTES + CALL_BYTES,
                "(%s %u * %llu + 2 * /model/layers %u * /model/hidden %u) * %s %u * %d + %d", steps,
                job->sequence.steps, (unsigned long long)width, job->rnn.layers, job->rnn.hidden, batch,
                columns, NUMBER_BYTES, (int)CALL_BYTES);
}

static void message_add_table(struct message_list *list, const char *what, uint64_t tokens, const char *key,
                              uint32_t width)
{
    if (tokens > 0)
        message_add(list, what, "/model/tokens", key, tokens * width * NUMBER_BYTES,
                    "%llu tokens * %s %u * %d", (unsigned long long)tokens, key, width, NUMBER_BYTES);
}

uint32_t job_messages(const struct job *job, uint32_t tokens, struct job_message out[JOB_MESSAGES_MAX])
{
    static const char embedding[] = "/model/embedding", hidden[] = "/model/hidden";
    const bool wide = job->rnn.embedding > job->rnn.hidden;
    struct message_list list = {.messages = out};
    messages_add_calls(&list, job, tokens, "/trainers/batch", job->trainers.batch);
    if (job->data.kind == JOB_DATA_TEXT)
        messages_add_calls(&list, job, tokens, "/evaluation/batch", job->evaluation.batch);
    message_add_table(&list, "the embedding", tokens, embedding, job->rnn.embedding);
    message_add_table(&list, "the decoder", tokens, hidden, job->rnn.hidden);
    message_add(&list, "a weight of the LSTM", wide ? embedding : hidden, hidden,
                4 * (uint64_t)job->rnn.hidden * (wide ? job->rnn.embedding : job->rnn.hidden) * NUMBER_BYTES,
                "4 * %s %u * %s %u * %d", hidden, job->rnn.hidden, wide ? embedding : hidden,
                wide ? job->rnn.embedding : job->rnn.hidden, NUMBER_BYTES);
    return list.count;
}
