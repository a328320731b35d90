/* The role pserver: holds a shard of the model, takes the trainers' gradients, gives out the next version.
 * The process's first thread runs all of this; while a checkpoint is written a second one reads the version
 * that is saved (worker/checkpoint/checkpoint_saver.h).
 *
 * The loop: take messages, then take the round as far as it goes. Contributions arrive until they make a
 * round; the update writes the next version into a free slot, and is reported to the supervisor; a checkpoint
 * that is due is written; an evaluation that is due is asked for; last, all members of the round are
 * answered. No member can send more before its answer, so server 0, which alone decides all this, holds the
 * other servers at its version by not answering. No update is made while an evaluation is running.
 *
 * A call is checked completely before any of it is used: a bad call costs its sender the session and changes
 * nothing here. */
#include "kernels/base/log.h"
#include "kernels/base/profile.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/data_parallel/bfloat16.h"
#include "worker/data_parallel/evaluation.h"
#include "worker/data_parallel/round.h"
#include "worker/data_parallel/schedule.h"
#include "worker/data_parallel/server_update.h"
#include "worker/net/rpc.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The contribution of a trainer that sends chunks, as they arrive. */
struct pserver_inbox {
    float *image;  /* in `inboxes`; only the server's range gets pages */
    uint64_t step; /* the step of the chunks in `image`; UINT64_MAX: none */
    uint8_t *come; /* in `marks`: 1 for each PIECE elements of the image that have come */
    size_t pieces; /* marks that are 1 */
};

/* The server's record of one trainer. */
struct pserver_seat {
    uint16_t worker; /* its number */
    bool joined;     /* it has a session */
    bool described;  /* it has said in this session how many samples its class has */
    bool travels;    /* elements travel between it and this server (image_travels); known while joined */
    struct rpc_request *push; /* its PUSH_PULL, until it is answered */
    double loss;              /* of that contribution */
    struct monotime arrived;  /* when it arrived */
    const float *image;       /* its contribution, in `outbox` or `inbox`; NULL: not mapped yet */
    struct segment outbox;
    struct pserver_inbox inbox;
};

/* The running epoch; `open`: it has ended and is not reported yet. */
struct pserver_epoch {
    bool open;
    bool evaluates;        /* its end is evaluated */
    struct monotime begin; /* of the epoch that runs */
    struct monotime asked; /* when the evaluation began */
    double loss_sum;       /* of the running epoch's updates */
    struct {
        uint64_t version; /* the one with which the epoch before ended */
        double loss_sum;
        struct checkpoint_score score; /* with /checkpoint/best; unmeasured: it was not evaluated */
    } ended;
    struct pserver_share {
        struct future *call; /* METHOD_EVALUATE under way; NULL: not asked yet, or answered */
        bool answered;
        struct evaluation sums;
    } shares[JOB_TRAINERS_MAX]; /* (trainers of the job file) of the held-out data */
};

/* How many samples the trainers' class has (/data/kind "class"), as the first of them says. */
struct pserver_data {
    bool is_known;
    struct dataset_info info;
    uint16_t said_by; /* the trainer's worker number; 0: the checkpoint */
};

struct pserver {
    struct worker *worker;
    const struct job *job;
    struct rpc *rpc;
    uint32_t number, servers, trainers; /* this server's number; the job's servers and trainers */
    bool draining;                      /* the order to stop has lowered last_version */
    bool done;                          /* no update or checkpoint follows, and no contribution is needed */
    bool over;                          /* server 0: FINISHED is reported */
    enum control_end end;

    struct server_model model;
    struct segment inboxes; /* (trainers) images; mapped when the first chunk comes */
    struct segment marks;   /* (trainers, elements / PIECE) bytes; likewise */

    /* ---- the round ---- */
    struct round round;
    struct pserver_data data;
    struct schedule schedule; /* of a class's data: empty until the data's size is known */
    uint64_t last_version;    /* the job's last; lowered by an order to stop */
    struct pserver_seat seats[JOB_TRAINERS_MAX];
    uint32_t members[JOB_TRAINERS_MAX]; /* of the newest round, until they are answered */
    uint32_t member_count;

    struct pserver_epoch epoch;
    uint64_t evaluation_samples; /* of the held-out data */

    /* ---- checkpoints ---- */
    struct checkpoint_saver saver;
    struct future *shard_calls[JOB_SERVERS_MAX]; /* server 0: SAVE_SHARD to each of the others */
    struct rpc_request *shard_request;           /* above server 0: SAVE_SHARD, until it is answered */

    /* ---- for the records ---- */
    uint64_t begin_version; /* at the start of this process */
    uint64_t late_before;   /* of the run before a resume */
    uint64_t late_reported; /* round_late, at the last record */
    uint64_t models_given;  /* since the last record */
    struct monotime last_update;
};

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

/* ---- the end of an epoch ----
 * Every trainer of the job file (those that were added have no share) evaluates one share of the held-out
 * data on the version that ended the epoch. The shares' sums are added in the order of the shares, so the
 * result does not depend on the order of the answers. The share of a trainer that dies meanwhile, or that
 * sends impossible sums, goes to its successor when that has joined. Server 0 alone does this. */

static uint32_t shares_of(const struct pserver *p)
{
    return p->job->trainers.count;
}

/* The newest version ends an epoch; its evaluation, if due, begins with pserver_epoch_advance. */
static void pserver_epoch_end(struct pserver *p)
{
    struct pserver_epoch *epoch = &p->epoch;
    epoch->open = true;
    epoch->evaluates = schedule_evaluates(&p->schedule, p->round.version);
    epoch->asked = monotime_now();
    for (uint32_t i = 0; i < shares_of(p); i++)
        epoch->shares[i] = (struct pserver_share){0};
}

/* Asks this trainer for its share, unless it was asked already; one that cannot be reached now is asked
 * later. Messages sent afterwards reach it after the question. */
static enum status pserver_epoch_ask(struct pserver *p, uint32_t trainer, struct error *error)
{
    const uint64_t version = p->round.version;
    struct pserver_share *share = &p->epoch.shares[trainer];
    if (trainer >= shares_of(p) || !p->epoch.open || !p->epoch.evaluates || share->answered ||
        share->call != NULL || !p->seats[trainer].joined)
        return STATUS_OK;
    const bool travels = p->seats[trainer].travels;
    const struct rpc_message message = {
        .args = {[EVALUATE_VERSION] = version,
                 [EVALUATE_OFFSET] =
                     travels ? PARAMETER_SERVER_NOWHERE : p->round.newest * p->model.image_bytes,
                 [EVALUATE_SHARE] = trainer,
                 [EVALUATE_SHARES] = shares_of(p)}};
    enum status status = rpc_call_async(p->rpc, p->seats[trainer].worker, METHOD_EVALUATE, &message,
                                        MONOTIME_NEVER, &share->call, error);
    return status == STATUS_NOT_FOUND || status == STATUS_BUSY ? STATUS_OK : status;
}

/* The loss is not checked: that of a sound model may be infinite or NaN on held-out data. */
static bool evaluation_is_impossible(const struct pserver *p, uint32_t share, const struct evaluation *sums)
{
    const uint64_t count = p->evaluation_samples, shares = shares_of(p);
    const uint64_t samples = count * (share + 1) / shares - count * share / shares;
    return sums->samples > samples || sums->correct > sums->samples;
}

/* Takes an answer. STATUS_SHUTDOWN from a trainer: the order to stop has reached it, and reaches this server
 * soon. */
static enum status epoch_take_share(struct pserver *p, uint32_t trainer, struct error *error)
{
    struct pserver_share *share = &p->epoch.shares[trainer];
    const unsigned worker = p->seats[trainer].worker;
    enum status status = future_status(share->call);
    if (status == STATUS_AGAIN || status == STATUS_SHUTDOWN)
        return STATUS_OK;
    if (status == STATUS_OK) {
        const uint64_t *args = future_value(share->call)->args;
        memcpy(&share->sums.loss_sum, &args[EVALUATED_LOSS], sizeof share->sums.loss_sum);
        share->sums.correct = args[EVALUATED_CORRECT];
        share->sums.samples = args[EVALUATED_SAMPLES];
        share->answered = !evaluation_is_impossible(p, trainer, &share->sums);
        if (!share->answered)
            rpc_reject_worker(
                p->rpc, p->seats[trainer].worker,
                "trainer %u evaluated %llu samples, %llu of them right, with a loss of %g: that cannot be",
                worker, (unsigned long long)share->sums.samples, (unsigned long long)share->sums.correct,
                share->sums.loss_sum);
    } else if (status == STATUS_PEER_DIED) {
        status = STATUS_OK; /* the successor is asked */
    } else {
        error_set(error, status, "trainer %u cannot evaluate: %s", worker, future_text(share->call));
    }
    future_release(share->call);
    share->call = NULL;
    return status;
}

/* Asks trainers and takes answers without waiting. STATUS_AGAIN: a share is missing. */
static enum status epoch_evaluate(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    bool all = true;
    for (uint32_t i = 0; i < shares_of(p) && status == STATUS_OK; i++) {
        struct pserver_share *share = &p->epoch.shares[i];
        status = share->call != NULL ? epoch_take_share(p, i, error) : pserver_epoch_ask(p, i, error);
        all = all && share->answered;
    }
    return status == STATUS_OK && !all ? STATUS_AGAIN : status;
}

static void epoch_report(struct pserver *p)
{
    struct pserver_epoch *epoch = &p->epoch;
    const uint64_t update = p->round.version, every = p->schedule.epoch_updates;
    const uint64_t number = (update + every - 1) / every;
    const struct monotime now = monotime_now();
    struct control_epoch record = {
        .epoch = number,
        .update = update,
        .loss = epoch->loss_sum / (double)(update - (number - 1) * every),
        .timing = {.epoch_s = (double)monotime_us_between(epoch->begin, now) * 1e-6},
    };
    for (uint32_t i = 0; epoch->evaluates && i < shares_of(p); i++) {
        record.evaluation_loss += epoch->shares[i].sums.loss_sum;
        record.correct += epoch->shares[i].sums.correct;
        record.evaluated += epoch->shares[i].sums.samples;
    }
    if (record.evaluated > 0)
        record.evaluation_loss /= (double)record.evaluated;
    if (epoch->evaluates)
        record.timing.evaluation_s = (double)monotime_us_between(epoch->asked, now) * 1e-6;
    epoch->ended.version = update;
    epoch->ended.loss_sum = epoch->loss_sum;
    epoch->ended.score = (struct checkpoint_score){0};
    if (p->job->checkpoint.best && record.evaluated > 0)
        epoch->ended.score =
            (struct checkpoint_score){CHECKPOINT_ACCURACY, (double)record.correct / (double)record.evaluated};
    epoch->loss_sum = 0;
    epoch->begin = now;
    worker_record(p->worker, CONTROL_EPOCH, &record, sizeof record);
}

/* Continues an epoch's end: asks trainers that have joined since, takes answers, reports the epoch.
 * STATUS_AGAIN while answers are missing. An evaluation that failed at a trainer ends the job. */
static enum status pserver_epoch_advance(struct pserver *p, struct error *error)
{
    if (!p->epoch.open)
        return STATUS_OK;
    enum status status = p->epoch.evaluates ? epoch_evaluate(p, error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    p->epoch.open = false;
    epoch_report(p);
    return STATUS_OK;
}

static void pserver_epoch_release(struct pserver *p)
{
    for (uint32_t i = 0; i < shares_of(p); i++) {
        future_release(p->epoch.shares[i].call);
        p->epoch.shares[i].call = NULL;
    }
    p->epoch.open = false;
}

/* ---- calls: the model ---- */

/* Whether this server owns [first, first + count): trained elements, statistics, or both where they meet. */
static bool pserver_owns_range(const struct pserver *p, uint64_t first, uint64_t count)
{
    const struct shard *shard = &p->model.shard;
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
    const struct shard *shard = &p->model.shard;
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
                 [MODEL_OFFSET] = travels ? PARAMETER_SERVER_NOWHERE : slot * p->model.image_bytes,
                 [MODEL_STEP] = p->round.seat[trainer].step,
                 [MODEL_FLAGS] = flags}};
}

static enum status pserver_check_question(const struct pserver *p, const struct rpc_request *request,
                                          struct error *error)
{
    const uint64_t *args = rpc_request_message(request)->args;
    const unsigned worker = rpc_request_source(request);
    const struct pserver_seat *seat = &p->seats[worker - p->servers];
    const bool is_far = p->job->transport == JOB_TRANSPORT_SHARED && seat->travels;
    char range[RANGE_TEXT_BYTES];
    if (p->job->data.kind == JOB_DATA_CLASS && !seat->described)
        return error_set(error, STATUS_INVALID,
                         "trainer %u asks for the model: expected its data's size first", worker);
    if (args[GET_FINGERPRINT] != p->model.fingerprint)
        return error_set(error, STATUS_INVALID,
                         "trainer %u computes another model: fingerprint %016llx, expected %016llx%s", worker,
                         (unsigned long long)args[GET_FINGERPRINT], (unsigned long long)p->model.fingerprint,
                         is_far ? "; hosts with different processors or devices need /transport \"inline\""
                                : "");
    if (args[GET_COUNT] == 0 || (args[GET_COUNT] <= PARAMETER_SERVER_CHUNK_ELEMENTS_MAX &&
                                 pserver_owns_range(p, args[GET_FIRST], args[GET_COUNT])))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "trainer %u asks for %llu elements from %llu: expected at most %d within %s", worker,
                     (unsigned long long)args[GET_COUNT], (unsigned long long)args[GET_FIRST],
                     PARAMETER_SERVER_CHUNK_ELEMENTS_MAX, shard_range_text(p, range));
}

static void pserver_get_model(void *context, struct rpc_request *request, const struct rpc_message *message)
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
        answer.data[0] = server_model_image(&p->model, slot) + message->args[GET_FIRST];
    } else {
        /* A successor, or a trainer of a resumed run: it computes its step after this answer, and its push
         * then waits for the evaluation. A failure here is met again after the turn. */
        pserver_epoch_ask(p, trainer, NULL);
        round_hold(&p->round, trainer, version);
        p->models_given++;
    }
    rpc_reply(request, &answer);
}

/* ---- calls: the size of a class's data ---- */

/* The data's size is known: so are the epochs, and the job's last update. */
static enum status pserver_plan(struct pserver *p, const struct dataset_info *info, struct error *error)
{
    struct schedule schedule;
    const enum status status = schedule_of(&schedule, p->job, info, error);
    if (status != STATUS_OK)
        return status;
    p->schedule = schedule;
    p->evaluation_samples = info->evaluation;
    if (p->number == 0 && p->job->data.kind == JOB_DATA_CLASS && p->job->evaluation.has_every &&
        info->train > 0 && info->evaluation == 0)
        log_warning("%s holds nothing out: nothing is evaluated, though /evaluation/every is %llu",
                    p->job->trainers.class, (unsigned long long)p->job->evaluation.every);
    if (p->schedule.updates < p->last_version) // an order to stop may have lowered it
        p->last_version = p->schedule.updates;
    if (p->number == 0 && schedule_ends_epoch(&p->schedule, p->begin_version))
        pserver_epoch_end(p); /* a resumed run reports it again: the log knows whether it has it */
    return STATUS_OK;
}

/* Compares what a trainer says with what is known. */
static enum status data_check(const struct pserver_data *data, uint16_t worker,
                              const struct dataset_info *info, struct error *error)
{
    char said_by[32] = "the checkpoint";
    if (data->info.train == info->train && data->info.evaluation == info->evaluation)
        return STATUS_OK;
    if (data->said_by > 0)
        snprintf(said_by, sizeof said_by, "trainer %u", data->said_by);
    return error_set(
        error, STATUS_INVALID,
        "trainer %u has %llu training and %llu held-out samples: expected %llu and %llu, as %s has", worker,
        (unsigned long long)info->train, (unsigned long long)info->evaluation,
        (unsigned long long)data->info.train, (unsigned long long)data->info.evaluation, said_by);
}

/* The first trainer's numbers make the schedule; every further trainer's must be the same. */
static enum status pserver_take_data(struct pserver *p, uint16_t worker, const struct dataset_info *info,
                                     struct error *error)
{
    if (p->data.is_known)
        return data_check(&p->data, worker, info, error);
    const enum status status = pserver_plan(p, info, error);
    if (status == STATUS_OK)
        p->data = (struct pserver_data){.is_known = true, .info = *info, .said_by = worker};
    return status;
}

static void pserver_describe_data(void *context, struct rpc_request *request,
                                  const struct rpc_message *message)
{
    struct pserver *p = context;
    const uint16_t worker = rpc_request_source(request);
    struct pserver_seat *seat = &p->seats[pserver_trainer_of(p, request)];
    const struct dataset_info info = {.train = message->args[DATA_TRAIN],
                                      .evaluation = message->args[DATA_HELD_OUT]};
    struct error error;
    if (pserver_reject_when_ending(p, request))
        return;
    if (p->job->data.kind != JOB_DATA_CLASS || seat->described || info.train > PARAMETER_SERVER_SAMPLES_MAX ||
        info.evaluation > PARAMETER_SERVER_SAMPLES_MAX) {
        rpc_reject(request,
                   "trainer %u says its data's size, %llu and %llu: expected once, where /data/kind is "
                   "\"class\", numbers of at most %llu",
                   worker, (unsigned long long)info.train, (unsigned long long)info.evaluation,
                   (unsigned long long)PARAMETER_SERVER_SAMPLES_MAX);
        return;
    }
    const enum status status = pserver_take_data(p, worker, &info, &error);
    if (status != STATUS_OK) {
        rpc_fail(request, status, "%s", error.text);
        return;
    }
    seat->described = true;
    rpc_reply(request, NULL);
}

/* ---- calls: contributions in chunks ---- */

/* Memory for the chunks of all trainers; pages come with the chunks. */
static enum status pserver_open_inboxes(struct pserver *p, struct error *error)
{
    if (p->inboxes.data != NULL)
        return STATUS_OK;
    const size_t pieces = p->model.elements / PARAMETER_SERVER_PIECE_ELEMENTS;
    enum status status = image_map(&p->marks, p->trainers * pieces, "the contributions' marks", error);
    if (status == STATUS_OK)
        status = image_map(&p->inboxes, p->trainers * p->model.image_bytes, "the contributions", error);
    if (status != STATUS_OK) {
        segment_detach(&p->marks);
        return status;
    }
    for (uint32_t i = 0; i < p->trainers; i++) {
        p->seats[i].inbox.image = (float *)(void *)(p->inboxes.data + i * p->model.image_bytes);
        p->seats[i].inbox.come = p->marks.data + i * pieces;
    }
    return STATUS_OK;
}

static void inbox_empty(const struct pserver *p, struct pserver_inbox *inbox, uint64_t step)
{
    inbox->step = step;
    inbox->pieces = 0;
    if (inbox->come != NULL)
        memset(inbox->come, 0, p->model.elements / PARAMETER_SERVER_PIECE_ELEMENTS);
}

/* The number of pieces in this server's range of a contribution. */
static size_t inbox_pieces_wanted(const struct pserver *p)
{
    const struct shard *shard = &p->model.shard;
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
static void pserver_push_chunk(void *context, struct rpc_request *request, const struct rpc_message *message)
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

/* ---- calls: PUSH_PULL ---- */

/* Finds the contribution's image, and checks that it is complete. */
static enum status seat_find_image(struct pserver *p, struct pserver_seat *seat, uint64_t step,
                                   struct error *error)
{
    const struct pserver_inbox *inbox = &seat->inbox;
    if (!seat->travels) {
        enum status status = STATUS_OK;
        if (seat->outbox.data == NULL)
            status = segment_attach(&seat->outbox, seat->worker, p->model.image_bytes, error);
        seat->image = status == STATUS_OK ? segment_at(&seat->outbox, 0, p->model.image_bytes) : NULL;
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
    if (args[PUSH_BYTES] != p->model.elements * sizeof(float))
        return error_set(error, STATUS_INVALID,
                         "trainer %u, step %llu: a contribution of %llu bytes: expected %zu", worker,
                         (unsigned long long)args[PUSH_STEP], (unsigned long long)args[PUSH_BYTES],
                         p->model.elements * sizeof(float));
    if (!isfinite(*loss))
        return error_set(error, STATUS_INVALID, "trainer %u, step %llu: its loss is %g", worker,
                         (unsigned long long)args[PUSH_STEP], *loss);
    return round_check_step(&p->round, pserver_trainer_of(p, request), args[PUSH_STEP], error);
}

static void pserver_push_pull(void *context, struct rpc_request *request, const struct rpc_message *message)
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
    if (status == STATUS_OK && (p->done || p->round.version >= p->last_version)) {
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

/* Answers a trainer's PUSH_PULL with the newest model; the trainer holds that version from then on. */
static void pserver_answer(struct pserver *p, uint32_t trainer, uint64_t flags)
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

/* Answers every trainer whose contribution is late. */
static void pserver_answer_late(struct pserver *p)
{
    uint32_t trainer;
    while (round_take_late(&p->round, &trainer))
        pserver_answer(p, trainer, PULL_LATE);
}

/* Ends every PUSH_PULL with STATUS_SHUTDOWN. */
static void pserver_dismiss(struct pserver *p)
{
    for (uint32_t i = 0; i < p->trainers; i++)
        seat_end_push(&p->seats[i], STATUS_SHUTDOWN, "the job is ending");
}

/* A worker's session has ended: drops its contribution and its hold. */
static void pserver_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct pserver *p = context;
    bool trains = worker >= p->servers;
    if (why == STATUS_INVALID)
        log_warning("%s %u left: %s", trains ? "trainer" : "pserver", worker, text);
    if (!trains)
        return;
    struct pserver_seat *seat = &p->seats[worker - p->servers];
    seat->joined = seat->described = false;
    round_forget(&p->round, worker - p->servers);
    inbox_empty(p, &seat->inbox, UINT64_MAX);
    seat_end_push(seat, STATUS_PEER_DIED, "the caller's session has ended");
}

/* ---- an update ---- */

static double update_seconds_between(struct monotime from, struct monotime to)
{
    return (double)monotime_us_between(from, to) * 1e-6;
}

/* From the first member's contribution to the last one's. */
static double update_gathered_s(const struct pserver *p)
{
    struct monotime first = MONOTIME_NEVER, last = {0};
    for (uint32_t m = 0; m < p->member_count; m++) {
        struct monotime arrived = p->seats[p->members[m]].arrived;
        first = monotime_earliest(first, arrived);
        last = monotime_before(last, arrived) ? arrived : last;
    }
    return update_seconds_between(first, last);
}

/* The members' gradients; of one that travels as bfloat16 the parameters have 2 bytes each. */
static uint64_t update_gradient_bytes(const struct pserver *p)
{
    const bool is_rounded = p->job->precision == JOB_PRECISION_BFLOAT16;
    uint64_t bytes = 0;
    for (uint32_t m = 0; m < p->member_count; m++) {
        bytes += p->model.elements * sizeof(float);
        if (is_rounded && p->seats[p->members[m]].travels)
            bytes -= p->model.parameters * (sizeof(float) - sizeof(uint16_t));
    }
    return bytes;
}

/* `begin`: when the update began. */
static void update_report(struct pserver *p, struct monotime begin)
{
    const struct monotime end = monotime_now();
    const uint64_t version = p->round.version, late = p->round.late;
    static struct control_update record; /* 2 KiB: one thread reports */
    record = (struct control_update){
        .update = version,
        .lr = schedule_lr(&p->schedule, version),
        .samples = (uint64_t)p->member_count * p->job->trainers.batch,
        .late = late - p->late_reported,
        .trainers = p->trainers,
        .is_last = version == p->schedule.updates,
        .timing = {.round_s = update_seconds_between(p->last_update, end),
                   .wait_s = update_gathered_s(p),
                   .update_s = update_seconds_between(begin, end),
                   .bytes = update_gradient_bytes(p) + p->models_given * p->model.elements * sizeof(float)},
    };
    for (uint32_t i = 0; i < p->trainers; i++)
        record.losses[i] = NAN;
    memset(record.staleness, -1, sizeof record.staleness);
    for (uint32_t m = 0; m < p->member_count; m++) {
        const uint64_t behind = version - 1 - p->round.seat[p->members[m]].base;
        record.staleness[p->members[m]] = (int16_t)(behind < INT16_MAX ? behind : INT16_MAX);
        record.losses[p->members[m]] = p->seats[p->members[m]].loss;
        record.loss += p->seats[p->members[m]].loss;
    }
    record.loss /= p->member_count;
    p->worker->work++;
    p->epoch.loss_sum += record.loss;
    p->late_reported = late;
    p->models_given = 0;
    p->last_update = end;
    if (p->number != 0)
        return;
    worker_record(p->worker, CONTROL_UPDATE, &record, sizeof record);
    worker_keep_place(p->worker); /* a checkpoint of this version: a resumed run ends its epoch again */
}

/* A contribution of the update is not finite: it leaves the round, and its sender loses its session. */
static void pserver_expel(struct pserver *p, const struct server_update *update)
{
    const uint32_t trainer = p->members[update->bad];
    struct pserver_seat *seat = &p->seats[trainer];
    struct rpc_request *push = seat->push;
    const uint64_t step = p->round.seat[trainer].step;
    round_withdraw(&p->round, trainer);
    seat->push = NULL;
    if (push != NULL)
        rpc_reject(push, "trainer %u, step %llu: its %s of %s is not finite", seat->worker,
                   (unsigned long long)step, update->what, update->entry);
}

/* Makes the next version from the members' contributions, into `slot`, and reports it. STATUS_AGAIN: a
 * contribution was not finite; its sender's session has ended, and nothing else has changed. */
static enum status pserver_update(struct pserver *p, uint32_t slot, struct error *error)
{
    const struct monotime begin = monotime_now();
    const enum profile_kind before = profile_enter(PROFILE_UPDATE);
    struct server_update update = {.version = p->round.version,
                                   .from = p->round.newest,
                                   .to = slot,
                                   .lr = schedule_lr(&p->schedule, p->round.version + 1),
                                   .count = p->member_count};
    for (uint32_t m = 0; m < p->member_count; m++)
        update.images[m] = p->seats[p->members[m]].image;
    const enum status status = server_model_update(&p->model, &update, error);
    profile_leave(before);
    if (status == STATUS_AGAIN)
        pserver_expel(p, &update);
    if (status != STATUS_OK)
        return status;
    round_advance(&p->round, slot, p->members, p->member_count);
    update_report(p, begin);
    return STATUS_OK;
}

/* ---- checkpoints ----
 * Server 0 begins a checkpoint at a round's boundary, and asks the other servers to write their shards. Each
 * of them first waits for the version to save. That version stays as it is: server 0 makes no update
 * meanwhile, and a server that writes its shard makes none either. */

/* Places the model on a version that still lies in a slot. */
static void pserver_place(struct pserver *p, uint64_t version)
{
    uint32_t slot = 0;
    bool lies = round_slot_of(&p->round, version, &slot);
    assert(lies);
    (void)lies;
    server_model_place(&p->model, version, slot);
}

/* The newest version's evaluation has ended, or there is none; then the epoch's line is reported, too. */
static bool pserver_has_ended_epoch(const struct pserver *p)
{
    return p->epoch.ended.version == p->round.version;
}

/* Whether the newest version is to be saved now. Without /checkpoint/best, a version is saved before its
 * members are answered. With it, a version that is evaluated is saved after its evaluation, and one that the
 * clock makes due may be saved after its members were answered. */
static bool pserver_checkpoint_due(const struct pserver *p)
{
    const uint64_t version = p->round.version;
    const bool evaluates = p->number == 0 && p->job->checkpoint.best &&
                           schedule_ends_epoch(&p->schedule, version) &&
                           schedule_evaluates(&p->schedule, version);
    if (version == p->saver.saved || (evaluates && !pserver_has_ended_epoch(p)))
        return false;
    return checkpoint_saver_due(&p->saver, version, version >= p->last_version || p->worker->save) ||
           (evaluates && checkpoint_saver_improves(&p->saver, &p->epoch.ended.score));
}

static void pserver_checkpoint_begin(struct pserver *p)
{
    const uint64_t version = p->round.version;
    struct checkpoint_saving saving = {.counters = {.update = version,
                                                    .trainers = p->trainers,
                                                    .late = p->late_before + p->round.late,
                                                    .train = p->data.info.train,
                                                    .held_out = p->data.info.evaluation,
                                                    .epoch_loss = p->epoch.loss_sum},
                                       .values = server_model_values(&p->model),
                                       .asked = p->worker->save,
                                       .competes = true};
    if (pserver_has_ended_epoch(p)) { /* a resumed run ends the epoch again */
        saving.counters.epoch_loss = p->epoch.ended.loss_sum;
        saving.counters.score = p->epoch.ended.score;
    }
    for (uint32_t i = 0; i < p->trainers; i++)
        saving.counters.steps[i] = p->round.seat[i].step;
    pserver_place(p, version);
    p->worker->save = false;
    checkpoint_saver_begin(&p->saver, &saving);
}

static void pserver_release_shard_calls(struct pserver *p)
{
    for (uint32_t i = 0; i < JOB_SERVERS_MAX; i++) {
        future_release(p->shard_calls[i]);
        p->shard_calls[i] = NULL;
    }
}

/* Has the other servers write their shards: asks each once, then waits for all. */
static enum status pserver_gather_shards(struct pserver *p, struct error *error)
{
    const uint64_t version = p->saver.saving.counters.update;
    const struct rpc_message message = {.args = {[SAVE_VERSION] = version}};
    enum status status = STATUS_OK;
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++)
        if (p->shard_calls[i] == NULL)
            status = rpc_call_async(p->rpc, (uint16_t)i, METHOD_SAVE_SHARD, &message, MONOTIME_NEVER,
                                    &p->shard_calls[i], error);
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++)
        status = future_done(p->shard_calls[i]) ? STATUS_OK : STATUS_AGAIN;
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++) {
        status = future_status(p->shard_calls[i]);
        if (status != STATUS_OK)
            error_set(error, status, "pserver %u, checkpoint %llu: %s", i, (unsigned long long)version,
                      future_text(p->shard_calls[i]));
    }
    if (status != STATUS_AGAIN)
        pserver_release_shard_calls(p);
    return status;
}

/* The version to save is this server's newest; or the version before it, when trainers went on while server 0
 * stopped (its slot and its velocity's buffer are still unchanged); or the version that the running round
 * makes. */
static void pserver_save_shard(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct pserver *p = context;
    const struct checkpoint_saving *running = &p->saver.saving;
    const uint64_t version = message->args[SAVE_VERSION], newest = p->round.version;
    uint32_t slot;
    if (rpc_request_source(request) != 0 || p->number == 0) {
        rpc_reject(request, "pserver %u asks for a shard of a checkpoint: expected pserver 0 to",
                   rpc_request_source(request));
    } else if (p->shard_request != NULL) {
        rpc_fail(request, STATUS_BUSY, "version %llu is being saved",
                 (unsigned long long)running->counters.update);
    } else if (version == 0 || (version != newest + 1 && !round_slot_of(&p->round, version, &slot))) {
        rpc_fail(request, STATUS_NOT_FOUND, "version %llu is not here: the newest is %llu",
                 (unsigned long long)version, (unsigned long long)newest);
    } else {
        const struct checkpoint_saving saving = {.counters.update = version,
                                                 .values = server_model_values(&p->model)};
        p->shard_request = request;
        checkpoint_saver_begin(&p->saver, &saving);
    }
}

/* Waits for the version to save, then places the params on it. */
static enum status pserver_gather_version(struct pserver *p)
{
    const uint64_t version = p->saver.saving.counters.update;
    uint32_t slot;
    if (!round_slot_of(&p->round, version, &slot))
        return STATUS_AGAIN;
    pserver_place(p, version);
    return STATUS_OK;
}

/* Goes on with the shard beside the rounds, and answers server 0, which decides what a failure means. */
static void pserver_advance_shard(struct pserver *p)
{
    struct rpc_request *request = p->shard_request;
    struct error why = {0};
    const enum status status = checkpoint_saver_advance(&p->saver, NULL, &why);
    if (status == STATUS_AGAIN || request == NULL)
        return;
    p->shard_request = NULL;
    if (status == STATUS_OK)
        rpc_reply(request, NULL);
    else
        rpc_fail(request, status, "%s", why.text);
}

static enum status pserver_gather(void *context, struct error *error)
{
    struct pserver *p = context;
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    const enum status status = p->number == 0 ? pserver_gather_shards(p, error) : pserver_gather_version(p);
    profile_leave(before);
    return status;
}

/* Goes on with the checkpoint. STATUS_AGAIN: server 0 is still saving a version. A server above 0 reports a
 * failure to server 0 alone. */
static enum status pserver_checkpoint_advance(struct pserver *p, struct error *error)
{
    if (p->number == 0)
        return checkpoint_saver_advance(&p->saver, worker_kept_place(p->worker), error);
    pserver_advance_shard(p);
    return STATUS_OK;
}

static enum status pserver_checkpoint_open(struct pserver *p, struct error *error)
{
    const struct checkpoint_saver_config config = {.run_dir = worker_run_dir(p->worker),
                                                   .job = p->job,
                                                   .rpc = p->rpc,
                                                   .publishes = p->number == 0,
                                                   .saved = p->begin_version,
                                                   .again = worker_goes_on(p->worker),
                                                   .gather = pserver_gather,
                                                   .context = p,
                                                   .published = worker_report_saved};
    return checkpoint_saver_open(&p->saver, &config, error);
}

static void pserver_checkpoint_close(struct pserver *p)
{
    checkpoint_saver_close(&p->saver);
    pserver_release_shard_calls(p);
}

/* ---- the round ---- */

/* Makes the next version if a round is full, a slot is free, and no shard is being written. */
static enum status pserver_try_update(struct pserver *p, struct error *error)
{
    uint32_t slot;
    p->member_count = round_members(&p->round, p->members);
    if (p->member_count == 0 || !round_free_slot(&p->round, &slot) || p->saver.state == CHECKPOINT_WRITING ||
        worker_logs_lag(p->worker, 1)) {
        p->member_count = 0;
        return STATUS_AGAIN;
    }
    enum status status = pserver_update(p, slot, error);
    if (status != STATUS_OK)
        p->member_count = 0;
    return status;
}

/* The round is complete, and saved if a checkpoint was due: ends the epoch if this version ends one, and
 * answers the members. A trainer computes its next step as soon as it is answered, so the evaluation is asked
 * for first. */
static enum status pserver_complete_round(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    if (p->number == 0 && schedule_ends_epoch(&p->schedule, p->round.version)) {
        pserver_epoch_end(p);
        status = pserver_epoch_advance(p, error);
    }
    for (uint32_t m = 0; m < p->member_count; m++)
        pserver_answer(p, p->members[m], 0);
    p->member_count = 0;
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

/* After an order to stop, the running round is the last; without a contribution there is no running round. */
static void pserver_obey_drain(struct pserver *p)
{
    if (!p->worker->drain || p->draining || p->number != 0)
        return;
    p->draining = true;
    const uint64_t last = p->round.version + (round_waiting(&p->round) > 0);
    if (last < p->last_version)
        p->last_version = last;
}

/* Ends without a further round or checkpoint: answers every trainer, and waits only for the log. */
static void pserver_give_up(struct pserver *p)
{
    pserver_dismiss(p);
    pserver_epoch_release(p);
    p->member_count = 0;
    p->end = CONTROL_END_STOPPED;
    p->done = true;
    p->over = p->number > 0;
}

/* Takes the round one step further. STATUS_AGAIN: something else has to come first. */
static enum status pserver_continue_round(struct pserver *p, struct error *error)
{
    enum status status = pserver_checkpoint_advance(p, error);
    if (status != STATUS_OK)
        return status;
    if (p->member_count > 0)
        return pserver_complete_round(p, error);
    const bool ended = p->number == 0 && p->round.version >= p->last_version;
    status = pserver_epoch_advance(p, error);
    const bool saves_first = p->job->checkpoint.best && pserver_checkpoint_due(p);
    if (status == STATUS_OK && !ended && !saves_first)
        status = pserver_try_update(p, error);
    if (status != STATUS_OK)
        return status;
    if (pserver_checkpoint_due(p)) {
        pserver_checkpoint_begin(p);
        return STATUS_OK;
    }
    if (!ended)
        return pserver_complete_round(p, error);
    p->end = p->round.version >= p->schedule.updates ? CONTROL_END_FINISHED : CONTROL_END_STOPPED;
    p->done = true;
    return STATUS_OK;
}

/* Server 0: reports the job's end when the log has the last update. */
static void pserver_finish(struct pserver *p)
{
    const struct control_finished finished = {.end = p->end};
    if (p->over || worker_logs_lag(p->worker, 0))
        return;
    worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    p->over = true;
}

/* Goes on until something has to come first. */
static enum status pserver_advance(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    if ((p->worker->hurry || p->worker->leave) && !p->done)
        pserver_give_up(p);
    pserver_obey_drain(p);
    while (status == STATUS_OK && !p->done) {
        pserver_answer_late(p);
        status = pserver_continue_round(p, error);
    }
    if (p->done)
        pserver_finish(p);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

/* ---- opening and closing ---- */

/* The checkpoint's trainers go on with their own next steps. One that it does not know was added to the job:
 * it begins where the foremost of them is. */
static void pserver_fit_steps(const struct pserver *p, struct checkpoint_counters *counters)
{
    uint64_t foremost = 0;
    for (uint32_t i = 0; i < counters->trainers; i++)
        foremost = counters->steps[i] > foremost ? counters->steps[i] : foremost;
    for (uint32_t i = counters->trainers; i < p->trainers; i++)
        counters->steps[i] = foremost;
}

/* The job's first counters: zero, or those of a checkpoint that the supervisor has checked. Its trainers are
 * those of the job file, and perhaps some that were added. */
static enum status pserver_read_counters(struct pserver *p, struct checkpoint_counters *counters,
                                         struct error *error)
{
    *counters = (struct checkpoint_counters){.trainers = p->trainers};
    if (!worker_resumes(p->worker))
        return STATUS_OK;
    const struct path resume = worker_resume_path(p->worker);
    const enum status status = checkpoint_facts(resume, counters, NULL, error);
    if (status == STATUS_OK && counters->trainers < p->job->trainers.count)
        return error_set(error, STATUS_INVALID, "%.300s comes from a job with %u trainers: expected %u",
                         resume.text, counters->trainers, p->job->trainers.count);
    if (status != STATUS_OK)
        return status;
    pserver_fit_steps(p, counters);
    p->data = (struct pserver_data){.is_known = p->job->data.kind == JOB_DATA_CLASS,
                                    .info = {.train = counters->train, .evaluation = counters->held_out}};
    return STATUS_OK;
}

static enum status pserver_open_round(struct pserver *p, struct error *error)
{
    struct dataset_info info;
    struct checkpoint_counters counters;
    enum status status = dataset_probe(&info, p->job, error);
    if (status == STATUS_OK)
        status = pserver_read_counters(p, &counters, error);
    if (status != STATUS_OK)
        return status;
    p->schedule.updates = p->last_version = UINT64_MAX;
    p->begin_version = counters.update;
    p->late_before = counters.late;
    p->epoch.loss_sum = counters.epoch_loss;
    round_open(&p->round, p->job, counters.update, counters.steps);
    if (p->data.is_known || p->job->data.kind != JOB_DATA_CLASS)
        status = pserver_plan(p, p->data.is_known ? &p->data.info : &info, error);
    if (status != STATUS_OK)
        return status;
    return server_model_open_slots(&p->model, p->round.slots, error);
}

static const struct rpc_method methods[] = {
    {.method = METHOD_DESCRIBE_DATA, .callers = WIRE_ROLE_TRAINER, .handler = pserver_describe_data},
    {.method = METHOD_GET_MODEL, .callers = WIRE_ROLE_TRAINER, .handler = pserver_get_model},
    {.method = METHOD_PUSH_PULL, .callers = WIRE_ROLE_TRAINER, .handler = pserver_push_pull},
    {.method = METHOD_SAVE_SHARD, .callers = WIRE_ROLE_PSERVER, .handler = pserver_save_shard},
};

/* One of them, by /transport/precision. With bfloat16, chunks come in either type: the handler looks. */
static const struct rpc_method float32_chunks[] = {
    {.method = METHOD_PUSH_CHUNK,
     .callers = WIRE_ROLE_TRAINER,
     .dtype = WIRE_F32,
     .elements_max = PARAMETER_SERVER_CHUNK_ELEMENTS_MAX,
     .handler = pserver_push_chunk},
};
static const struct rpc_method bfloat16_chunks[] = {
    {.method = METHOD_PUSH_CHUNK,
     .callers = WIRE_ROLE_TRAINER,
     .any_tensors = true,
     .handler = pserver_push_chunk},
};

static void pserver_joined(void *context, uint16_t worker)
{
    struct pserver *p = context;
    if (worker < p->servers)
        return;
    struct pserver_seat *seat = &p->seats[worker - p->servers];
    seat->joined = true;
    seat->travels = image_travels(p->job, p->rpc, worker);
}

static enum status pserver_open_sessions(struct pserver *p, struct error *error)
{
    const uint32_t workers = p->servers + p->trainers;
    const struct rpc_config config = {.pending_max = workers,
                                      .incoming_max = 2 * workers + 16,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = p,
                                      .joined = pserver_joined,
                                      .left = pserver_left};
    const bool is_rounded = p->job->precision == JOB_PRECISION_BFLOAT16;
    const enum status status = worker_open_rpc(p->worker, &config, &p->rpc, error);
    if (status != STATUS_OK)
        return status;
    rpc_add_methods(p->rpc, is_rounded ? bfloat16_chunks : float32_chunks, 1, p);
    return worker_connect(p->worker, p->rpc, error);
}

/* Opens the model at its first version, the sockets, and the sessions with the other servers. Waits for
 * CONTROL_CONNECT above server 0. */
static enum status pserver_open(struct pserver *p, struct worker *worker, struct error *error)
{
    p->worker = worker;
    p->job = &worker->job;
    p->number = worker->self.worker;
    p->servers = p->job->server.count;
    p->trainers = job_trainers(p->job);
    for (uint32_t i = 0; i < p->trainers; i++)
        p->seats[i] = (struct pserver_seat){.worker = (uint16_t)(p->servers + i), .inbox.step = UINT64_MAX};
    enum status status = server_model_open(&p->model, worker, error);
    if (status == STATUS_OK)
        status = pserver_open_round(p, error);
    worker_beat(worker);
    if (status == STATUS_OK)
        status = server_model_fill(&p->model, p->begin_version, p->round.newest, error);
    worker_beat(worker);
    if (status == STATUS_OK)
        status = pserver_open_sessions(p, error);
    if (status == STATUS_OK)
        status = pserver_checkpoint_open(p, error);
    if (status != STATUS_OK)
        return status;
    p->epoch.begin = p->last_update = monotime_now();
    return worker_attach(worker, p->rpc);
}

static void pserver_close(struct pserver *p, const char *why)
{
    enum { LINGER_MS = 200 };
    pserver_checkpoint_close(p);
    pserver_epoch_release(p);
    rpc_free(p->rpc, why, LINGER_MS);
    p->worker->rpc = NULL;
    for (uint32_t i = 0; i < p->trainers; i++)
        segment_detach(&p->seats[i].outbox);
    segment_detach(&p->inboxes);
    segment_detach(&p->marks);
    server_model_close(&p->model);
}

/* ---- the role ---- */

enum status pserver_run(struct worker *worker, struct error *error)
{
    static struct pserver pserver; /* too much for a stack; one to a process */
    enum status status = pserver_open(&pserver, worker, error);
    if (status == STATUS_OK && !worker->leave)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && (!worker->leave || checkpoint_saver_busy(&pserver.saver))) {
        status = pserver_advance(&pserver, error);
        if (status != STATUS_OK)
            break;
        worker->queue = round_waiting(&pserver.round);
        status = rpc_turn(pserver.rpc, MONOTIME_NEVER);
        if (status == STATUS_PEER_DIED)
            status = STATUS_OK; /* another pserver's end is the supervisor's to act on */
        if (status != STATUS_OK)
            error_set(error, status, "the socket of pserver %u failed", pserver.number);
    }
    pserver_close(&pserver, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
