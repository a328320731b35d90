/* Where a trainer's model and gradient lie; worker/server/trainer.h lists the cases. The trainer's one
 * thread. Nothing here waits but for the arithmetic, and for messages where memory is not shared. */
#include "kernels/params/gradients.h"
#include "worker/server/trainer.h"

#include "worker/device.h"

#include <stdlib.h>
#include <string.h>

/* ---- a network on params ---- */

static enum status net_open(struct trainer_net *net, struct trainer *t, struct error *error)
{
    enum status status = params_new(&net->params, net->backend, error);
    if (status == STATUS_OK)
        status = tape_new(&net->tape, net->backend, error);
    if (status != STATUS_OK)
        return status;
    tape_on_progress(net->tape, trainer_progress, t);
    return classifier_new(&net->classifier, t->job, net->params, error);
}

static void net_close(struct trainer_net *net)
{
    tape_free(net->tape);
    gradients_free(net->gradients);
    classifier_free(net->classifier);
    params_free(net->params);
    backend_close(net->backend);
    *net = (struct trainer_net){0};
}

/* Params and gradients without memory, in the layouts of the servers' images. */
static enum status net_lay_out(struct trainer_net *net, const struct job *job, struct error *error)
{
    enum status status = params_lay_out(net->params, error);
    if (status == STATUS_OK && image_reordered(job))
        status = classifier_reorder(net->classifier, net->tape, error);
    if (status == STATUS_OK)
        status = gradients_new_unplaced(&net->gradients, net->params, error);
    return status;
}

/* ---- opening ---- */

/* Params in the servers' layouts, for reading and writing their images; it never computes more than the
 * forward that finds these out. */
static enum status mirror_open(struct trainer *t, struct error *error)
{
    const struct backend_settings settings = {.threads = t->job->trainers.threads};
    enum status status = backend_load(&t->mirror.backend, "onednn", &settings, error);
    if (status == STATUS_OK)
        status = net_open(&t->mirror, t, error);
    if (status == STATUS_OK)
        status = net_lay_out(&t->mirror, t->job, error);
    tape_free(t->mirror.tape);
    t->mirror.tape = NULL;
    return status;
}

/* Messages carry canonical elements, so the fingerprint is that of a model without layouts. */
static enum status net_canonical_fingerprint(struct trainer *t, struct error *error)
{
    struct params *params;
    struct classifier *classifier = NULL;
    enum status status = params_new(&params, t->net.backend, error);
    if (status != STATUS_OK)
        return status;
    status = classifier_new(&classifier, t->job, params, error);
    if (status == STATUS_OK)
        status = params_lay_out(params, error);
    if (status == STATUS_OK)
        t->fingerprint = params_fingerprint(params);
    classifier_free(classifier);
    params_free(params);
    return status;
}

/* Params and gradients of the trainer's own. */
static enum status model_open_own(struct trainer *t, struct error *error)
{
    enum status status = classifier_build(t->net.classifier, t->net.tape, error);
    if (status == STATUS_OK)
        status = gradients_new(&t->net.gradients, t->net.params, error);
    if (status == STATUS_OK && t->job->transport == JOB_TRANSPORT_SHARED)
        status = mirror_open(t, error);
    else if (status == STATUS_OK)
        status = net_canonical_fingerprint(t, error);
    return status;
}

static enum status model_open_image(struct trainer *t, struct error *error)
{
    struct params *params = t->net.params;
    enum status status = STATUS_OK;
    t->parameters = params_elements(params);
    t->elements = image_elements(params);
    for (uint32_t server = 0; server < t->servers && status == STATUS_OK; server++)
        status = shard_of(&t->shards[server], params, server, t->servers, error);
    if (status == STATUS_OK && !t->in_place) {
        t->image = calloc(t->elements, sizeof *t->image);
        if (t->image == NULL)
            status =
                error_set(error, STATUS_NO_MEMORY, "no memory for an image of %zu elements", t->elements);
    }
    return status;
}

/* The outbox, with the gradients on it that others read. */
static enum status model_open_outbox(struct trainer *t, struct error *error)
{
    struct trainer_net *on = t->in_place ? &t->net : &t->mirror;
    enum status status = segment_create(&t->outbox, t->worker->self.worker, image_bytes(on->params), error);
    if (status != STATUS_OK)
        return status;
    gradients_place(on->gradients, t->outbox.data);
    t->fingerprint = params_fingerprint(on->params);
    return STATUS_OK;
}

enum status trainer_model_open(struct trainer *t, struct error *error)
{
    enum status status =
        device_open(&t->net.backend, t->job, t->job->trainers.threads, t->number == 0, error);
    if (status == STATUS_OK)
        status = net_open(&t->net, t, error);
    if (status != STATUS_OK)
        return status;
    const bool shared = t->job->transport == JOB_TRANSPORT_SHARED;
    t->in_place = shared && t->net.backend->ops->host;
    status = t->in_place ? net_lay_out(&t->net, t->job, error) : model_open_own(t, error);
    if (status == STATUS_OK)
        status = model_open_image(t, error);
    if (status == STATUS_OK && shared)
        status = model_open_outbox(t, error);
    return status;
}

void trainer_model_close(struct trainer *t)
{
    net_close(&t->net);
    net_close(&t->mirror);
    for (uint32_t server = 0; server < t->servers; server++)
        segment_detach(&t->slots[server]);
    segment_detach(&t->outbox);
    free(t->image);
    t->image = NULL;
}

/* ---- between params and image ---- */

static float *image_offset_of(const struct trainer *t, const struct parameter *parameter)
{
    return t->image + parameter->offset + (parameter->kind == PARAMETER_BUFFER ? t->parameters : 0);
}

static enum status image_read_entries(struct trainer *t, struct params *params, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++) {
        const struct parameter *parameter = params_at(params, i);
        if (parameter->kind != PARAMETER_COUNTER)
            status = params_read(params, parameter, DTYPE_F32, image_offset_of(t, parameter), error);
    }
    return status;
}

static enum status image_write_entries(struct trainer *t, struct params *params, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++) {
        struct parameter *parameter = params_at(params, i);
        if (parameter->kind != PARAMETER_COUNTER)
            status = params_write(params, parameter, DTYPE_F32, image_offset_of(t, parameter), error);
    }
    return status;
}

/* Copies the net's gradients to the image, and to the mirror's gradients where there is a mirror. */
static enum status image_read_gradients(struct trainer *t, struct error *error)
{
    struct params *params = t->net.params;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(params) && status == STATUS_OK; i++) {
        const struct parameter *parameter = params_at(params, i);
        bool fresh;
        if (parameter->kind != PARAMETER_TRAINED)
            continue;
        status = gradients_read(t->net.gradients, parameter, DTYPE_F32, image_offset_of(t, parameter), error);
        if (status == STATUS_OK && t->mirror.params != NULL)
            status =
                backend_upload(t->mirror.backend,
                               gradients_take(t->mirror.gradients, params_at(t->mirror.params, i), &fresh),
                               DTYPE_F32, image_offset_of(t, parameter), error);
    }
    return status;
}

/* ---- taking and giving ---- */

/* Params onto the servers' slots, each server's entries on its own. */
static enum status net_place_on_slots(struct trainer *t, struct params *params,
                                      const struct trainer_version *version, struct error *error)
{
    const size_t bytes = image_bytes(params);
    for (uint32_t server = 0; server < t->servers; server++) {
        struct segment *slots = &t->slots[server];
        const struct shard *shard = &t->shards[server];
        enum status status =
            slots->data == NULL ? segment_attach(slots, (uint16_t)server, bytes, error) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
        const float *slot = segment_at(slots, version->offset[server], bytes);
        if (slot == NULL)
            return error_set(
                error, STATUS_INTERNAL,
                "server %u says that version %llu lies at %llu: expected a place for %zu bytes in "
                "a segment of %zu",
                server, (unsigned long long)version->version, (unsigned long long)version->offset[server],
                bytes, slots->bytes);
        params_place(params, shard->entry_first, shard->entry_end, slot);
        if (server == 0)
            params_place_buffers(params, slot + t->parameters);
    }
    return STATUS_OK;
}

enum status trainer_model_take(struct trainer *t, const struct trainer_version *version, struct error *error)
{
    if (t->in_place)
        return net_place_on_slots(t, t->net.params, version, error);
    enum status status;
    if (t->mirror.params == NULL) {
        status = trainer_chunks_pull(t, version->version, error);
    } else {
        status = net_place_on_slots(t, t->mirror.params, version, error);
        if (status == STATUS_OK)
            status = image_read_entries(t, t->mirror.params, error);
    }
    return status == STATUS_OK ? image_write_entries(t, t->net.params, error) : status;
}

float *trainer_model_statistics(struct trainer *t)
{
    return (t->in_place ? (float *)(void *)t->outbox.data : t->image) + t->parameters;
}

enum status trainer_model_give(struct trainer *t, struct error *error)
{
    if (t->in_place)
        return gradients_complete(t->net.gradients, error);
    enum status status = image_read_gradients(t, error);
    if (status != STATUS_OK)
        return status;
    if (t->mirror.params == NULL)
        return trainer_chunks_push(t, t->at.step, error);
    memcpy(t->outbox.data + t->parameters * sizeof *t->image, t->image + t->parameters,
           (t->elements - t->parameters) * sizeof *t->image);
    return STATUS_OK;
}
