/* Rounds of a local optimizer. A role's thread runs this, in handlers.
 *
 * `all`: requests are kept until every participant has sent one. Then the norm or the step is taken once, and
 * all requests get the same answer, whatever order they came in. `async`: each request is a round of its own.
 * Requests are answered last, when the next round may begin. */
#include "worker/autograd/optimizer_internal.h"

#include <assert.h>
#include <string.h>

static struct participant *round_find_participant(struct local *local, uint16_t worker)
{
    for (uint32_t i = 0; i < local->participant_count; i++)
        if (local->participants[i].worker == worker)
            return &local->participants[i];
    return NULL;
}

/* ---- the end of a round ---- */

/* Answers every request of the round, with `reply` or a failure. */
static void round_end(struct local *local, struct participant *participants, uint32_t count,
                      enum status status, const struct error *error, const struct rpc_message *reply)
{
    local->round = ROUND_NONE;
    for (uint32_t i = 0; i < count; i++) {
        struct rpc_request *request = participants[i].request;
        participants[i].request = NULL;
        if (request == NULL)
            continue;
        local->waiting--;
        if (status == STATUS_OK)
            rpc_reply(request, reply);
        else
            rpc_fail(request, status, "%s", error->text);
    }
}

static void round_fail(struct local *local, enum status status, const struct error *error)
{
    round_end(local, local->participants, local->participant_count, status, error, NULL);
}

static void round_finish_norm(struct local *local, struct participant *participants, uint32_t count)
{
    struct error error = {0};
    struct rpc_message reply = {0};
    enum status status = local_take_norm(local, participants, count, &error);
    for (uint32_t i = 0; i < count; i++)
        participants[i].normed = status == STATUS_OK ? participants[i].context : 0;
    message_add(&reply, WIRE_U64, local->sums, local->count);
    message_add(&reply, WIRE_U32, local->indices, local->count);
    round_end(local, participants, count, status, &error, &reply);
}

static void round_finish_step(struct local *local, struct participant *participants, uint32_t count)
{
    struct error error = {0};
    struct rpc_message reply = {0};
    enum status status = local_take_step(local, participants, count, &error);
    for (uint32_t i = 0; i < count; i++) {
        participants[i].normed = 0;
        reply.args[0] |= participants[i].words[STEP_LAST] != 0;
    }
    round_end(local, participants, count, status, &error, &reply);
}

/* ---- a request ---- */

/* A participant steps by contexts whose root it is: the upper 16 bits of the id (dist.h). */
static enum status round_check_sender(struct local *local, struct participant **out, uint16_t source,
                                      const struct rpc_message *message, struct error *error)
{
    struct participant *participant = round_find_participant(local, source);
    if (participant == NULL)
        return error_set(error, STATUS_INVALID, "worker %u takes no part in this optimizer", source);
    if (message->context == 0 || message->context >> 48 != source)
        return error_set(error, STATUS_INVALID, "worker %u cannot step by context %llx, which is not its own",
                         source, (unsigned long long)message->context);
    if (participant->request != NULL)
        return error_set(error, STATUS_INVALID, "worker %u has asked already in this round", source);
    if (local->ended.status != STATUS_OK)
        *error = local->ended;
    *out = participant;
    return local->ended.status;
}

static enum status round_check_words(struct participant *participant, enum round round,
                                     const struct rpc_message *message, struct error *error)
{
    memset(participant->words, 0, sizeof participant->words);
    if (round == ROUND_NORM)
        return STATUS_OK;
    if (message_flat(message, 0, WIRE_U64) != STEP_WORDS)
        return error_set(error, STATUS_INVALID, "a step has %d words", STEP_WORDS);
    memcpy(participant->words, message->data[0], sizeof participant->words);
    return STATUS_OK;
}

/* All requests of a round ask for the same, with the same numbers; only `last` may differ. */
static enum status round_check_agreement(const struct local *local, const struct participant *newest,
                                         enum round round, struct error *error)
{
    if (local->round != round)
        return error_set(error, STATUS_INVALID, "worker %u asks for a step %s clipping, others do not",
                         newest->worker, round == ROUND_NORM ? "with" : "without");
    for (uint32_t i = 0; i < local->participant_count; i++) {
        const struct participant *other = &local->participants[i];
        if (other->request != NULL && memcmp(other->words, newest->words, STEP_LAST * sizeof(uint64_t)) != 0)
            return error_set(
                error, STATUS_INVALID,
                "worker %u asks for lr %g, max_norm %g of norm %g, worker %u for %g, %g of %g",
                newest->worker, double_of_word(newest->words[STEP_LR]),
                double_of_word(newest->words[STEP_MAX_NORM]), double_of_word(newest->words[STEP_NORM]),
                other->worker, double_of_word(other->words[STEP_LR]),
                double_of_word(other->words[STEP_MAX_NORM]), double_of_word(other->words[STEP_NORM]));
    }
    return STATUS_OK;
}

static void round_add_request(struct local *local, enum round round, struct rpc_request *request,
                              const struct rpc_message *message)
{
    void (*const finish)(struct local *, struct participant *, uint32_t) =
        round == ROUND_NORM ? round_finish_norm : round_finish_step;
    struct error error = {0};
    struct participant *participant = NULL;
    enum status status =
        round_check_sender(local, &participant, rpc_request_source(request), message, &error);
    if (status == STATUS_OK)
        status = round_check_words(participant, round, message, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    participant->request = request;
    participant->context = message->context;
    local->waiting++;
    if (local->async) {
        finish(local, participant, 1);
        return;
    }
    if (local->round == ROUND_NONE)
        local->round = round;
    status = round_check_agreement(local, participant, round, &error);
    if (status != STATUS_OK)
        round_fail(local, status, &error);
    else if (local->waiting == local->participant_count)
        finish(local, local->participants, local->participant_count);
}

void local_norm(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    round_add_request(object, ROUND_NORM, request, message);
}

void local_step(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    round_add_request(object, ROUND_STEP, request, message);
}

/* ---- deaths ---- */

void local_worker_left(struct local *local, uint16_t worker, enum status why)
{
    if (local->async || local->ended.status != STATUS_OK || round_find_participant(local, worker) == NULL)
        return;
    error_set(&local->ended, why, "worker %u, which takes part in every step, has %s", worker,
              why == STATUS_SHUTDOWN ? "left" : "died");
    round_fail(local, why, &local->ended);
}
