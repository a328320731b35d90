/* The role trainer: takes a batch and the newest model, computes a gradient, hands it to the servers. One
 * thread.
 *
 * The loop: evaluate if asked to, fetch the step's batch, compute, push and pull. A handler never waits, so
 * it only stores a server's request for an evaluation. A step is a function of the job's seed, the step's
 * number, this trainer's number and the model: a step that is repeated after a death is the same. */
#include "worker/data_parallel/trainer.h"

#include "kernels/base/profile.h"

#include <stdlib.h>
#include <string.h>

static void trainer_remember_evaluate(void *context, struct rpc_request *request,
                                      const struct rpc_message *message)
{
    struct trainer *t = context;
    const uint64_t share = message->args[EVALUATE_SHARE], shares = message->args[EVALUATE_SHARES];
    if (shares != t->job->trainers.count || share >= shares)
        rpc_reject(request, "share %llu of %llu to evaluate: the job has %u trainers",
                   (unsigned long long)share, (unsigned long long)shares, t->job->trainers.count);
    else if (t->worker->hurry || t->worker->leave)
        rpc_fail(request, STATUS_SHUTDOWN, "the job is ending");
    else if (t->evaluate != NULL)
        rpc_fail(request, STATUS_BUSY, "an evaluation is asked for already");
    else
        t->evaluate = request;
}

static const struct rpc_method methods[] = {
    {.method = METHOD_EVALUATE, .callers = WIRE_ROLE_PSERVER, .handler = trainer_remember_evaluate},
};

/* ---- evaluation ---- */

/* Between batches: beats, and serves the messages that have arrived. */
static void trainer_evaluation_progress(void *arg)
{
    struct trainer *t = arg;
    trainer_progress(t);
    rpc_turn(t->rpc, monotime_now()); // the next call meets a server that is gone
}

/* Only a job with one server can ask for a version other than the present one: several servers go in step. */
static enum status trainer_run_evaluation(struct trainer *t, const uint64_t *args, struct evaluation *sums,
                                          struct error *error)
{
    enum status status = STATUS_OK;
    if (args[EVALUATE_VERSION] != t->at.version) {
        const struct trainer_version asked = {.version = args[EVALUATE_VERSION],
                                              .offset = {args[EVALUATE_OFFSET]}};
        status = trainer_model_take(t, &asked, error);
    }
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    status = evaluator_run(&t->evaluator, (uint32_t)args[EVALUATE_SHARE], sums, error);
    profile_leave(before);
    return status;
}

/* Answers the request. The params may be on another version afterwards. */
static enum status trainer_evaluate(struct trainer *t, struct error *error)
{
    uint64_t args[WIRE_ARGS];
    struct rpc_message reply = {0};
    struct evaluation sums;
    memcpy(args, rpc_request_message(t->evaluate)->args, sizeof args);
    enum status status = trainer_run_evaluation(t, args, &sums, error);
    struct rpc_request *request = t->evaluate;
    t->evaluate = NULL;
    if (status != STATUS_OK) {
        rpc_fail(request, status, "trainer %u, evaluation of version %llu: %s", t->worker->self.worker,
                 (unsigned long long)args[EVALUATE_VERSION], error->text);
        return status;
    }
    memcpy(&reply.args[EVALUATED_LOSS], &sums.loss_sum, sizeof sums.loss_sum);
    reply.args[EVALUATED_CORRECT] = sums.correct;
    reply.args[EVALUATED_SAMPLES] = sums.samples;
    rpc_reply(request, &reply);
    return STATUS_OK;
}

/* ---- calls to all servers ---- */

/* Merges the servers' answers: each server's offset; the lowest version and step. *agree: all name one
 * version. */
static void trainer_collect_answers(struct trainer_version *answer, struct future *const *calls,
                                    uint32_t servers, bool *agree)
{
    *answer = (struct trainer_version){.version = UINT64_MAX, .step = UINT64_MAX};
    *agree = true;
    for (uint32_t server = 0; server < servers; server++) {
        const uint64_t *args = future_value(calls[server])->args;
        *agree = *agree && (server == 0 || args[MODEL_VERSION] == answer->version);
        if (args[MODEL_VERSION] < answer->version)
            answer->version = args[MODEL_VERSION];
        if (args[MODEL_STEP] < answer->step)
            answer->step = args[MODEL_STEP];
        answer->offset[server] = args[MODEL_OFFSET];
        answer->last = answer->last || (args[MODEL_FLAGS] & PULL_LAST) != 0;
    }
    for (uint32_t server = 0; server < servers; server++)
        answer->counted[server] = future_value(calls[server])->args[MODEL_STEP] > answer->step;
}

/* Asks one server. A server that has counted the step already is asked for the model instead. */
static enum status trainer_ask_server(struct trainer *t, uint16_t server, enum wire_method method,
                                      const struct rpc_message *message, struct future **out,
                                      struct error *error)
{
    const struct rpc_message newest = {
        .args = {[GET_VERSION] = PARAMETER_SERVER_NEWEST, [GET_FINGERPRINT] = t->fingerprint}};
    if (method == METHOD_PUSH_PULL && t->at.counted[server])
        return rpc_call_async(t->rpc, server, METHOD_GET_MODEL, &newest, MONOTIME_NEVER, out, error);
    return rpc_call_async(t->rpc, server, method, message, MONOTIME_NEVER, out, error);
}

/* True: an evaluation was asked for, on the present version or with one server, so it can run now. */
static bool trainer_can_evaluate(const struct trainer *t)
{
    return t->evaluate != NULL &&
           (t->servers == 1 || rpc_request_message(t->evaluate)->args[EVALUATE_VERSION] == t->at.version);
}

static bool trainer_calls_are_done(struct future *const *calls, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!future_done(calls[i]))
            return false;
    return true;
}

/* The same call to every server at once. Requests are served meanwhile. While a contribution waits for its
 * round this includes an evaluation: the server may keep its answer back until the evaluation is done. */
static enum status trainer_ask_all(struct trainer *t, enum wire_method method,
                                   const struct rpc_message *message, struct trainer_version *answer,
                                   bool *agree, struct error *error)
{
    struct future *calls[JOB_SERVERS_MAX];
    enum status status = STATUS_OK;
    uint32_t count = 0;
    while (count < t->servers && status == STATUS_OK) {
        status = trainer_ask_server(t, (uint16_t)count, method, message, &calls[count], error);
        count += status == STATUS_OK;
    }
    while (status == STATUS_OK && !trainer_calls_are_done(calls, count)) {
        status = trainer_turn(t, MONOTIME_NEVER, error);
        if (status == STATUS_OK && method == METHOD_PUSH_PULL && trainer_can_evaluate(t) &&
            !trainer_calls_are_done(calls, count))
            status = trainer_evaluate(t, error);
    }
    if (count == t->servers && trainer_calls_are_done(calls, count)) { // a turn that fails may have told why
        status = STATUS_OK;
        for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
            status = rpc_wait(t->rpc, calls[i], error);
    }
    if (status == STATUS_OK)
        trainer_collect_answers(answer, calls, count, agree);
    while (count > 0)
        future_release(calls[--count]);
    return status;
}

static enum status trainer_go_on_from(struct trainer *t, const struct trainer_version *answer,
                                      struct error *error)
{
    t->at = *answer;
    t->over = t->over || answer->last;
    return trainer_model_take(t, answer, error);
}

/* Gets the newest model and the step to go on with. Where a predecessor died between sending its step to one
 * server and to the next, one of them has made a version for which the other still waits. Then
 * the trainer goes on from the older version, which all servers still have, and computes its step again for
 * the servers that lack it. */
static enum status trainer_get_model(struct trainer *t, struct error *error)
{
    struct rpc_message question = {
        .args = {[GET_VERSION] = PARAMETER_SERVER_NEWEST, [GET_FINGERPRINT] = t->fingerprint}};
    struct trainer_version answer;
    bool agree;
    enum status status = trainer_ask_all(t, METHOD_GET_MODEL, &question, &answer, &agree, error);
    if (status == STATUS_OK && !agree) {
        question.args[GET_VERSION] = answer.version;
        status = trainer_ask_all(t, METHOD_GET_MODEL, &question, &answer, &agree, error);
    }
    return status == STATUS_OK ? trainer_go_on_from(t, &answer, error) : status;
}

static enum status trainer_push_pull(struct trainer *t, double loss, struct error *error)
{
    struct rpc_message push = {.args = {[PUSH_STEP] = t->at.step,
                                        [PUSH_BASE] = t->at.version,
                                        [PUSH_BYTES] = t->elements * sizeof(float)}};
    struct trainer_version answer;
    bool agree;
    memcpy(&push.args[PUSH_LOSS], &loss, sizeof loss);
    enum status status = trainer_ask_all(t, METHOD_PUSH_PULL, &push, &answer, &agree, error);
    if (status != STATUS_OK)
        return status;
    if (!agree || answer.step != t->at.step + 1)
        return error_set(error, STATUS_INTERNAL,
                         "the servers answered step %llu with step %llu of version %llu%s: expected the next "
                         "step, and one version",
                         (unsigned long long)t->at.step, (unsigned long long)answer.step,
                         (unsigned long long)answer.version, agree ? "" : " and others");
    t->worker->work++;
    return trainer_go_on_from(t, &answer, error);
}

/* ---- a step ---- */

/* Loss, gradient and statistics of the batch, computed into the places that trainer_model_give reads. */
static enum status trainer_compute(struct trainer *t, double *loss, struct error *error)
{
    struct trainer_net *net = &t->net;
    tape_begin(net->tape, TAPE_TRAIN, net->gradients);
    struct variable *variable = classifier_loss(net->classifier, net->tape, t->batch);
    tape_loss(net->tape, variable, loss);
    trainer_model_begin_giving(t);
    tape_backward(net->tape, variable);
    enum status status =
        classifier_statistics(net->classifier, net->tape, t->outbox_image + t->parameters, error);
    const enum status tape = tape_finish(net->tape, error);
    return tape != STATUS_OK ? tape : status;
}

static enum status trainer_step(struct trainer *t, struct error *error)
{
    struct error why = {0};
    double loss = 0;
    const enum profile_kind before = profile_enter(PROFILE_LEARNING);
    enum status status = trainer_compute(t, &loss, &why);
    profile_leave(before);
    if (status != STATUS_OK)
        return error_set(error, status, "trainer %u, step %llu: %s", t->worker->self.worker,
                         (unsigned long long)t->at.step, why.text);
    t->batch = NULL;
    status = trainer_model_give(t, error);
    return status == STATUS_OK ? trainer_push_pull(t, loss, error) : status;
}

/* Waits at most 20 ms for the step's batch. */
static enum status trainer_fetch_batch(struct trainer *t, struct error *error)
{
    enum { WAIT_US = 20000 };
    enum status status = trainer_turn(t, monotime_now(), error);
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_DATA);
    status = loader_next(t->loader, monotime_add_us(monotime_now(), WAIT_US), &t->batch, error);
    profile_leave(before);
    if (status != STATUS_OK) {
        t->batch = NULL;
        return status == STATUS_AGAIN ? STATUS_OK : status;
    }
    if (t->batch->step != t->at.step)
        return error_set(error, STATUS_INTERNAL, "the loader gave the batch of step %llu, expected %llu",
                         (unsigned long long)t->batch->step, (unsigned long long)t->at.step);
    return STATUS_OK;
}

/* ---- the role ---- */

static enum status trainer_advance(struct trainer *t, struct error *error)
{
    if (trainer_can_evaluate(t)) {
        const uint64_t version = rpc_request_message(t->evaluate)->args[EVALUATE_VERSION];
        const enum status status = trainer_evaluate(t, error);
        return status == STATUS_OK && version != t->at.version && !t->over ? trainer_get_model(t, error)
                                                                           : status;
    }
    if (t->over)
        return trainer_turn(t, MONOTIME_NEVER, error);
    return t->batch == NULL ? trainer_fetch_batch(t, error) : trainer_step(t, error);
}

static enum status trainer_open_rpc(struct trainer *t, struct error *error)
{
    struct worker *worker = t->worker;
    t->servers = worker->job.server.count;
    t->number = worker->self.worker - t->servers;
    const struct rpc_config config = {.pending_max = t->servers * TRAINER_IN_FLIGHT,
                                      .incoming_max = 4,
                                      .rows_max = 1,
                                      .methods = methods,
                                      .method_count = sizeof methods / sizeof methods[0],
                                      .context = t};
    enum status status = worker_open_rpc(worker, &config, &t->rpc, error);
    if (status == STATUS_OK)
        status = worker_connect(worker, t->rpc, error);
    if (status == STATUS_OK)
        status = worker_attach(worker, t->rpc);
    return status == STATUS_OK ? worker_read_welcome(worker, t->rpc, error) : status;
}

static enum status trainer_open(struct trainer *t, struct worker *worker, struct error *error)
{
    t->worker = worker;
    t->job = &worker->job;
    enum status status = trainer_open_rpc(t, error);
    if (status == STATUS_OK)
        status = trainer_model_open(t, error);
    if (status == STATUS_OK)
        status = trainer_get_model(t, error);
    if (status != STATUS_OK)
        return status;
    t->evaluator = (struct evaluator){.job = t->job,
                                      .classifier = t->net.classifier,
                                      .tape = t->net.tape,
                                      .progress = trainer_evaluation_progress,
                                      .progress_context = t};
    const struct loader_config config = {.job = t->job,
                                         .split = DATASET_TRAIN,
                                         .share = t->number,
                                         .shares = t->job->trainers.count,
                                         .first_step = t->at.step};
    return loader_new(&t->loader, &config, error);
}

static void trainer_drop_evaluation(struct trainer *t, const char *why)
{
    if (t->evaluate != NULL)
        rpc_fail(t->evaluate, STATUS_SHUTDOWN, "%s", why);
    t->evaluate = NULL;
}

/* A trainer that fails leaves an evaluation unanswered: BYE tells the server to ask the successor. */
static void trainer_close(struct trainer *t, bool failed, const char *why)
{
    enum { LINGER_MS = 200 };
    if (!failed)
        trainer_drop_evaluation(t, why);
    rpc_free(t->rpc, why, LINGER_MS);
    t->worker->rpc = NULL;
    loader_free(t->loader);
    evaluator_close(&t->evaluator);
    trainer_model_close(t);
}

enum status trainer_run(struct worker *worker, struct error *error)
{
    struct trainer trainer = {0};
    while (!worker->connect && !worker->leave)
        worker_wait_order(worker);
    if (worker->leave)
        return STATUS_OK;
    enum status status = trainer_open(&trainer, worker, error);
    if (status == STATUS_OK)
        worker_report(CONTROL_READY, NULL, 0);
    for (;;) {
        if (status == STATUS_SHUTDOWN) { // no step is needed any more; an evaluation may be
            if (worker->hurry || worker->leave)
                trainer_drop_evaluation(&trainer, "the job is ending");
            trainer.over = true;
            status = STATUS_OK;
        }
        if (status != STATUS_OK || worker->leave)
            break;
        status = trainer_advance(&trainer, error);
    }
    if (worker->leave && status == STATUS_PEER_DIED)
        status = STATUS_OK; // the servers were told so too
    const bool failed = status != STATUS_OK;
    trainer_close(&trainer, failed, failed ? error->text : WORKER_FINISHED);
    return status;
}
