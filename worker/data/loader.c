/* Makes batches ahead of their use, in a thread of its own.
 *
 * The thread fills a ring of three batches in order: one is with the caller, two are ahead. `lock` guards
 * `made`, `taken`, `ended`, `status` and `error`; a batch's contents belong to the thread until it is counted
 * in `made`, and to the caller until its next call. Everything else is the thread's alone once it runs. */
#include "worker/data/loader.h"

#include "kernels/base/log.h"
#include "kernels/base/rng.h"
#include "kernels/base/thread.h"
#include "kernels/lanes/normal.h"
#include "worker/data/transform.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { SLOTS = 3, STEP_BITS_MAX = 55 };

struct loader {
    const struct job *job;
    enum dataset_split split;
    uint32_t share, shares, batch;
    uint32_t lap; /* training: of the permutation */
    struct dataset *dataset;
    struct transform *transform;
    normal_group *normal; /* synthetic */
    struct image image;
    uint32_t *order; /* training: the permutation of epoch `epoch` */
    uint64_t epoch;
    uint8_t *bad;           /* one for each sample that could not be decoded */
    uint64_t position, end; /* evaluation: the samples left of the share */
    uint64_t skipped;       /* their number */
    struct batch slots[SLOTS];

    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    uint64_t made, taken; /* batches; the caller holds the last one taken */
    uint64_t step;        /* of the next batch to make */
    bool ended;           /* no batch follows `made`; `status` says why */
    enum status status;
    struct error error;
};

/* ---- one sample ---- */

/* The number of undecodable samples in a row that ends the loader. */
static uint64_t bad_in_a_row_max(const struct loader *loader)
{
    const uint64_t count = dataset_count(loader->dataset);
    const uint64_t most = loader->batch > LOADER_BAD_MIN ? loader->batch : LOADER_BAD_MIN;
    return most < count ? most : count;
}

/* STATUS_CORRUPT: this sample cannot be decoded. The log names it the first time. */
static enum status loader_read_sample(struct loader *loader, uint32_t sample, int32_t *label,
                                      struct error *error)
{
    if (loader->bad[sample] != 0)
        return STATUS_CORRUPT;
    enum status status = dataset_read(loader->dataset, sample, &loader->image, label, error);
    if (status != STATUS_CORRUPT)
        return status;
    loader->bad[sample] = 1;
    log_warning("%s: skipped, %llu so far", error->text, (unsigned long long)++loader->skipped);
    return status;
}

static enum status loader_give_up(const struct loader *loader, uint64_t tried, struct error *error)
{
    return error_set(error, STATUS_CORRUPT, "%.300s: %llu samples in a row cannot be decoded",
                     loader->job->data.path, (unsigned long long)tried);
}

/* ---- one batch ---- */

/* The sample at `place` of the epoch's order, or the next one that can be decoded. */
static enum status loader_read_place(struct loader *loader, uint64_t place, uint32_t *sample, int32_t *label,
                                     struct error *error)
{
    const uint64_t count = dataset_count(loader->dataset), most = bad_in_a_row_max(loader);
    for (uint64_t i = 0; i < most; i++) {
        *sample = loader->order[(place + i) % count];
        enum status status = loader_read_sample(loader, *sample, label, error);
        if (status != STATUS_CORRUPT)
            return status;
    }
    return loader_give_up(loader, most, error);
}

/* Shuffles the samples for an epoch. */
static void loader_turn_to_epoch(struct loader *loader, uint64_t epoch)
{
    struct rng_key key = {
        .seed = loader->job->seed, .step = (uint32_t)epoch, .episode = (uint32_t)(epoch >> 32)};
    const uint32_t count = (uint32_t)dataset_count(loader->dataset);
    uint32_t *order = loader->order;
    if (loader->epoch == epoch)
        return;
    loader->epoch = epoch;
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    for (uint32_t i = count; i-- > 1;) {
        uint32_t words[4];
        key.environment = i / 2;
        rng_block(&key, RNG_SHUFFLE, loader->lap, words);
        const uint32_t *drawn = words + i % 2 * 2;
        const uint32_t other = (uint32_t)rng_below(drawn[0], drawn[1], (uint64_t)i + 1);
        const uint32_t sample = order[i];
        order[i] = order[other];
        order[other] = sample;
    }
}

/* Steps of an epoch of the training samples. */
static uint64_t loader_epoch_steps(const struct loader *loader)
{
    return dataset_count(loader->dataset) / ((uint64_t)loader->shares * loader->batch);
}

static enum status loader_fill_training(struct loader *loader, struct batch *slot, struct error *error)
{
    const struct job *job = loader->job;
    const uint64_t steps = loader_epoch_steps(loader), place = loader->step % steps;
    const uint64_t first = (place * loader->shares + loader->share % loader->shares) * loader->batch;
    loader_turn_to_epoch(loader, loader->step / steps);
    for (uint32_t i = 0; i < loader->batch && !atomic_load(&loader->stop); i++) {
        uint32_t sample = 0;
        enum status status = loader_read_place(loader, first + i, &sample, &slot->labels[i], error);
        if (status != STATUS_OK)
            return status;
        const struct transform_view view = transform_draw_view(job->seed, sample, loader->epoch, loader->lap,
                                                               job->data.crop, job->data.flip);
        status = transform_apply(loader->transform, &loader->image, &view,
                                 slot->images + i * transform_elements(loader->transform), error);
        if (status != STATUS_OK)
            return status;
    }
    slot->samples = loader->batch;
    return STATUS_OK;
}

static enum status loader_fill_evaluation(struct loader *loader, struct batch *slot, struct error *error)
{
    const struct transform_view whole = {0};
    uint64_t bad = 0;
    uint32_t *filled = &slot->samples;
    *filled = 0;
    while (loader->position < loader->end && *filled < loader->batch && !atomic_load(&loader->stop)) {
        enum status status =
            loader_read_sample(loader, (uint32_t)loader->position++, &slot->labels[*filled], error);
        if (status == STATUS_OK)
            status = transform_apply(loader->transform, &loader->image, &whole,
                                     slot->images + *filled * transform_elements(loader->transform), error);
        if (status != STATUS_OK && status != STATUS_CORRUPT)
            return status;
        *filled += status == STATUS_OK;
        bad = status == STATUS_OK ? 0 : bad + 1;
        if (bad == bad_in_a_row_max(loader))
            return loader_give_up(loader, bad, error);
    }
    return STATUS_OK;
}

static enum status loader_fill_batch(struct loader *loader, struct batch *slot, struct error *error)
{
    const struct rng_key key = {
        .seed = loader->job->seed, .step = (uint32_t)loader->step, .episode = loader->share};
    slot->step = loader->step;
    if (loader->split == DATASET_EVALUATION)
        return loader_fill_evaluation(loader, slot, error);
    if (loader->job->data.kind != JOB_DATA_SYNTHETIC)
        return loader_fill_training(loader, slot, error);
    assert(loader->step >> STEP_BITS_MAX == 0);
    normal_fill(loader->normal, slot->images, loader->batch * transform_elements(loader->transform), &key,
                RNG_DATA, (uint32_t)(loader->step >> 32));
    slot->samples = loader->batch;
    return STATUS_OK;
}

/* ---- opening ---- */

static enum status loader_allocate(struct loader *loader, struct error *error)
{
    const size_t elements = transform_elements(loader->transform), page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = loader->batch * elements * sizeof(float); // the job's limits bound it by 2^44
    const uint64_t count = dataset_count(loader->dataset);
    bool whole = true;
    for (int i = 0; i < SLOTS; i++) {
        struct batch *slot = &loader->slots[i];
        slot->images = aligned_alloc(page, (bytes + page - 1) / page * page);
        slot->labels = calloc(loader->batch, sizeof *slot->labels);
        whole = whole && slot->images != NULL && slot->labels != NULL;
    }
    loader->bad = calloc(count + 1, sizeof *loader->bad);
    loader->order = loader->split == DATASET_TRAIN ? calloc(count + 1, sizeof *loader->order) : NULL;
    if (!whole || loader->bad == NULL || (loader->split == DATASET_TRAIN && loader->order == NULL))
        return error_set(error, STATUS_NO_MEMORY, "no memory for batches of %u images of %zu numbers",
                         loader->batch, elements);
    return STATUS_OK;
}

/* Draws the labels of synthetic data into every slot. */
static void loader_draw_labels(struct loader *loader)
{
    struct rng_key key = {.seed = loader->job->seed, .episode = loader->share};
    for (uint32_t i = 0; i < loader->batch; i++) {
        uint32_t words[4];
        key.environment = i;
        rng_block(&key, RNG_DATA, RNG_BLOCK_MAX, words);
        for (int slot = 0; slot < SLOTS; slot++)
            loader->slots[slot].labels[i] =
                (int32_t)rng_below(words[0], words[1], loader->job->model.classes);
    }
}

/* The first of the held-out samples of a share. */
static uint64_t loader_share_begin(const struct loader *loader, uint64_t share)
{
    return dataset_count(loader->dataset) * share / loader->shares;
}

uint64_t loader_share_samples(const struct loader *loader)
{
    return loader_share_begin(loader, loader->share + 1) - loader_share_begin(loader, loader->share);
}

/* Sets what the first batch depends on. */
static enum status loader_set_start(struct loader *loader, struct error *error)
{
    const struct job *job = loader->job;
    const uint64_t count = dataset_count(loader->dataset);
    if (loader->split == DATASET_EVALUATION) {
        loader->position = loader_share_begin(loader, loader->share);
        loader->end = loader->position + loader_share_samples(loader);
        return STATUS_OK;
    }
    if (job->data.kind == JOB_DATA_SYNTHETIC) {
        loader_draw_labels(loader);
        loader->normal = normal_choose();
        return STATUS_OK;
    }
    if (loader_epoch_steps(loader) == 0)
        return error_set(error, STATUS_INVALID,
                         "%.300s: %llu training samples are fewer than %u trainers take at once (%u each)",
                         job->data.path, (unsigned long long)count, loader->shares, loader->batch);
    loader->epoch = UINT64_MAX;
    return STATUS_OK;
}

/* Opens the data the first time. */
static enum status loader_prepare(struct loader *loader, struct error *error)
{
    const uint32_t crop = loader->split == DATASET_TRAIN ? loader->job->data.crop : 0;
    if (loader->dataset != NULL)
        return loader_set_start(loader, error);
    enum status status = dataset_open(&loader->dataset, loader->job, loader->split, error);
    if (status == STATUS_OK)
        status = transform_new(&loader->transform, loader->job, crop, error);
    if (status == STATUS_OK)
        status = loader_allocate(loader, error);
    return status == STATUS_OK ? loader_set_start(loader, error) : status;
}

/* ---- the thread ---- */

/* Waits for a free slot. False: the loader is being freed. */
static bool loader_wait_for_room(struct loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    // The batch that the caller holds is the last of those taken: it still fills a slot.
    while (!atomic_load(&loader->stop) && loader->made + 1 >= loader->taken + SLOTS)
        pthread_cond_wait(&loader->emptied, &loader->lock);
    pthread_mutex_unlock(&loader->lock);
    return !atomic_load(&loader->stop);
}

/* Hands over the next batch; or, without one, the end of the share or a failure. */
static void loader_hand_over(struct loader *loader, bool batch, enum status status, const struct error *error)
{
    pthread_mutex_lock(&loader->lock);
    loader->made += batch;
    loader->ended = !batch;
    loader->status = status;
    loader->error = *error;
    pthread_cond_signal(&loader->filled);
    pthread_mutex_unlock(&loader->lock);
}

static void *loader_thread(void *arg)
{
    struct loader *loader = arg;
    struct error error = {0};
    enum status status = loader->split == DATASET_EVALUATION ? loader_prepare(loader, &error) : STATUS_OK;
    if (status != STATUS_OK)
        loader_hand_over(loader, false, status, &error);
    for (bool more = true; status == STATUS_OK && more && loader_wait_for_room(loader);) {
        struct batch *slot = &loader->slots[loader->made % SLOTS];
        status = loader_fill_batch(loader, slot, &error);
        loader->step++;
        more = status == STATUS_OK && slot->samples > 0;
        loader_hand_over(loader, more, status, &error);
    }
    return NULL;
}

static enum status loader_start_thread(struct loader *loader, struct error *error)
{
    const enum status status =
        thread_start(&loader->thread, loader_thread, loader, "the loader's thread", error);
    loader->started = status == STATUS_OK;
    return status;
}

/* ---- starting and ending ---- */

enum status loader_new(struct loader **out, const struct loader_config *config, struct error *error)
{
    assert(config->share < config->shares || config->split == DATASET_TRAIN);
    assert(config->split == DATASET_TRAIN || config->first_step == 0);
    struct loader *loader = calloc(1, sizeof *loader);
    if (loader == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a loader");
    loader->job = config->job;
    loader->split = config->split;
    loader->share = config->share;
    loader->shares = config->shares;
    loader->lap = config->share / config->shares;
    loader->batch =
        config->split == DATASET_TRAIN ? config->job->trainers.batch : config->job->evaluation.batch;
    loader->step = config->first_step;
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->filled, NULL);
    pthread_cond_init(&loader->emptied, NULL);
    enum status status = config->split == DATASET_TRAIN ? loader_prepare(loader, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = loader_start_thread(loader, error);
    if (status != STATUS_OK) {
        loader_free(loader);
        return status;
    }
    *out = loader;
    return STATUS_OK;
}

static void loader_stop_thread(struct loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    atomic_store(&loader->stop, true);
    pthread_cond_signal(&loader->emptied);
    pthread_mutex_unlock(&loader->lock);
    pthread_join(loader->thread, NULL);
    loader->started = false;
}

enum status loader_restart(struct loader *loader, uint32_t share, struct error *error)
{
    assert(loader->split == DATASET_EVALUATION && share < loader->shares);
    loader_stop_thread(loader);
    atomic_store(&loader->stop, false);
    loader->share = share;
    loader->made = loader->taken = loader->step = 0;
    loader->ended = false;
    loader->status = STATUS_OK;
    return loader_start_thread(loader, error);
}

void loader_free(struct loader *loader)
{
    if (loader == NULL)
        return;
    if (loader->started)
        loader_stop_thread(loader);
    pthread_mutex_destroy(&loader->lock);
    pthread_cond_destroy(&loader->filled);
    pthread_cond_destroy(&loader->emptied);
    for (int i = 0; i < SLOTS; i++) {
        free(loader->slots[i].images);
        free(loader->slots[i].labels);
    }
    free(loader->order);
    free(loader->bad);
    image_fini(&loader->image);
    transform_free(loader->transform);
    dataset_free(loader->dataset);
    free(loader);
}

/* ---- taking ---- */

enum status loader_next(struct loader *loader, struct monotime until, const struct batch **batch,
                        struct error *error)
{
    const struct timespec at = {.tv_sec = (time_t)(until.ns / 1000000000u),
                                .tv_nsec = (long)(until.ns % 1000000000u)};
    enum status status = STATUS_AGAIN;
    bool in_time = true;
    pthread_mutex_lock(&loader->lock);
    while (loader->made == loader->taken && !loader->ended && in_time)
        in_time = pthread_cond_clockwait(&loader->filled, &loader->lock, CLOCK_MONOTONIC, &at) == 0;
    if (loader->made > loader->taken) {
        *batch = &loader->slots[loader->taken++ % SLOTS];
        pthread_cond_signal(&loader->emptied);
        status = STATUS_OK;
    } else if (loader->ended) {
        *batch = NULL;
        status = loader->status == STATUS_OK ? STATUS_OK
                                             : error_set(error, loader->status, "%s", loader->error.text);
    }
    pthread_mutex_unlock(&loader->lock);
    return status;
}
