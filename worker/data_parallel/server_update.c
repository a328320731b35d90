/* Computes each next version of a parameter server's model, and fills the first. */
#include "worker/data_parallel/server_update.h"

#include "kernels/base/thread.h"
#include "kernels/params/gradients.h"
#include "kernels/tape/tape.h"
#include "worker/model/classifier.h"

#include <math.h>

static const double STATISTICS_MOMENTUM = 0.1; /* the weight of the new; PyTorch's default of batch norms */

float *server_model_image(const struct server_model *model, uint32_t slot)
{
    return (float *)(void *)(model->slots.data + slot * model->image_bytes);
}

/* The momentum that belongs to `version`, (P). */
static float *model_velocity(const struct server_model *model, uint64_t version)
{
    return (float *)(void *)model->velocity.data + version % 2 * model->parameters;
}

/* ---- memory ---- */

static enum status model_reorder(struct server_model *model, struct classifier *classifier,
                                 struct error *error)
{
    struct tape *tape;
    enum status status = tape_new(&tape, model->backend, error);
    if (status != STATUS_OK)
        return status;
    tape_on_progress(tape, worker_progress, model->worker);
    status = classifier_reorder(classifier, tape, error);
    tape_free(tape);
    return status;
}

/* Names, shapes and layouts, but no memory yet. Layouts depend on the number of threads with which trainers
 * compute, so the backend has as many. */
static enum status model_open_params(struct server_model *model, struct error *error)
{
    const struct backend_settings settings = {.threads = model->job->trainers.threads};
    struct classifier *classifier = NULL;
    enum status status = backend_load(&model->backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = params_new(&model->params, model->backend, error);
    if (status == STATUS_OK)
        status = classifier_new(&classifier, model->job, model->params, error);
    if (status == STATUS_OK)
        status = params_lay_out(model->params, error);
    if (status == STATUS_OK && image_reordered(model->job))
        status = model_reorder(model, classifier, error);
    classifier_free(classifier);
    return status;
}

/* Under `all` every trainer waits while an update is made, and the servers of a job make theirs at about the
 * same time; under the other rules most trainers compute meanwhile. */
static uint32_t model_threads(const struct server_model *model)
{
    const uint32_t processors = processors_count();
    if (model->job->server.round.name != JOB_ROUND_ALL || processors < model->servers)
        return 1;
    return processors / model->servers;
}

enum status server_model_open(struct server_model *model, struct worker *worker, struct error *error)
{
    struct shard shards[JOB_SERVERS_MAX];
    *model = (struct server_model){.worker = worker,
                                   .job = &worker->job,
                                   .server = worker->self.worker,
                                   .servers = worker->job.server.count};
    model->threads = model_threads(model);
    enum status status = model_open_params(model, error);
    if (status == STATUS_OK)
        status = shards_of(shards, model->params, model->servers, error);
    if (status != STATUS_OK)
        return status;
    model->shard = shards[model->server];
    for (uint32_t i = 0; i < model->servers; i++)
        model->ranges[i] = (struct params_range){shards[i].entry_first, shards[i].entry_end, i == 0};
    model->fingerprint = params_fingerprint(model->params);
    model->parameters = params_elements(model->params);
    model->elements = image_elements(model->params);
    model->image_bytes = image_bytes(model->params);
    if (model->job->optimizer.momentum == 0)
        return STATUS_OK;
    status = image_map(&model->velocity, 2 * model->parameters * sizeof(float), "the momentum", error);
    return status == STATUS_OK ? gradients_new_unplaced(&model->momentum, model->params, error) : status;
}

enum status server_model_open_slots(struct server_model *model, uint32_t slots, struct error *error)
{
    const size_t bytes = slots * model->image_bytes;
    if (model->job->transport == JOB_TRANSPORT_SHARED)
        return segment_create(&model->slots, model->worker->self.worker, bytes, error);
    return image_map(&model->slots, bytes, "the model", error);
}

void server_model_close(struct server_model *model)
{
    gradients_free(model->momentum);
    segment_detach(&model->velocity);
    params_free(model->params);
    backend_close(model->backend);
    segment_detach(&model->slots);
}

/* ---- a version ---- */

void server_model_place(struct server_model *model, uint64_t version, uint32_t slot)
{
    const float *image = server_model_image(model, slot);
    params_place(model->params, model->shard.entry_first, model->shard.entry_end, image);
    if (model->server == 0)
        params_place_buffers(model->params, image + model->parameters);
    if (model->momentum != NULL)
        gradients_place(model->momentum, model_velocity(model, version));
}

struct checkpoint_values server_model_values(const struct server_model *model)
{
    return (struct checkpoint_values){.params = model->params,
                                      .momentum = model->momentum,
                                      .shards = model->ranges,
                                      .server = model->server,
                                      .servers = model->servers};
}

/* Draws this server's entries; buffers and counters belong to server 0. */
static enum status model_draw_entries(struct server_model *model, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(model->params) && status == STATUS_OK; i++) {
        bool trained = params_at(model->params, i)->kind == PARAMETER_TRAINED;
        bool within = i >= model->shard.entry_first && i < model->shard.entry_end;
        if (trained ? within : model->server == 0)
            status = params_begin(model->params, model->job->seed, i, i + 1, error);
        worker_beat(model->worker);
    }
    return status;
}

enum status server_model_fill(struct server_model *model, uint64_t version, uint32_t slot,
                              struct error *error)
{
    const struct checkpoint_values values = server_model_values(model);
    server_model_place(model, version, slot);
    if (worker_resumes(model->worker))
        return checkpoint_load(worker_resume_path(model->worker), &values, error);
    if (model->job->init.has_path)
        return checkpoint_load_model(path_of(model->job->init.path), &values, error);
    return model_draw_entries(model, error);
}

/* ---- values that are not finite ---- */

/* The index of the first NaN or infinity, or SIZE_MAX. */
static size_t first_not_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return i;
    return SIZE_MAX;
}

/* The name of the entry in which `element` of the slab of this kind lies. */
static const char *model_entry_at(const struct server_model *model, enum parameter_kind kind, size_t element)
{
    const char *name = "";
    for (uint32_t i = 0; i < params_count(model->params); i++) {
        const struct parameter *parameter = params_at(model->params, i);
        if (parameter->kind == kind && parameter->offset <= element)
            name = parameter->name;
    }
    return name;
}

/* Whether contribution `bad` has an element in [first, first + count) that is not finite. If so, `update`
 * names the contribution, and the entry of this kind that has the element. */
static bool contribution_is_bad(const struct server_model *model, struct server_update *update, uint32_t bad,
                                enum parameter_kind kind, size_t first, size_t count)
{
    const bool statistic = kind == PARAMETER_BUFFER;
    const size_t at = first_not_finite(update->images[bad] + first, count);
    if (at == SIZE_MAX)
        return false;
    update->bad = bad;
    update->what = statistic ? "statistic" : "gradient";
    update->entry = model_entry_at(model, kind, statistic ? at : first + at);
    return true;
}

/* ---- the update ---- */

/* Server 0 keeps the statistics of the whole model. False: a contribution's are not finite. */
static bool update_move_statistics(const struct server_model *model, struct server_update *update)
{
    const size_t first = model->shard.statistics_first, count = model->shard.statistics_end - first;
    const float *now = server_model_image(model, update->from);
    float *next = server_model_image(model, update->to);
    const double weight = STATISTICS_MOMENTUM;
    for (uint32_t m = 0; m < update->count; m++)
        if (contribution_is_bad(model, update, m, PARAMETER_BUFFER, first, count))
            return false;
    for (size_t i = first; i < first + count; i++) {
        double sum = 0;
        for (uint32_t m = 0; m < update->count; m++)
            sum += (double)update->images[m][i];
        next[i] = (float)((1 - weight) * (double)now[i] + weight * (sum / update->count));
    }
    return true;
}

static enum status update_move_parameters(const struct server_model *model, struct server_update *update,
                                          struct error *error)
{
    const size_t first = model->shard.first;
    float *next = server_model_image(model, update->to) + first;
    const void *gradients[JOB_TRAINERS_MAX];
    struct sgd_round round = {.sgd = {.lr = update->lr, .momentum = model->job->optimizer.momentum},
                              .first = update->version == 0,
                              .count = model->shard.end - first,
                              .contributions = update->count,
                              .gradients = gradients,
                              .parameters = server_model_image(model, update->from) + first,
                              .parameters_out = next,
                              .threads = model->threads};
    for (uint32_t m = 0; m < update->count; m++)
        gradients[m] = update->images[m] + first;
    if (model->momentum != NULL) {
        round.velocity = model_velocity(model, update->version) + first;
        round.velocity_out = model_velocity(model, update->version + 1) + first;
    }
    enum status status = backend_sgd_round(model->backend, &round, error);
    if (status != STATUS_OK || round.not_finite == UINT32_MAX)
        return status;
    if (round.not_finite < round.contributions) {
        contribution_is_bad(model, update, round.not_finite, PARAMETER_TRAINED, first, round.count);
        return STATUS_AGAIN;
    }
    return error_set(error, STATUS_INTERNAL,
                     "update %llu: %s is not finite after a step with lr %g along finite gradients",
                     (unsigned long long)update->version + 1,
                     model_entry_at(model, PARAMETER_TRAINED, first + first_not_finite(next, round.count)),
                     update->lr);
}

enum status server_model_update(struct server_model *model, struct server_update *update, struct error *error)
{
    if (!update_move_statistics(model, update))
        return STATUS_AGAIN;
    const enum status status = update_move_parameters(model, update, error);
    for (uint32_t i = 0; i < params_count(model->params) && status == STATUS_OK; i++)
        if (params_at(model->params, i)->kind == PARAMETER_COUNTER)
            params_at(model->params, i)->counter++;
    return status;
}
