/* The role `trainer` in a model-parallel job: iterations, with the ends of epochs and checkpoints between
 * them. At the end every reference is released before any worker leaves. The process's first thread, beside
 * the math library's. The lead has one more while it writes a checkpoint.
 *
 * ---- The lead and the others ----
 * The first trainer is the lead. It makes the layers and the optimizer, and gives the other trainers
 * references to them. Each other trainer gives the lead a reference to itself. Through it the lead asks for
 * the trainer's hidden state, sends the next epoch's learning rate, and tells the trainer to leave. With the
 * round `all` trainers go in step: a step of the optimizer ends for all at once. With `async` each trainer
 * goes on by itself until the lead ends.
 *
 * An update in the log is an iteration of the lead, and its loss is the lead's own. The others' losses are
 * not sent. */
#include "kernels/base/profile.h"
#include "worker/checkpoint/checkpoint_saver.h"
#include "worker/device.h"
#include "worker/model_parallel/layer.h"
#include "worker/model_parallel/parallel.h"
#include "worker/model_parallel/parallel_values.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tags of the references that the lead shares: a layer's number, or this. The decoder's is sent last. */
enum { TAG_OPTIMIZER = JOB_LAYERS };

/* A question of the lead's that waits for its answer. */
enum parallel_question_kind { PARALLEL_ASKED_STATE, PARALLEL_ASKED_HOLDINGS, PARALLEL_ASKED_TO_LEAVE };
struct parallel_question {
    enum parallel_question_kind kind;
    uint64_t from; /* the iteration (STATE) or the epoch (HOLDINGS) from which on it can be answered */
    struct rpc_request *request; /* NULL: none */
};

/* What the LSTM carries from one iteration to the next: h and c, (layers, batch, hidden) each. They enter the
 * LSTM's call as plain values, and the new ones are copied out. So the graph of an iteration ends there. */
struct hidden_state {
    size_t count;           /* elements of h */
    float *h, *c;           /* before the next iteration */
    float *h_next, *c_next; /* after it */
};

/* The learning rate, and the lowest held-out loss so far (INFINITY: none). */
struct plateau {
    double lr, best_loss;
};

struct parallel_trainer {
    struct parallel base;
    const struct job *job;
    uint32_t number, trainers; /* which of the job's trainers this is; 0 leads */
    struct parallel_data data;

    struct backend *backend; /* of the loss */
    struct tape *tape;
    struct rref *layers[JOB_LAYERS];
    struct dist_optimizer *optimizer;
    struct rref *parameters[JOB_LAYERS * DIST_PARAMETERS_MAX]; /* the lead's, in the whole model's order */
    uint32_t parameter_count;
    struct rref
        *locals[DIST_PARAMETERS_MAX]; /* not the lead's: local optimizers, until dist_optimizer_join */
    uint32_t local_count;

    /* ---- progress ---- */
    uint64_t iteration; /* iterations done */
    bool last;          /* no iteration follows */
    bool epoch_open;    /* an epoch has ended; its evaluation, line and rate are still to come */
    bool in_iteration;  /* a step may be on its way to the optimizer */
    bool is_paused;     /* no iteration begins until the lead has read the values of a checkpoint */
    bool over;          /* has released everything; waits for the order to leave */
    struct plateau plateau;
    double epoch_loss, line_loss; /* sums over the iterations of the running epoch, and since the last line */
    struct hidden_state hidden;
    int32_t *tokens, *targets;

    /* ---- for the records: the lead's ---- */
    uint64_t begun;                          /* `iteration` at the start of this process */
    struct monotime line_begin, epoch_begin; /* the time between two epochs counts for neither */
    struct parallel_values values;
    struct checkpoint_saver saver;

    /* ---- other trainers ---- */
    struct rref *peers[JOB_TRAINERS_MAX]; /* the lead's references to trainer i */
    uint32_t peer_count;
    uint64_t told_epoch;    /* not the lead's: the newest epoch for which the lead has sent the next rate */
    uint64_t flushed_epoch; /* not the lead's: the newest epoch after which peer_flush has run */
    struct parallel_question asked; /* not the lead's */
};

static bool parallel_trainer_leads(const struct parallel_trainer *t)
{
    return t->number == 0;
}

/* True: the job is ending, and no more work is wanted. */
static bool parallel_trainer_ending(const struct parallel_trainer *t)
{
    return t->base.worker->leave || t->base.worker->hurry;
}

enum peer_function { PEER_STATE, PEER_RESUME, PEER_RATE, PEER_LEAVE, PEER_FUNCTIONS };

/* Words of a question: args[0] and args[1] belong to rref. */
enum { ASKED_ITERATION = 2, RATE_EPOCH = 2, RATE_LR = 3 };
enum { STATE_ITERATION = 2 }; /* of the answer with h and c */

static bool peers_in_step(const struct parallel_trainer *t)
{
    return t->job->server.round.name == JOB_ROUND_ALL;
}

/* ---- questions between trainers: the others answer, between two iterations ---- */

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

/* Not the lead's: answers the lead's question if it can be answered now. */
static void peer_answer(struct parallel_trainer *t)
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
    peer_answer(t);
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

/* The member asked_holdings of struct parallel. */
static void peer_asked_holdings(struct parallel *parallel, uint64_t epoch, struct rpc_request *request)
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

static rref_function *const peer_functions[PEER_FUNCTIONS] = {
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

const struct rref_class parallel_trainer_class = {.name = "trainer",
                                                  .destroy = peer_destroy,
                                                  .functions = peer_functions,
                                                  .function_count = PEER_FUNCTIONS};

/* ---- waiting, and following the lead ---- */

/* One turn of the rpc, and answers to the lead's questions. STATUS_SHUTDOWN: the job is ending. */
static enum status peer_wait(struct parallel_trainer *t, struct error *error)
{
    if (parallel_trainer_ending(t))
        return error_set(error, STATUS_SHUTDOWN, "the job is ending");
    const enum status status = parallel_turn(&t->base, MONOTIME_NEVER, error);
    peer_answer(t);
    return status;
}

/* Echoes every worker `turns` times, so that all earlier messages have arrived. A trainer other than the lead
 * echoes only the servers and the lead. */
static enum status peer_flush(struct parallel_trainer *t, uint32_t turns, struct error *error)
{
    const uint32_t end =
        parallel_trainer_leads(t) ? roster_workers(&t->base.roster) : t->base.roster.lead + 1u;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < turns * end && status == STATUS_OK; i++)
        status = rpc_call(t->base.rpc, (uint16_t)(i % end), METHOD_ECHO, NULL, MONOTIME_NEVER, NULL, error);
    return status;
}

/* Not the lead's, in step, at the end of epoch `epoch`: reports this trainer's holdings when the lead asks,
 * and waits for the rate. This trainer's releases reach the owners before the lead asks for their holdings.
 * The lead sends a rate after the last step, too. */
static enum status peer_follow(struct parallel_trainer *t, uint64_t epoch, struct error *error)
{
    if (!peers_in_step(t))
        return STATUS_OK;
    enum status status = peer_flush(t, 1, error);
    t->flushed_epoch = epoch;
    peer_answer(t);
    while (status == STATUS_OK && t->told_epoch < epoch)
        status = peer_wait(t, error);
    return status;
}

static enum status peer_introduce(struct parallel_trainer *t, struct error *error)
{
    struct rref *self;
    enum status status = rref_own(t->base.rrefs, &parallel_trainer_class, t, &self, error);
    if (status != STATUS_OK)
        return status;
    status = rref_give(self, t->base.roster.lead, t->number, error);
    rref_release(self);
    return status;
}

/* ---- questions between trainers: the lead asks ---- */

static enum status peer_ask_all(struct parallel_trainer *t, enum peer_function function,
                                const struct rpc_message *message, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++)
        status = rref_ask(t->peers[i], function, message, NULL, error);
    return status;
}

/* Fetches the hidden state of trainer `number` (h and c, (layers, batch, hidden) each) and its iteration.
 * With `all` that iteration equals the lead's. With `async` the trainer answers between two iterations,
 * and pauses there until peer_resume. Once every trainer has answered, no step is on its way to any owner,
 * and the parameters, the momentum and the states do not change. */
static enum status peer_state(struct parallel_trainer *t, uint32_t number, float *h, float *c,
                              uint64_t *iteration, struct error *error)
{
    const size_t bytes = t->hidden.count * sizeof *h;
    const struct rpc_message question = {.args = {[ASKED_ITERATION] = t->iteration}};
    struct future *call;
    enum status status = rref_ask(t->peers[number], PEER_STATE, &question, &call, error);
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

/* All workers, the lead included, report their holdings at the end of epoch `epoch` to the supervisor (with
 * `async`: now). Servers come last: the other trainers' releases have reached them by then. */
static enum status peer_holdings(struct parallel_trainer *t, uint64_t epoch, struct error *error)
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

/* Sends all others the rate that follows epoch `epoch`. */
static enum status peer_rate(struct parallel_trainer *t, uint64_t epoch, struct error *error)
{
    struct rpc_message message = {.args = {[RATE_EPOCH] = epoch}};
    memcpy(&message.args[RATE_LR], &t->plateau.lr, sizeof t->plateau.lr);
    return peer_ask_all(t, PEER_RATE, &message, error);
}

/* All others begin their next iterations. */
static enum status peer_resume(struct parallel_trainer *t, struct error *error)
{
    return peers_in_step(t) ? STATUS_OK : peer_ask_all(t, PEER_RESUME, NULL, error);
}

/* ---- resuming ---- */

/* Copies this trainer's hidden state into the checkpoint's values (`saves`), or out of them. */
static void hidden_state_copy(struct parallel_trainer *t, bool saves)
{
    const size_t bytes = t->hidden.count * sizeof *t->hidden.h;
    float *h, *c;
    parallel_values_state(&t->values, t->number, &h, &c);
    memcpy(saves ? h : t->hidden.h, saves ? t->hidden.h : h, bytes);
    memcpy(saves ? c : t->hidden.c, saves ? t->hidden.c : c, bytes);
}

/* In a run that resumes: this trainer's counters and hidden state from the checkpoint. STATUS_INVALID: the
 * checkpoint is of another number of trainers, or of another text. */
static enum status parallel_resume(struct parallel_trainer *t, struct error *error)
{
    struct checkpoint_counters counters;
    struct checkpoint_text text;
    if (!worker_resumes(t->base.worker))
        return STATUS_OK;
    const struct path path = worker_resume_path(t->base.worker);
    enum status status = checkpoint_facts(path, &counters, &text, error);
    if (status != STATUS_OK)
        return status;
    if (counters.trainers != t->trainers)
        return error_set(error, STATUS_INVALID, "%.300s comes from a job with %u trainers: expected %u",
                         path.text, counters.trainers, t->trainers);
    t->iteration = counters.steps[t->number];
    t->epoch_loss = counters.epoch_loss;
    t->line_loss = counters.line_loss;
    t->plateau = (struct plateau){.lr = counters.lr, .best_loss = counters.best_loss};
    status = parallel_values_resume(&t->values, &t->data, path, &text, error);
    if (status == STATUS_OK)
        hidden_state_copy(t, false);
    return status;
}

/* The lead's: sends the values read from a file to their owners. Waits. */
static enum status lead_send_values(struct parallel_trainer *t, struct error *error)
{
    assert(t->parameter_count == params_count(t->values.whole.params));
    const bool resumes = worker_resumes(t->base.worker);
    if (!parallel_values_come_from_file(t->base.worker))
        return STATUS_OK;
    enum status status = parallel_values_move(&t->values, true, resumes, t->base.dist, t->parameters, error);
    return status == STATUS_OK && resumes ? dist_optimizer_steps_set(t->optimizer, t->iteration, error)
                                          : status;
}

static uint64_t epoch_number(const struct parallel_trainer *t)
{
    return (t->iteration + t->data.epoch_updates - 1) / t->data.epoch_updates;
}

/* Whether the epoch that this iteration ends is evaluated. The job's last update is, if the job asks for any
 * evaluation. */
static bool parallel_trainer_evaluates(const struct parallel_trainer *t)
{
    const struct job *job = t->job;
    return job->evaluation.has_every && t->data.held_out_batches > 0 &&
           (epoch_number(t) % job->evaluation.every == 0 || t->iteration >= t->data.updates);
}

/* ---- checkpoints: the lead gathers values and states ----
 * A checkpoint is taken after an iteration and before the changes at an epoch's end, so that a resumed run
 * makes these changes itself. With /checkpoint/best it waits for the epoch's evaluation. Its place in the
 * logs is behind the last line that was reported before it. A saver writes it while the loop goes on. */

/* steps[i]: trainer i's iteration. */
static enum status checkpoint_fetch_states(struct parallel_trainer *t, uint64_t steps[], struct error *error)
{
    enum status status = STATUS_OK;
    steps[0] = t->iteration;
    hidden_state_copy(t, true);
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++) {
        float *h, *c;
        parallel_values_state(&t->values, i, &h, &c);
        status = peer_state(t, i, h, c, &steps[i], error);
    }
    return status;
}

/* ---- checkpoints: the saver ---- */

/* Goes on with the running checkpoint. STATUS_AGAIN while there is one. */
static enum status parallel_checkpoint_advance(struct parallel_trainer *t, struct error *error)
{
    return checkpoint_saver_advance(&t->saver, worker_kept_place(t->base.worker), error);
}

/* Turns until no checkpoint is being taken. */
static enum status parallel_checkpoint_wait(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_checkpoint_advance(t, error);
    while (status == STATUS_AGAIN) {
        status = peer_wait(t, error);
        if (status == STATUS_OK)
            status = parallel_checkpoint_advance(t, error);
    }
    return status;
}

/* Gathers all values and begins to write them. */
static enum status checkpoint_begin_scored(struct parallel_trainer *t, struct checkpoint_score score,
                                           struct error *error)
{
    struct parallel_values *values = &t->values;
    enum status status = parallel_checkpoint_wait(t, error);
    if (status != STATUS_OK)
        return status;
    struct checkpoint_saving saving = {
        .counters = {.update = t->iteration,
                     .trainers = t->trainers,
                     .epoch_loss = t->epoch_loss,
                     .line_loss = t->line_loss,
                     .lr = t->plateau.lr,
                     .best_loss = t->plateau.best_loss,
                     .score = score},
        .values = {.params = values->whole.params, .momentum = values->whole.momentum},
        .extra = &values->extra,
        .asked = t->base.worker->save,
        .competes = true};
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    status =
        checkpoint_fetch_states(t, saving.counters.steps, error); // first: with `async` it pauses the others
    if (status == STATUS_OK)
        status = parallel_values_move(values, false, true, t->base.dist, t->parameters, error);
    profile_leave(before);
    if (status == STATUS_OK)
        status = peer_resume(t, error);
    if (status != STATUS_OK)
        return status;
    worker_keep_place(t->base.worker);
    t->base.worker->save = false;
    checkpoint_saver_begin(&t->saver, &saving);
    return saving.asked ? parallel_checkpoint_wait(t, error) : STATUS_OK;
}

static bool checkpoint_is_due(const struct parallel_trainer *t)
{
    return checkpoint_saver_due(&t->saver, t->iteration, t->last || t->base.worker->save);
}

/* If a checkpoint is due: gathers all values and begins to write them. Waits, also for the checkpoint before.
 * With /checkpoint/best, parallel_checkpoint_begin_evaluated does this after an iteration that ends an
 * evaluated epoch, also if the loss is the lowest so far. The lead's, before plateau_see. */
static enum status parallel_checkpoint_begin(struct parallel_trainer *t, struct error *error)
{
    const struct checkpoint_score unmeasured = {0};
    const bool waits = t->job->checkpoint.best && t->epoch_open && parallel_trainer_evaluates(t);
    if (!parallel_trainer_leads(t) || waits || !checkpoint_is_due(t))
        return STATUS_OK;
    return checkpoint_begin_scored(t, unmeasured, error);
}

static enum status parallel_checkpoint_begin_evaluated(struct parallel_trainer *t, double held_out_loss,
                                                       struct error *error)
{
    const int measure = isfinite(held_out_loss) ? CHECKPOINT_HELD_OUT_LOSS : CHECKPOINT_UNMEASURED;
    const struct checkpoint_score score = {measure, isfinite(held_out_loss) ? held_out_loss : 0};
    if (!t->job->checkpoint.best || t->saver.saved == t->iteration)
        return STATUS_OK;
    enum status status = parallel_checkpoint_wait(t, error);
    if (status == STATUS_OK && (checkpoint_is_due(t) || checkpoint_saver_improves(&t->saver, &score)))
        status = checkpoint_begin_scored(t, score, error);
    return status;
}

static enum status parallel_checkpoint_open(struct parallel_trainer *t, struct error *error)
{
    const struct checkpoint_saver_config config = {.run_dir = worker_run_dir(t->base.worker),
                                                   .job = t->job,
                                                   .rpc = t->base.rpc,
                                                   .publishes = true,
                                                   .saved = t->iteration,
                                                   .again = worker_goes_on(t->base.worker),
                                                   .published = worker_report_saved};
    return parallel_trainer_leads(t) ? checkpoint_saver_open(&t->saver, &config, error) : STATUS_OK;
}

/* ---- one iteration ---- */

/* Calls the three layers in turn, reads the new hidden state later, and returns the loss. NULL on failure:
 * the tape has the error. An evaluation draws no random numbers, so its iteration number does not matter. */
static struct variable *trainer_forward(struct parallel_trainer *t, struct dist_context *context,
                                        const struct parallel_batch *batch, bool batch_classes)
{
    const struct rnn_config *rnn = &t->data.rnn;
    const uint64_t numbers[LAYER_NUMBERS] = {t->number, t->iteration};
    const struct shape state = SHAPE3(rnn->layers, batch->columns, rnn->hidden);
    const uint32_t steps = batch->steps, rows = steps * batch->columns;
    struct variable *tokens, *in[LAYER_VARIABLES_MAX] = {NULL}, *out[LAYER_VARIABLES_MAX] = {NULL};
    struct variable *logits = NULL;
    tokens = tape_input(t->tape, SHAPE2(steps, batch->columns), DTYPE_I32, "tokens", batch->tokens);
    dist_call(context, t->layers[JOB_LAYER_EMBEDDING], 0, numbers, LAYER_NUMBERS, &tokens, 1, &in[0], 1);
    in[1] = tape_input(t->tape, state, DTYPE_F32, "h", batch->h);
    in[2] = tape_input(t->tape, state, DTYPE_F32, "c", batch->c);
    dist_call(context, t->layers[JOB_LAYER_LSTM], 0, numbers, LAYER_NUMBERS, in, 3, out, 3);
    dist_call(context, t->layers[JOB_LAYER_DECODER], 0, numbers, LAYER_NUMBERS, out, 1, &logits, 1);
    if (tape_status(t->tape, NULL) != STATUS_OK ||
        tape_read_later(t->tape, out[1], DTYPE_F32, batch->h_out) != STATUS_OK ||
        tape_read_later(t->tape, out[2], DTYPE_F32, batch->c_out) != STATUS_OK)
        return NULL;
    if (batch_classes)
        return tape_cross_entropy(
            t->tape, logits,
            tape_input(t->tape, SHAPE2(steps, rnn->tokens), DTYPE_I32, "targets", batch->targets));
    return tape_cross_entropy(t->tape, tape_reshape(t->tape, logits, SHAPE2(rows, rnn->tokens)),
                              tape_input(t->tape, SHAPE1(rows), DTYPE_I32, "targets", batch->targets));
}

/* A forward without learning (held_out_forward). `arg`: the trainer. */
static enum status parallel_trainer_forward(void *arg, const struct parallel_batch *batch, double *loss,
                                            struct error *error)
{
    struct parallel_trainer *t = arg;
    struct dist_context *context;
    enum status status = dist_context_new(&context, t->base.dist, TAPE_INFER, t->tape, error);
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    const struct variable *variable = trainer_forward(t, context, batch, false);
    tape_read(t->tape, variable, DTYPE_F64, loss);
    profile_leave(before);
    t->base.worker->evaluation.done++;
    status = tape_status(t->tape, error);
    dist_context_free(context);
    return status;
}

/* Loss, backward and step in an open context. */
static enum status trainer_learn(struct parallel_trainer *t, struct dist_context *context,
                                 const struct parallel_batch *batch, double *loss, struct error *error)
{
    const bool batch_classes = !t->data.text && t->job->sequence.classes == JOB_CLASSES_BATCH;
    struct variable *variable = trainer_forward(t, context, batch, batch_classes);
    tape_loss(t->tape, variable, loss);
    tape_wait(t->tape);
    enum status status = tape_status(t->tape, error);
    if (status == STATUS_OK)
        status = dist_backward(context, variable, error);
    if (status != STATUS_OK)
        return status;
    struct dist_step step = {.lr = t->plateau.lr,
                             .max_norm = t->job->sequence.max_norm,
                             .last = t->iteration + 1 >= t->data.updates ||
                                     (parallel_trainer_leads(t) && t->base.worker->drain)};
    status = dist_optimizer_step(t->optimizer, context, &step, error);
    t->last = t->last || step.last || step.was_last;
    return status;
}

static enum status parallel_trainer_step(struct parallel_trainer *t, struct error *error)
{
    struct dist_context *context;
    struct error why = {0};
    double loss = 0;
    struct parallel_batch batch = {.columns = t->job->trainers.batch,
                                   .tokens = t->tokens,
                                   .targets = t->targets,
                                   .h = t->hidden.h,
                                   .c = t->hidden.c,
                                   .h_out = t->hidden.h_next,
                                   .c_out = t->hidden.c_next};
    t->in_iteration = true;
    const enum profile_kind before = profile_enter(PROFILE_DATA);
    batch.steps = parallel_data_batch(&t->data, t->number, t->iteration, t->tokens, t->targets);
    profile_enter(PROFILE_LEARNING);
    enum status status = dist_context_new(&context, t->base.dist, TAPE_TRAIN, t->tape, &why);
    if (status == STATUS_OK) {
        status = trainer_learn(t, context, &batch, &loss, &why);
        dist_context_free(context);
    }
    profile_leave(before);
    if (status != STATUS_OK)
        return error_set(error, status, "trainer %u, iteration %llu: %s", t->base.worker->self.worker,
                         (unsigned long long)t->iteration + 1, why.text);
    t->hidden = (struct hidden_state){.count = t->hidden.count,
                                      .h = t->hidden.h_next,
                                      .c = t->hidden.c_next,
                                      .h_next = t->hidden.h,
                                      .c_next = t->hidden.c}; // peer_answer below sends it
    t->in_iteration = false;
    t->iteration++;
    t->epoch_loss += loss;
    t->line_loss += loss;
    t->epoch_open = parallel_data_ends_epoch(&t->data, t->iteration);
    peer_answer(t);
    return STATUS_OK;
}

static double epoch_seconds_since(struct monotime begin)
{
    return (double)monotime_us_between(begin, monotime_now()) * 1e-6;
}

/* ---- lines of the logs ---- */

/* The lead: waits until at most `most` of its records are not in the logs yet. */
static enum status parallel_trainer_wait_for_logs(struct parallel_trainer *t, uint64_t most,
                                                  struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && worker_logs_lag(t->base.worker, most))
        status = peer_wait(t, error);
    return status;
}

/* After an iteration: reports the log's line if one is due. The job's last update always has a line. Its loss
 * also counts for the next line that is due: a resumed run may have more updates. */
static enum status parallel_trainer_line(struct parallel_trainer *t, struct error *error)
{
    const uint64_t every = t->job->log.every, first = (t->iteration - 1) / every * every;
    const bool is_due = t->iteration % every == 0;
    if (!parallel_trainer_leads(t) || (!is_due && t->iteration < t->data.updates))
        return STATUS_OK;
    const uint64_t begun = t->begun > first ? t->begun : first;
    const double loss = t->line_loss / (double)(t->iteration - first);
    struct control_update record = {
        .update = t->iteration,
        .loss = loss,
        .lr = t->plateau.lr,
        .samples = t->trainers * parallel_data_tokens(&t->data, first, t->iteration),
        .trainers = 1,
        .losses = {loss},
        .timing = {.round_s = epoch_seconds_since(t->line_begin),
                   .samples_before = t->trainers * parallel_data_tokens(&t->data, first, begun)},
    };
    if (is_due) {
        t->line_loss = 0;
        t->line_begin = monotime_now();
    }
    enum status status = parallel_trainer_wait_for_logs(t, 1, error);
    if (status != STATUS_OK)
        return status;
    worker_record(t->base.worker, CONTROL_UPDATE, &record, sizeof record);
    return STATUS_OK;
}

/* ---- the end of an epoch ---- */

/* As in the tutorial's language model: a held-out loss that is not finite, or not below the best one so far,
 * multiplies the rate by `decay`, unless the rate would become 0. */
static void plateau_see(struct plateau *plateau, double loss, double decay)
{
    if (isfinite(loss) && loss < plateau->best_loss)
        plateau->best_loss = loss;
    else if (plateau->lr * decay > 0)
        plateau->lr *= decay;
}

static enum status epoch_evaluate(struct parallel_trainer *t, struct control_epoch *record,
                                  struct error *error)
{
    const struct monotime begin = monotime_now();
    t->base.worker->evaluation = (struct control_share){.total = (uint32_t)t->data.held_out_batches};
    enum status status = held_out_loss(&t->data, parallel_trainer_forward, t, &record->evaluation_loss,
                                       &record->evaluated, error);
    record->unigram_perplexity = t->data.corpus.unigram_perplexity;
    record->timing.evaluation_s = epoch_seconds_since(begin);
    if (status == STATUS_OK)
        status = parallel_checkpoint_begin_evaluated(t, record->evaluation_loss, error);
    if (status == STATUS_OK && t->job->optimizer.schedule == JOB_SCHEDULE_PLATEAU)
        plateau_see(&t->plateau, record->evaluation_loss, t->job->sequence.decay);
    return status;
}

static enum status epoch_lead(struct parallel_trainer *t, struct error *error)
{
    const uint64_t epoch = epoch_number(t), first = (epoch - 1) * t->data.epoch_updates;
    struct control_epoch record = {.epoch = epoch,
                                   .update = t->iteration,
                                   .loss = t->epoch_loss / (double)(t->iteration - first),
                                   .timing = {.epoch_s = epoch_seconds_since(t->epoch_begin)}};
    enum status status = parallel_trainer_evaluates(t) ? epoch_evaluate(t, &record, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = peer_holdings(t, epoch, error);
    if (status != STATUS_OK)
        return status;
    worker_record(t->base.worker, CONTROL_EPOCH, &record, sizeof record);
    return peer_rate(t, epoch, error);
}

/* The lead evaluates, sets the next rate, reports and sends the rate; the others, if in step, wait for it. A
 * text's next epoch begins with a state of zeros; with random data the state is carried on. */
static enum status parallel_trainer_epoch(struct parallel_trainer *t, struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status =
        parallel_trainer_leads(t) ? epoch_lead(t, error) : peer_follow(t, epoch_number(t), error);
    if (status != STATUS_OK)
        return status;
    if (!t->last && t->data.text) {
        memset(t->hidden.h, 0, t->hidden.count * sizeof *t->hidden.h);
        memset(t->hidden.c, 0, t->hidden.count * sizeof *t->hidden.c);
    }
    t->epoch_loss = 0;
    t->epoch_begin = monotime_now();
    t->line_begin = monotime_add_us(t->line_begin, monotime_us_between(begin, t->epoch_begin));
    t->epoch_open = false;
    return STATUS_OK;
}

/* ---- the start: what needs no other trainer ---- */

static enum status trainer_open_memory(struct parallel_trainer *t, struct error *error)
{
    struct hidden_state *hidden = &t->hidden;
    float **const states[] = {&hidden->h, &hidden->c, &hidden->h_next, &hidden->c_next};
    t->tokens = calloc(parallel_data_tokens_max(&t->data), sizeof *t->tokens);
    t->targets = calloc(parallel_data_targets_max(&t->data), sizeof *t->targets);
    if (t->tokens == NULL || t->targets == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u columns",
                         t->job->trainers.batch);
    hidden->count = parallel_data_state_count(&t->data, t->job->trainers.batch);
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        *states[i] = calloc(hidden->count, sizeof **states[i]);
        if (*states[i] == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a hidden state of %zu numbers",
                             hidden->count);
    }
    parallel_data_first_state(&t->data, t->number, hidden->h, hidden->c);
    return STATUS_OK;
}

static enum status trainer_open_tape(struct parallel_trainer *t, struct error *error)
{
    const struct arena_source source = dist_arena_source(t->base.dist);
    enum status status =
        device_open(&t->backend, t->job, t->job->trainers.threads, parallel_trainer_leads(t), error);
    if (status == STATUS_OK)
        status =
            tape_new_in(&t->tape, t->backend, t->backend->ops->host ? &source : &t->backend->source, error);
    if (status == STATUS_OK)
        tape_on_progress(t->tape, worker_progress, t->base.worker);
    return status;
}

/* Stores a reference that has arrived: at the lead, another trainer's; at another trainer, the lead's.
 * Releases it if its class does not fit its tag. */
static void trainer_taken(struct parallel *parallel, uint16_t from, uint64_t tag, struct rref *rref)
{
    struct parallel_trainer *t = (struct parallel_trainer *)(void *)parallel; /* its first member */
    const uint32_t number = (uint32_t)from - parallel->roster.servers;
    const struct rref_class *class = rref_class_of(rref);
    const bool is_lead = from == parallel->roster.lead;
    struct rref **place = NULL;
    if (parallel_trainer_leads(t) && from > parallel->roster.lead && tag == number && number < t->trainers &&
        class == &parallel_trainer_class)
        place = &t->peers[number];
    else if (is_lead && tag < JOB_LAYERS && class == &layer_classes[tag])
        place = &t->layers[tag];
    else if (is_lead && tag == TAG_OPTIMIZER && class == &dist_optimizer_class &&
             t->local_count < DIST_PARAMETERS_MAX)
        place = &t->locals[t->local_count++];
    if (place == NULL || *place != NULL) {
        rref_release(rref);
        return;
    }
    *place = rref;
    t->peer_count += parallel_trainer_leads(t);
}

/* Opens data, sockets, model and checkpoint. Then comes CONTROL_READY. */
static enum status parallel_trainer_open(struct parallel_trainer *t, struct worker *worker,
                                         struct error *error)
{
    t->job = &worker->job;
    t->base.taken = trainer_taken;
    t->base.asked_holdings = peer_asked_holdings;
    t->number = (uint32_t)worker->self.worker - t->job->server.count;
    t->trainers = t->job->trainers.count;
    enum status status = parallel_open(&t->base, worker, error);
    if (status != STATUS_OK || worker->leave)
        return status;
    t->plateau = (struct plateau){.lr = t->job->optimizer.lr, .best_loss = INFINITY};
    const struct corpus_config reading = {.progress = worker_progress, .progress_context = worker};
    status = parallel_data_open(&t->data, t->job, &reading, error);
    if (status == STATUS_OK)
        status = parallel_data_check(&t->data, error);
    if (status == STATUS_OK)
        status = trainer_open_memory(t, error);
    if (status == STATUS_OK)
        status = trainer_open_tape(t, error);
    if (status == STATUS_OK)
        status = parallel_values_open(&t->values, worker, parallel_trainer_leads(t), &t->data, error);
    if (status == STATUS_OK)
        status = parallel_resume(t, error);
    if (status == STATUS_OK)
        status = parallel_checkpoint_open(t, error);
    t->begun = t->iteration;
    t->epoch_open = parallel_data_ends_epoch(&t->data, t->iteration);
    t->last = t->iteration >= t->data.updates;
    return status;
}

/* ---- the start: the lead makes the layers and the optimizer ---- */

static enum status trainer_wait_ready(struct parallel_trainer *t, struct rref *rref, const char *what,
                                      struct error *error)
{
    struct error why = {0};
    enum status status;
    while ((status = rref_ready(rref, &why)) == STATUS_AGAIN) {
        status = peer_wait(t, error);
        if (status != STATUS_OK)
            return status;
    }
    if (status == STATUS_OK)
        return status;
    return error_set(error, status, "%s on worker %u: %s", what, rref_owner(rref), why.text);
}

static enum status lead_make_layers(struct parallel_trainer *t, struct error *error)
{
    const bool async = t->job->server.round.name == JOB_ROUND_ASYNC;
    enum status status = STATUS_OK;
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++) {
        const struct layer_settings settings = {.rnn = t->data.rnn,
                                                .seed = t->job->seed,
                                                .threads = t->job->threads[i].count,
                                                .versions = async ? t->trainers + 1 : 0};
        const struct rpc_message arguments = layer_arguments(&settings);
        const struct job_numbered *place = &t->job->placement[i];
        const uint16_t worker = place->name == JOB_ON_SERVER ? (uint16_t)place->number : t->base.roster.lead;
        status = rpc_remote(t->base.rrefs, worker, layer_classes[i].name, &arguments, &t->layers[i], error);
    }
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++)
        status = trainer_wait_ready(t, t->layers[i], layer_classes[i].name, error);
    return status;
}

/* Fills t->parameters layer by layer: the whole model's order. The owners tell each layer's count. */
static enum status lead_find_parameters(struct parallel_trainer *t, struct error *error)
{
    const uint32_t expected = params_count(t->values.whole.params);
    for (int i = 0; i < JOB_LAYERS; i++) {
        uint32_t count = 0;
        const enum status status =
            dist_parameters(t->base.dist, t->layers[i], t->parameters + t->parameter_count, &count, error);
        if (status != STATUS_OK)
            return status;
        t->parameter_count += count;
    }
    return t->parameter_count == expected
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "the owners' layers have %u parameters, the model has %u",
                           t->parameter_count, expected);
}

static enum status lead_make_optimizer(struct parallel_trainer *t, struct error *error)
{
    const struct job *job = t->job;
    uint16_t participants[JOB_TRAINERS_MAX];
    for (uint32_t i = 0; i < t->trainers; i++)
        participants[i] = (uint16_t)(t->base.roster.servers + i);
    const struct dist_optimizer_config config = {
        .settings = {.kind = OPTIMIZER_SGD,
                     .sgd = {.lr = job->optimizer.lr, .momentum = job->optimizer.momentum}},
        .async = job->server.round.name == JOB_ROUND_ASYNC,
        .participants = participants,
        .participant_count = t->trainers};
    return dist_optimizer_new(&t->optimizer, t->base.dist, &config, t->parameters, t->parameter_count, error);
}

static enum status lead_share_with(struct parallel_trainer *t, uint32_t number, struct error *error)
{
    const uint16_t worker = (uint16_t)(t->base.roster.servers + number);
    enum status status = dist_optimizer_share(t->optimizer, worker, TAG_OPTIMIZER, error);
    for (int i = 0; i < JOB_LAYERS && status == STATUS_OK; i++)
        status = rref_give(t->layers[i], worker, (uint64_t)i, error);
    return status;
}

static enum status lead_make_all(struct parallel_trainer *t, struct error *error)
{
    enum status status = lead_make_layers(t, error);
    if (status == STATUS_OK)
        status = lead_find_parameters(t, error);
    if (status == STATUS_OK)
        status = lead_make_optimizer(t, error);
    if (status == STATUS_OK)
        status = lead_send_values(t, error);
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++)
        status = lead_share_with(t, i, error);
    return status;
}

/* ---- the start: the others take references to them ---- */

static void trainer_release_all(struct rref *references[], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        rref_release(references[i]);
        references[i] = NULL;
    }
}

static enum status trainer_take_all(struct parallel_trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && t->layers[JOB_LAYERS - 1] == NULL)
        status = peer_wait(t, error);
    if (status == STATUS_OK)
        status = dist_optimizer_join(&t->optimizer, t->base.dist, t->locals, t->local_count, error);
    trainer_release_all(t->locals, t->local_count);
    return status;
}

/* The lead waits for a reference from every other trainer; the others send theirs. */
static enum status parallel_trainer_meet(struct parallel_trainer *t, struct error *error)
{
    const bool leads = parallel_trainer_leads(t);
    enum status status = leads ? STATUS_OK : peer_introduce(t, error);
    while (leads && status == STATUS_OK && t->peer_count + 1 < t->trainers)
        status = peer_wait(t, error);
    if (status == STATUS_OK)
        status = leads ? lead_make_all(t, error) : trainer_take_all(t, error);
    t->line_begin = t->epoch_begin = monotime_now();
    return status;
}

/* ---- the end ---- */

/* Releases every reference. Ignores errors of the calls under way. */
static void parallel_trainer_release(struct parallel_trainer *t)
{
    dist_optimizer_free(t->optimizer);
    t->optimizer = NULL;
    trainer_release_all(t->locals, t->local_count);
    trainer_release_all(t->parameters, t->parameter_count);
    trainer_release_all(t->layers, JOB_LAYERS);
    trainer_release_all(t->peers, t->trainers);
}

static void parallel_trainer_close(struct parallel_trainer *t, const char *why)
{
    checkpoint_saver_close(&t->saver);
    parallel_values_close(&t->values);
    tape_free(t->tape);
    parallel_close(&t->base, why);
    backend_close(t->backend);
    parallel_data_close(&t->data);
    free(t->hidden.h);
    free(t->hidden.c);
    free(t->hidden.h_next);
    free(t->hidden.c_next);
    free(t->tokens);
    free(t->targets);
}

/* Releases this trainer's references, and flushes. The lead first waits until all other trainers hold
 * nothing, and at the end reports FINISHED.
 *
 * A worker destroys unused objects at the end of a turn, after it has answered the echoes that came in that
 * turn. A RELEASE that finds no room is sent in a later turn. So one echo is not enough; TURNS are plenty. */
static enum status parallel_trainer_finish(struct parallel_trainer *t, struct error *error)
{
    enum { TURNS = 6 };
    const struct control_finished finished = {.end = t->iteration >= t->data.updates ? CONTROL_END_FINISHED
                                                                                     : CONTROL_END_STOPPED,
                                              .updates = t->iteration};
    const bool leads = parallel_trainer_leads(t);
    enum status status = leads ? parallel_checkpoint_wait(t, error) : STATUS_OK;
    if (status == STATUS_OK && leads)
        status = peer_ask_all(t, PEER_LEAVE, NULL, error); // answered when they hold nothing
    if (status != STATUS_OK)
        return status;
    parallel_trainer_release(t);
    status = peer_flush(t, TURNS, error);
    if (status == STATUS_OK && leads)
        status = parallel_trainer_wait_for_logs(t, 0, error);
    if (status != STATUS_OK)
        return status;
    t->over = true;
    peer_answer(t);
    if (leads)
        worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    return STATUS_OK;
}

/* Ends without a checkpoint; releases its references where it can. */
static void parallel_trainer_give_up(struct parallel_trainer *t)
{
    const struct control_finished finished = {.end = CONTROL_END_STOPPED, .updates = t->iteration};
    parallel_trainer_release(t);
    t->over = true;
    peer_answer(t);
    if (parallel_trainer_leads(t) && !t->base.worker->leave)
        worker_report(CONTROL_FINISHED, &finished, sizeof finished);
}

/* ---- the loop ---- */

static enum status parallel_trainer_advance(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_checkpoint_advance(t, error);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        return status;
    if (t->over) { // waits for the order to leave; other workers may have it already, and be gone
        status = parallel_turn(&t->base, MONOTIME_NEVER, error);
        return status == STATUS_PEER_DIED ? STATUS_OK : status;
    }
    if (t->is_paused)
        return peer_wait(t, error);
    if (t->epoch_open)
        return parallel_trainer_epoch(t, error);
    if (t->last)
        return parallel_trainer_finish(t, error);
    status = parallel_trainer_step(t, error);
    if (status == STATUS_OK)
        status = parallel_trainer_line(t, error);
    return status == STATUS_OK ? parallel_checkpoint_begin(t, error) : status;
}

/* A peer may obey an order to hurry, and be gone, before this worker has read its own. */
static enum status parallel_trainer_judge(struct parallel_trainer *t, enum status status)
{
    if (status == STATUS_PEER_DIED)
        parallel_read_orders_after_end(&t->base);
    const bool ends = status == STATUS_OK || status == STATUS_PEER_DIED;
    return ends && parallel_trainer_ending(t) ? STATUS_SHUTDOWN : status;
}

enum status parallel_trainer_run(struct worker *worker, struct error *error)
{
    static struct parallel_trainer trainer; /* too much for a stack; one to a process */
    enum status status = parallel_trainer_open(&trainer, worker, error);
    if (status == STATUS_OK && !worker->leave) {
        worker_report(CONTROL_READY, NULL, 0);
        status = parallel_trainer_meet(&trainer, error);
    }
    for (;;) {
        status = parallel_trainer_judge(&trainer, status);
        if (status == STATUS_SHUTDOWN) {
            if (!trainer.over)
                parallel_trainer_give_up(&trainer);
            status = STATUS_OK;
        }
        if (status != STATUS_OK || (worker->leave && !checkpoint_saver_busy(&trainer.saver)))
            break;
        status = parallel_trainer_advance(&trainer, error);
    }
    if (status == STATUS_OK && trainer.base.dist != NULL)
        parallel_report(&trainer.base);
    parallel_trainer_close(&trainer, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
