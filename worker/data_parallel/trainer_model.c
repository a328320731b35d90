/* Places a trainer's model and gradient in memory, and takes new versions of the model. trainer.h names the
 * memories. The trainer's one thread runs this. Blocks only while computing, and while waiting for messages
 * when memory is not shared. */
#include "kernels/params/gradients.h"
#include "worker/data_parallel/trainer.h"

#include "worker/device.h"

#include <stdlib.h>

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

/* Makes params and gradients in the layouts of the servers' images, without memory. */
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

/* Gives the net parameters and gradients of its own, and opens the mirror. */
static enum status model_open_mirror(struct trainer *t, struct error *error)
{
    const struct backend_settings settings = {.threads = t->job->trainers.threads};
    enum status status = classifier_build(t->net.classifier, t->net.tape, error);
    if (status == STATUS_OK)
        status = gradients_new(&t->net.gradients, t->net.params, error);
    if (status == STATUS_OK)
        status = backend_load(&t->mirror.backend, "onednn", &settings, error);
    return status == STATUS_OK ? net_open(&t->mirror, t, error) : status;
}

static enum status model_open_scratch(struct trainer *t, struct error *error)
{
    size_t largest = 1;
    for (uint32_t i = 0; i < params_count(t->net.params); i++) {
        const size_t count = shape_elements(&params_at(t->net.params, i)->tensor.shape);
        largest = count > largest ? count : largest;
    }
    t->scratch = malloc(largest * sizeof *t->scratch);
    if (t->scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a parameter of %zu numbers", largest);
    return STATUS_OK;
}

static void model_find_far_servers(struct trainer *t)
{
    for (uint32_t server = 0; server < t->servers; server++) {
        t->travels[server] = image_travels(t->job, t->rpc, (uint16_t)server);
        t->far += t->travels[server];
    }
}

/* Opens the inbox, and places the far servers' entries there. Each version overwrites the one before. */
static enum status model_open_inbox(struct trainer *t, struct error *error)
{
    struct params *params = t->placed->params;
    const bool in_place = t->placed == &t->net;
    enum status status = STATUS_OK;
    if (in_place && t->far > 0)
        status = image_map(&t->inbox, image_bytes(params), "a version", error);
    if (status != STATUS_OK)
        return status;
    t->inbox_image = in_place ? (float *)(void *)t->inbox.data : t->outbox_image;
    for (uint32_t server = 0; server < t->servers; server++)
        if (t->travels[server])
            params_place(params, t->shards[server].entry_first, t->shards[server].entry_end, t->inbox_image);
    if (t->travels[0])
        params_place_buffers(params, t->inbox_image + t->parameters);
    return STATUS_OK;
}

/* Opens the outbox, and places the gradients there. Then opens the inbox. */
static enum status model_open_outbox(struct trainer *t, struct error *error)
{
    struct params *params = t->placed->params;
    t->fingerprint = params_fingerprint(params);
    t->parameters = params_elements(params);
    t->elements = image_elements(params);
    enum status status = shards_of(t->shards, params, t->servers, error);
    if (status == STATUS_OK)
        status = t->far < t->servers
                     ? segment_create(&t->outbox, t->worker->self.worker, image_bytes(params), error)
                     : image_map(&t->outbox, image_bytes(params), "an image", error);
    if (status != STATUS_OK)
        return status;
    t->outbox_image = (float *)(void *)t->outbox.data;
    gradients_place(t->placed->gradients, t->outbox_image);
    status = model_open_inbox(t, error);
    return status == STATUS_OK ? trainer_open_rounding(t, error) : status;
}

enum status trainer_model_open(struct trainer *t, struct error *error)
{
    enum status status =
        device_open(&t->net.backend, t->job, t->job->trainers.threads, t->number == 0, error);
    if (status == STATUS_OK)
        status = net_open(&t->net, t, error);
    if (status != STATUS_OK)
        return status;
    const bool in_place = t->job->transport == JOB_TRANSPORT_SHARED && t->net.backend->ops->host;
    model_find_far_servers(t);
    t->placed = in_place ? &t->net : &t->mirror;
    if (!in_place)
        status = model_open_mirror(t, error);
    if (status == STATUS_OK)
        status = net_lay_out(t->placed, t->job, error);
    tape_free(t->mirror.tape); // with the memory of the forward that has found the layouts
    t->mirror.tape = NULL;
    if (status == STATUS_OK && !in_place)
        status = model_open_scratch(t, error);
    return status == STATUS_OK ? model_open_outbox(t, error) : status;
}

void trainer_model_close(struct trainer *t)
{
    net_close(&t->net);
    net_close(&t->mirror);
    for (uint32_t server = 0; server < t->servers; server++)
        segment_detach(&t->slots[server]);
    segment_detach(&t->outbox);
    segment_detach(&t->inbox);
    trainer_close_rounding(t);
    free(t->scratch);
}

/* ---- between the mirror and the net ---- */

/* Copies the parameters and statistics from the mirror to the net. */
static enum status mirror_read_values(struct trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(t->mirror.params) && status == STATUS_OK; i++) {
        const struct parameter *from = params_at(t->mirror.params, i);
        const float *values = from->tensor.data;
        if (from->kind == PARAMETER_COUNTER)
            continue;
        if (from->tensor.layout != NULL) {
            status = params_read(t->mirror.params, from, DTYPE_F32, t->scratch, error);
            values = t->scratch;
        }
        if (status == STATUS_OK)
            status = params_write(t->net.params, params_at(t->net.params, i), DTYPE_F32, values, error);
    }
    return status;
}

/* ---- taking a version ---- */

/* Places the entries of each server that shares memory on that server's slot. */
static enum status params_place_on_slots(struct trainer *t, struct params *params,
                                         const struct trainer_version *version, struct error *error)
{
    const size_t bytes = image_bytes(params);
    for (uint32_t server = 0; server < t->servers; server++) {
        struct segment *slots = &t->slots[server];
        const struct shard *shard = &t->shards[server];
        if (t->travels[server])
            continue;
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
    enum status status = params_place_on_slots(t, t->placed->params, version, error);
    if (status == STATUS_OK && t->far > 0)
        status = trainer_pull(t, version->version, error);
    return status == STATUS_OK && t->placed == &t->mirror ? mirror_read_values(t, error) : status;
}
