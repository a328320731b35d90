/* Serves the trainers' calls: gives the model out, takes contributions in, and answers. The pserver's loop
 * runs this, inside a turn or between two.
 *
 * A call is checked completely before any of it is used: a bad call costs its sender the session and changes
 * nothing here. */
#include "worker/data_parallel/pserver.h"

#include "kernels/base/log.h"
#include "worker/data_parallel/bfloat16.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The caller's number among the trainers; the table of methods admits no other callers. */
static uint32_t pserver_trainer_of(const struct pserver *p, const struct rpc_request *request)
{
    return (uint32_t)(rpc_request_source(request) - p->servers);
}

static bool pserver_reject_when_ending(const struct pserver *p, struct rpc_request *request)
{
    if (!p->worker->hurry)
        return false;
    rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
    return true;
}

/* ---- the model ---- */

/* Whether this server owns [first, first + count): trained elements, statistics, or both where they meet. */
static bool pserver_owns_range(const struct pserver *p, uint64_t first, uint64_t count)
{
    const struct shard *shard = &p->shard;
    uint64_t from = shard->first, to = shard->end;
    if (shard->statistics_end > shard->statistics_first) {
        if (shard->end == shard->statistics_first)
            to = shard->statistics_end;
        else if (first >= shard->statistics_first) {
            from = shard->statistics_first;
            to = shard->statistics_end;
        }
    }
    return first >= from && first <= to && count <= to - first;
}

enum { RANGE_TEXT_BYTES = 96 };

/* The ranges that pserver_owns_range allows, for messages. */
static const char *shard_range_text(const struct pserver *p, char text[RANGE_TEXT_BYTES])
{
    const struct shard *shard = &p->shard;
    int length = snprintf(text, RANGE_TEXT_BYTES, "[%zu, %zu)", shard->first, shard->end);
    if (shard->statistics_end > shard->statistics_first)
        snprintf(text + length, RANGE_TEXT_BYTES - (size_t)length, " and [%zu, %zu)", shard->statistics_first,
                 shard->statistics_end);
    return text;
}

static struct rpc_message pserver_describe_model(const struct pserver *p, uint32_t trainer, uint64_t version,
                                                 uint64_t flags, uint32_t slot)
{
    const bool travels = p->seats[trainer].travels;
    if (p->round.version >= p->last_version)
        flags |= PULL_LAST;
    return (struct rpc_message){
        .args = {[MODEL_VERSION] = version,
                 [MODEL_OFFSET] = travels ? PARAMETER_SERVER_NOWHERE : slot * p->image_bytes,
                 [MODEL_STEP] = p->round.seat[trainer].step,
                 [MODEL_FLAGS] = flags}};
}

static enum status pserver_check_question(const struct pserver *p, const struct rpc_request *request,
                                          struct error *error)
{
    const uint64_t *args = rpc_request_message(request)->args;
    const unsigned worker = rpc_request_source(request);
    const bool is_far = image_reordered(p->job) && p->seats[worker - p->servers].travels;
    char range[RANGE_TEXT_BYTES];
    if (args[GET_FINGERPRINT] != p->fingerprint)
        return error_set(error, STATUS_INVALID,
                         "trainer %u computes another model: fingerprint %016llx, expected %016llx%s", worker,
                         (unsigned long long)args[GET_FINGERPRINT], (unsigned long long)p->fingerprint,
                         is_far ? "; hosts with different processors need /transport \"inline\"" : "");
    if (args[GET_COUNT] == 0 || (args[GET_COUNT] <= PARAMETER_SERVER_CHUNK_ELEMENTS_MAX &&
                                 pserver_owns_range(p, args[GET_FIRST], args[GET_COUNT])))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "trainer %u asks for %llu elements from %llu: expected at most %d within %s", worker,
                     (unsigned long long)args[GET_COUNT], (unsigned long long)args[GET_FIRST],
                     PARAMETER_SERVER_CHUNK_ELEMENTS_MAX, shard_range_text(p, range));
}

void pserver_get_model(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct pserver *p = context;
    const uint32_t trainer = pserver_trainer_of(p, request);
    const uint32_t count = (uint32_t)message->args[GET_COUNT];
    uint64_t version = message->args[GET_VERSION];
    uint32_t slot;
    struct error error;
    if (pserver_reject_when_ending(p, request))
        return;
    if (pserver_check_question(p, request, &error) != STATUS_OK) {
        rpc_reject(request, "%s", error.text);
        return;
    }
    if (version == PARAMETER_SERVER_NEWEST)
        version = p->round.version;
    if (!round_slot_of(&p->round, version, &slot)) {
        rpc_fail(request, STATUS_NOT_FOUND, "version %llu is not here: the newest is %llu",
                 (unsigned long long)version, (unsigned long long)p->round.version);
        return;
    }
    struct rpc_message answer = pserver_describe_model(p, trainer, version, 0, slot);
    if (count > 0) {
        answer.tensor_count = 1;
        answer.tensors[0] = (struct wire_tensor){.dtype = WIRE_F32, .rank = 1, .dims = {count}};
        answer.data[0] = pserver_image(p, slot) + message->args[GET_FIRST];
    } else {
        /* A successor, or a trainer of a resumed run: it computes its step after this answer, and its push
         * then waits for the evaluation. A failure here is met again after the turn. */
        pserver_epoch_ask(p, trainer, NULL);
        round_hold(&p->round, trainer, version);
        p->models_given++;
    }
    rpc_reply(request, &answer);
}

/* ---- contributions in chunks ---- */

/* Memory for the chunks of all trainers; pages come with the chunks. */
static enum status pserver_open_inboxes(struct pserver *p, struct error *error)
{
    if (p->inboxes.data != NULL)
        return STATUS_OK;
    const size_t pieces = p->elements / PARAMETER_SERVER_PIECE_ELEMENTS;
    enum status status = image_map(&p->marks, p->trainers * pieces, "the contributions' marks", error);
    if (status == STATUS_OK)
        status = image_map(&p->inboxes, p->trainers * p->image_bytes, "the contributions", error);
    if (status != STATUS_OK) {
        segment_detach(&p->marks);
        return status;
    }
    for (uint32_t i = 0; i < p->trainers; i++) {
        p->seats[i].inbox.image = (float *)(void *)(p->inboxes.data + i * p->image_bytes);
        p->seats[i].inbox.come = p->marks.data + i * pieces;
    }
    return STATUS_OK;
}

static void inbox_empty(const struct pserver *p, struct pserver_inbox *inbox, uint64_t step)
{
    inbox->step = step;
    inbox->pieces = 0;
    if (inbox->come != NULL)
        memset(inbox->come, 0, p->elements / PARAMETER_SERVER_PIECE_ELEMENTS);
}

/* The number of pieces in this server's range of a contribution. */
static size_t inbox_pieces_wanted(const struct pserver *p)
{
    const struct shard *shard = &p->shard;
    return (shard->end - shard->first + shard->statistics_end - shard->statistics_first) /
           PARAMETER_SERVER_PIECE_ELEMENTS;
}

static void inbox_take_chunk(struct pserver_inbox *inbox, size_t first, const struct rpc_message *message)
{
    const uint32_t count = message->tensors[0].dims[0];
    const size_t end = (first + count) / PARAMETER_SERVER_PIECE_ELEMENTS;
    if (message->tensors[0].dtype == WIRE_BF16)
        bfloat16_widen(inbox->image + first, message->data[0], count);
    else
        memcpy(inbox->image + first, message->data[0], count * sizeof *inbox->image);
    for (size_t i = first / PARAMETER_SERVER_PIECE_ELEMENTS; i < end; i++) {
        inbox->pieces += inbox->come[i] == 0;
        inbox->come[i] = 1;
    }
}

/* Ends a seat's PUSH_PULL without a model. */
static void seat_end_push(struct pserver_seat *seat, enum status status, const char *why)
{
    struct rpc_request *push = seat->push;
    seat->push = NULL;
    if (push != NULL)
        rpc_fail(push, status, "%s", why);
}

static enum status pserver_check_chunk(const struct pserver *p, const struct rpc_request *request,
                                       struct error *error)
{
    const struct rpc_message *message = rpc_request_message(request);
    const struct wire_tensor *tensor = &message->tensors[0];
    const uint64_t first = message->args[CHUNK_FIRST], count = tensor->dims[0];
    const unsigned worker = rpc_request_source(request);
    char range[RANGE_TEXT_BYTES];
    if (message->tensor_count != 1 || tensor->rank != 1 || count > PARAMETER_SERVER_CHUNK_ELEMENTS_MAX ||
        (tensor->dtype != WIRE_F32 && tensor->dtype != WIRE_BF16))
        return error_set(error, STATUS_INVALID,
                         "trainer %u sends a chunk of %u tensors, the first of dtype %u: expected one row of "
                         "at most %d float32 or bfloat16",
                         worker, message->tensor_count, tensor->dtype, PARAMETER_SERVER_CHUNK_ELEMENTS_MAX);
    if (!p->seats[pserver_trainer_of(p, request)].travels)
        return error_set(error, STATUS_INVALID,
                         "trainer %u sends a chunk: expected its contribution in shared memory", worker);
    if (first % PARAMETER_SERVER_PIECE_ELEMENTS != 0 || count % PARAMETER_SERVER_PIECE_ELEMENTS != 0 ||
        !pserver_owns_range(p, first, count))
        return error_set(error, STATUS_INVALID,
                         "trainer %u sends %llu elements from %llu: expected multiples of %d within %s",
                         worker, (unsigned long long)count, (unsigned long long)first,
                         PARAMETER_SERVER_PIECE_ELEMENTS, shard_range_text(p, range));
    return round_check_step(&p->round, pserver_trainer_of(p, request), message->args[CHUNK_STEP], error);
}

/* A chunk of a step that was contributed already starts the contribution anew: it does not count until all
 * chunks and PUSH_PULL have arrived again. */
void pserver_push_chunk(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct pserver *p = context;
    const uint32_t trainer = pserver_trainer_of(p, request);
    struct pserver_seat *seat = &p->seats[trainer];
    const uint64_t step = message->args[CHUNK_STEP];
    struct error error;
    if (pserver_reject_when_ending(p, request))
        return;
    if (pserver_check_chunk(p, request, &error) != STATUS_OK) {
        rpc_reject(request, "%s", error.text);
        return;
    }
    const enum status status = pserver_open_inboxes(p, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    if (p->round.seat[trainer].waiting) {
        round_withdraw(&p->round, trainer);
        seat_end_push(seat, STATUS_INVALID, "the same step is being sent again");
        inbox_empty(p, &seat->inbox, step);
    }
    if (seat->inbox.step != step)
        inbox_empty(p, &seat->inbox, step);
    inbox_take_chunk(&seat->inbox, message->args[CHUNK_FIRST], message);
    rpc_reply(request, NULL);
}

/* ---- PUSH_PULL ---- */

/* Finds the contribution's image, and checks that it is complete. */
static enum status seat_find_image(struct pserver *p, struct pserver_seat *seat, uint64_t step,
                                   struct error *error)
{
    const struct pserver_inbox *inbox = &seat->inbox;
    if (!seat->travels) {
        enum status status = STATUS_OK;
        if (seat->outbox.data == NULL)
            status = segment_attach(&seat->outbox, seat->worker, p->image_bytes, error);
        seat->image = status == STATUS_OK ? segment_at(&seat->outbox, 0, p->image_bytes) : NULL;
        return status;
    }
    seat->image = inbox->image;
    if (inbox->step == step && inbox->pieces == inbox_pieces_wanted(p))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "trainer %u, step %llu: %zu of %zu pieces have come",
                     seat->worker, (unsigned long long)step, inbox->step == step ? inbox->pieces : 0,
                     inbox_pieces_wanted(p));
}

static enum status pserver_check_push(const struct pserver *p, const struct rpc_request *request,
                                      double *loss, struct error *error)
{
    const uint64_t *args = rpc_request_message(request)->args;
    const unsigned worker = rpc_request_source(request);
    memcpy(loss, &args[PUSH_LOSS], sizeof *loss);
    if (args[PUSH_BYTES] != p->elements * sizeof(float))
        return error_set(error, STATUS_INVALID,
                         "trainer %u, step %llu: a contribution of %llu bytes: expected %zu", worker,
                         (unsigned long long)args[PUSH_STEP], (unsigned long long)args[PUSH_BYTES],
                         p->elements * sizeof(float));
    if (!isfinite(*loss))
        return error_set(error, STATUS_INVALID, "trainer %u, step %llu: its loss is %g", worker,
                         (unsigned long long)args[PUSH_STEP], *loss);
    return round_check_step(&p->round, pserver_trainer_of(p, request), args[PUSH_STEP], error);
}

/* After the job's last update the contribution is not needed. */
static bool pserver_is_needless(const struct pserver *p)
{
    return p->done || p->round.version >= p->last_version;
}

void pserver_push_pull(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct pserver *p = context;
    const uint32_t trainer = pserver_trainer_of(p, request);
    struct pserver_seat *seat = &p->seats[trainer];
    struct error error;
    double loss;
    bool replay = false;
    if (pserver_reject_when_ending(p, request))
        return;
    enum status status = pserver_check_push(p, request, &loss, &error);
    if (status == STATUS_OK && pserver_is_needless(p)) {
        rpc_fail(request, STATUS_SHUTDOWN, "the job has made its last update");
        return;
    }
    if (status == STATUS_OK)
        status = seat_find_image(p, seat, message->args[PUSH_STEP], &error);
    if (status == STATUS_OK)
        status = round_add(&p->round, trainer, message->args[PUSH_BASE], &replay, &error);
    if (status != STATUS_OK) {
        rpc_reject(request, "%s", error.text);
        return;
    }
    seat_end_push(seat, STATUS_INVALID, "the same step has been sent again");
    seat->push = request;
    seat->loss = loss;
    if (!replay)
        seat->arrived = monotime_now();
}

/* ---- answers ---- */

void pserver_answer(struct pserver *p, uint32_t trainer, uint64_t flags)
{
    struct pserver_seat *seat = &p->seats[trainer];
    const uint64_t version = p->round.version;
    struct rpc_request *push = seat->push;
    if (push == NULL || p->round.seat[trainer].waiting)
        return; /* it has died meanwhile; what its successor has pushed belongs to the next round */
    seat->push = NULL;
    round_hold(&p->round, trainer, version);
    const struct rpc_message answer = pserver_describe_model(p, trainer, version, flags, p->round.newest);
    p->models_given++;
    rpc_reply(push, &answer);
}

void pserver_answer_late(struct pserver *p)
{
    uint32_t trainer;
    while (round_take_late(&p->round, &trainer))
        pserver_answer(p, trainer, PULL_LATE);
}

void pserver_dismiss(struct pserver *p)
{
    for (uint32_t i = 0; i < p->trainers; i++)
        seat_end_push(&p->seats[i], STATUS_SHUTDOWN, "the job is ending");
}

void pserver_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct pserver *p = context;
    bool trains = worker >= p->servers;
    if (why == STATUS_INVALID)
        log_warning("%s %u left: %s", trains ? "trainer" : "pserver", worker, text);
    if (!trains)
        return;
    struct pserver_seat *seat = &p->seats[worker - p->servers];
    seat->joined = false;
    round_forget(&p->round, worker - p->servers);
    inbox_empty(p, &seat->inbox, UINT64_MAX);
    seat_end_push(seat, STATUS_PEER_DIED, "the caller's session has ended");
}
