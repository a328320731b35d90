/* The learner thread of an agent process.
 *
 * No lock: `rollout`, `policy`, `result` and `error` belong to one thread at a time, and the pair's
 * release/acquire hand-off is the border. Only `progress` is shared while the learner works. */
#include "worker/reinforce/learner.h"

#include "kernels/base/monotime.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy.h"
#include "worker/net/endpoint.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_QUIT = 0, WORD_LEARN = 1 };

struct learner {
    struct learner_config config;
    struct endpoint_pair *ours, *theirs; /* the coalescer thread's end, the learner thread's */
    pthread_t thread;
    bool started, busy; /* the coalescer thread's */
    enum status status;
    struct learner_result result;
    struct error error;
    _Atomic uint64_t progress;
};

static void advance(void *arg)
{
    struct learner *learner = arg;
    atomic_fetch_add_explicit(&learner->progress, 1, memory_order_relaxed);
}

static void learn(struct learner *learner)
{
    struct rollout *rollout = learner->config.rollout;
    struct monotime begin = monotime_now();
    uint32_t rows = rollout_coefficients(rollout, &learner->config.returns);
    struct mlp_batch batch = {.count = rows,
                              .row = rollout->order,
                              .observations = rollout->observations,
                              .masks = rollout->masks,
                              .actions = rollout->actions};
    struct error error = {0};
    learner->status = policy_learn(learner->config.policy, &batch, rollout->coefficients, rollout->episode,
                                   &learner->result.loss, advance, learner, &error);
    if (learner->status != STATUS_OK)
        error_set(&learner->error, learner->status, "learning from episode %u: %.400s", rollout->episode,
                  error.text);
    learner->result.seconds = (double)monotime_us_between(begin, monotime_now()) * 1e-6;
}

static void *learner_thread(void *arg)
{
    struct learner *learner = arg;
    uint64_t word;
    while (endpoint_pair_take(learner->theirs, true, &word) == STATUS_OK && word == WORD_LEARN) {
        learn(learner);
        endpoint_pair_give(learner->theirs, word);
    }
    return NULL;
}

enum status learner_new(struct learner **out, const struct learner_config *config, struct error *error)
{
    struct learner *learner = calloc(1, sizeof *learner);
    if (learner == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the learner");
    learner->config = *config;
    enum status status = endpoint_pair_new(config->endpoint, &learner->ours, &learner->theirs, error);
    if (status != STATUS_OK)
        goto fail;
    int failed = pthread_create(&learner->thread, NULL, learner_thread, learner);
    if (failed != 0) {
        status = error_set_errno(error, failed, "cannot start the learner thread");
        goto fail;
    }
    learner->started = true;
    *out = learner;
    return STATUS_OK;
fail:
    learner_free(learner);
    return status;
}

void learner_free(struct learner *learner)
{
    if (learner == NULL)
        return;
    if (learner->started) {
        uint64_t word;
        if (learner->busy)
            endpoint_pair_take(learner->ours, true, &word);
        endpoint_pair_give(learner->ours, WORD_QUIT);
        pthread_join(learner->thread, NULL);
    }
    endpoint_pair_free(learner->ours);
    endpoint_pair_free(learner->theirs);
    free(learner);
}

struct endpoint_pair *learner_pair(struct learner *learner)
{
    return learner->ours;
}

void learner_start(struct learner *learner)
{
    assert(!learner->busy);
    learner->busy = true;
    endpoint_pair_give(learner->ours, WORD_LEARN);
}

enum status learner_poll(struct learner *learner, struct learner_result *result, struct error *error)
{
    uint64_t word;
    enum status status = endpoint_pair_take(learner->ours, false, &word);
    if (status != STATUS_OK)
        return status;
    learner->busy = false;
    if (learner->status != STATUS_OK)
        *error = learner->error;
    else
        *result = learner->result;
    return learner->status;
}

uint64_t learner_progress(const struct learner *learner)
{
    return atomic_load_explicit(&learner->progress, memory_order_relaxed);
}
