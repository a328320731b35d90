/* Questions between trainers, through objects of class "trainer": the lead asks, the others answer between
 * two iterations. */
#include "worker/model_parallel/parallel_trainer_internal.h"

#include <string.h>

enum peer_function { PEER_STATE, PEER_RESUME, PEER_RATE, PEER_LEAVE, PEER_FUNCTIONS };

/* Words of a question: args[0] and args[1] belong to rref. */
enum { ASKED_ITERATION = 2, RATE_EPOCH = 2, RATE_LR = 3 };
enum { STATE_ITERATION = 2 }; /* of the answer with h and c */

static bool peers_in_step(const struct parallel_trainer *t)
{
    return t->job->server.round.name == JOB_ROUND_ALL;
}

/* ---- the others ---- */

static void peer_answer_state(struct parallel_trainer *t, struct rpc_request *request)
{
    const struct rnn_config *rnn = &t->data.rnn;
    const struct wire_tensor tensor = {
        .dtype = WIRE_F32, .rank = 3, .dims = {rnn->layers, t->job->trainers.batch, rnn->hidden}};
    const struct rpc_message value = {.args = {[STATE_ITERATION] = t->iteration},
                                      .tensor_count = 2,
                                      .tensors = {tensor, tensor},
                                      .data = {t->hidden.h, t->hidden.c}};
    t->is_paused = !peers_in_step(t);
    rpc_reply(request, &value);
}

void parallel_peer_answer(struct parallel_trainer *t)
{
    struct parallel_question *asked = &t->asked;
    struct rpc_request *request = asked->request;
    if (request == NULL)
        return;
    if (asked->kind == PARALLEL_ASKED_STATE && t->iteration >= asked->from) {
        asked->request = NULL;
        peer_answer_state(t, request);
    } else if (asked->kind == PARALLEL_ASKED_HOLDINGS && t->flushed_epoch >= asked->from) {
        asked->request = NULL;
        parallel_answer_holdings(&t->base, request);
    } else if (asked->kind == PARALLEL_ASKED_TO_LEAVE && t->over) {
        asked->request = NULL;
        rpc_reply(request, NULL);
    }
}

/* Keeps a question until it can be answered. The lead waits for each answer before it asks again. */
static void peer_take_question(struct parallel_trainer *t, enum parallel_question_kind kind, uint64_t from,
                               struct rpc_request *request)
{
    if (t->asked.request != NULL) {
        rpc_fail(request, STATUS_BUSY, "trainer %u has a question to answer already", t->number);
        return;
    }
    t->asked = (struct parallel_question){.kind = kind, .from = from, .request = request};
    parallel_peer_answer(t);
}

static void peer_handle_state(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct parallel_trainer *t = object;
    peer_take_question(t, PARALLEL_ASKED_STATE,
                       peers_in_step(t) ? message->args[ASKED_ITERATION] : t->iteration + t->in_iteration,
                       request);
}

static void peer_handle_resume(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct parallel_trainer *t = object;
    (void)message;
    t->is_paused = false;
    rpc_reply(request, NULL);
}

void parallel_peer_asked_holdings(struct parallel *parallel, uint64_t epoch, struct rpc_request *request)
{
    struct parallel_trainer *t = (struct parallel_trainer *)(void *)parallel; /* its first member */
    peer_take_question(t, PARALLEL_ASKED_HOLDINGS, peers_in_step(t) ? epoch : 0, request);
}

static void peer_handle_rate(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct parallel_trainer *t = object;
    t->told_epoch = message->args[RATE_EPOCH];
    memcpy(&t->plateau.lr, &message->args[RATE_LR], sizeof t->plateau.lr);
    rpc_reply(request, NULL);
}

static void peer_handle_leave(void *object, struct rpc_request *request, const struct rpc_message *message)
{
    struct parallel_trainer *t = object;
    (void)message;
    t->last = true;
    peer_take_question(t, PARALLEL_ASKED_TO_LEAVE, 0, request);
}

static rref_function *const functions[PEER_FUNCTIONS] = {
    [PEER_STATE] = peer_handle_state,
    [PEER_RESUME] = peer_handle_resume,
    [PEER_RATE] = peer_handle_rate,
    [PEER_LEAVE] = peer_handle_leave,
};

/* The object is the trainer itself, which outlives every reference: nothing is freed. */
static void peer_destroy(void *object)
{
    (void)object;
}

const struct rref_class parallel_trainer_class = {
    .name = "trainer", .destroy = peer_destroy, .functions = functions, .function_count = PEER_FUNCTIONS};

/* ---- waiting ---- */

enum status parallel_peer_wait(struct parallel_trainer *t, struct error *error)
{
    if (parallel_trainer_ending(t))
        return error_set(error, STATUS_SHUTDOWN, "the job is ending");
    const enum status status = parallel_turn(&t->base, MONOTIME_NEVER, error);
    parallel_peer_answer(t);
    return status;
}

/* A call of which only the status matters. Waits. */
static enum status peer_call(struct parallel_trainer *t, uint16_t worker, enum wire_method method,
                             const struct rpc_message *message, struct error *error)
{
    struct future *answer = NULL;
    const enum status status = rpc_call(t->base.rpc, worker, method, message, MONOTIME_NEVER, &answer, error);
    future_release(answer);
    return status;
}

enum status parallel_peer_flush(struct parallel_trainer *t, uint32_t turns, struct error *error)
{
    const uint32_t end =
        parallel_trainer_leads(t) ? roster_workers(&t->base.roster) : t->base.roster.lead + 1u;
    const struct rpc_message nothing = {0};
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < turns * end && status == STATUS_OK; i++)
        status = peer_call(t, (uint16_t)(i % end), METHOD_ECHO, &nothing, error);
    return status;
}

/* This trainer's releases reach the owners before the lead asks for their holdings. The next step needs the
 * rate that the lead sends; the lead sends one after the last step too. */
enum status parallel_peer_follow(struct parallel_trainer *t, uint64_t epoch, struct error *error)
{
    if (!peers_in_step(t))
        return STATUS_OK;
    enum status status = parallel_peer_flush(t, 1, error);
    t->flushed_epoch = epoch;
    parallel_peer_answer(t);
    while (status == STATUS_OK && t->told_epoch < epoch)
        status = parallel_peer_wait(t, error);
    return status;
}

/* ---- meeting ---- */

static enum status peer_introduce(struct parallel_trainer *t, struct error *error)
{
    struct rref *self;
    struct future *shared;
    enum status status = rref_own(t->base.rrefs, &parallel_trainer_class, t, &self, error);
    if (status != STATUS_OK)
        return status;
    status = rref_share(self, t->base.roster.lead, t->number, &shared, error);
    if (status == STATUS_OK)
        status = parallel_finish(&t->base, shared, error);
    rref_release(self);
    return status;
}

enum status parallel_peer_meet(struct parallel_trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    if (!parallel_trainer_leads(t))
        return peer_introduce(t, error);
    while (status == STATUS_OK && t->peer_count + 1 < t->trainers)
        status = parallel_peer_wait(t, error);
    return status;
}

/* ---- the lead ---- */

static enum status peer_ask(struct parallel_trainer *t, uint32_t number, enum peer_function function,
                            const struct rpc_message *message, struct future **out, struct error *error)
{
    enum status status = rref_call(t->peers[number], function, message, MONOTIME_NEVER, out, error);
    if (status == STATUS_OK)
        status = rpc_wait(t->base.rpc, *out, error);
    else
        *out = NULL;
    return status;
}

static enum status peer_ask_all(struct parallel_trainer *t, enum peer_function function,
                                const struct rpc_message *message, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++) {
        struct future *call;
        status = peer_ask(t, i, function, message, &call, error);
        future_release(call);
    }
    return status;
}

enum status parallel_peer_state(struct parallel_trainer *t, uint32_t number, float *h, float *c,
                                uint64_t *iteration, struct error *error)
{
    const size_t bytes = t->hidden.count * sizeof *h;
    const struct rpc_message question = {.args = {[ASKED_ITERATION] = t->iteration}};
    struct future *call;
    enum status status = peer_ask(t, number, PEER_STATE, &question, &call, error);
    if (status == STATUS_OK) {
        const struct rpc_message *value = future_value(call);
        if (value->tensor_count != 2 || wire_tensor_bytes(&value->tensors[0]) != bytes ||
            wire_tensor_bytes(&value->tensors[1]) != bytes) {
            status = error_set(error, STATUS_INTERNAL,
                               "trainer %u answered with another state than h and c of %zu bytes each",
                               number, bytes);
        } else {
            memcpy(h, value->data[0], bytes);
            memcpy(c, value->data[1], bytes);
            *iteration = value->args[STATE_ITERATION];
        }
    }
    future_release(call);
    return status;
}

static enum status peer_ask_holdings(struct parallel_trainer *t, uint16_t worker, uint64_t epoch,
                                     struct error *error)
{
    const struct rpc_message message = {.args = {[HOLDINGS_EPOCH] = epoch}};
    struct future *answer = NULL;
    enum status status =
        rpc_call(t->base.rpc, worker, METHOD_HOLDINGS, &message, MONOTIME_NEVER, &answer, error);
    if (status == STATUS_OK)
        status = parallel_report_of(&t->base, worker, future_value(answer), error);
    future_release(answer);
    return status;
}

/* Servers last: the other trainers' releases have reached them by then. */
enum status parallel_peer_holdings(struct parallel_trainer *t, uint64_t epoch, struct error *error)
{
    const struct roster *roster = &t->base.roster;
    enum status status = STATUS_OK;
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++)
        status = peer_ask_holdings(t, (uint16_t)(roster->lead + i), epoch, error);
    for (uint32_t i = 0; i < roster->servers && status == STATUS_OK; i++)
        status = peer_ask_holdings(t, (uint16_t)i, epoch, error);
    parallel_report(&t->base);
    return status;
}

enum status parallel_peer_rate(struct parallel_trainer *t, uint64_t epoch, struct error *error)
{
    struct rpc_message message = {.args = {[RATE_EPOCH] = epoch}};
    memcpy(&message.args[RATE_LR], &t->plateau.lr, sizeof t->plateau.lr);
    return peer_ask_all(t, PEER_RATE, &message, error);
}

enum status parallel_peer_resume(struct parallel_trainer *t, struct error *error)
{
    const struct rpc_message nothing = {0};
    return peers_in_step(t) ? STATUS_OK : peer_ask_all(t, PEER_RESUME, &nothing, error);
}

enum status parallel_peer_dismiss(struct parallel_trainer *t, struct error *error)
{
    const struct rpc_message nothing = {0};
    return peer_ask_all(t, PEER_LEAVE, &nothing, error);
}
