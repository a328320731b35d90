/* A model's parameters, and the gradients parallel to them.
 *
 * Entries are allocated one by one, so that a model may keep a pointer while it registers other entries. From
 * params_lay_out on, an entry's tensor is complete except for its address. Placing sets addresses alone: a
 * trainer moves from one version of the model to the next by a pass over a few hundred pointers.
 *
 * Parameters and gradients are one module because each entry has one layout: params_adopt changes it for the
 * parameter and for every gradient of that parameter at once. */
#include "kernels/params/params.h"

#include "kernels/base/fnv.h"
#include "kernels/base/rng.h"
#include "kernels/params/gradients.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every entry begins at a multiple of this. */
enum { SLAB_ALIGNMENT_BYTES = 64 };

struct params {
    struct backend *backend;
    struct parameter **entries; // (capacity), `count` of them used; each stays where it is
    uint32_t count, capacity;
    bool laid_out;               // offsets stand, no more entries come
    bool built;                  // laid out, and the slabs' memory is the params' own
    struct tensor slab, buffers; // data NULL: not placed as a whole
    uint32_t first;              // the first trained entry's number in the model of which these are a part
    struct gradients *parallels; // every gradients of these params
};

struct gradients {
    struct params *params;
    struct gradients *next;
    bool owned; // the slab's memory is ours to give back
    struct tensor slab;
    struct tensor *entries; // (params->count) by parameter index, each in its parameter's layout
    bool *written;          // (params->count) since gradients_begin
};

/* ---- slabs: one flat tensor of rank 1 that holds many entries, in the backend's memory ---- */

/* Describes a slab of `elements`, without memory. `name` is kept, not copied. */
static struct tensor slab_describe(const struct backend *backend, size_t elements, const char *name)
{
    return (struct tensor){.shape = SHAPE1((uint32_t)elements),
                           .dtype = backend->ops->dtype,
                           .bytes = elements * dtype_bytes(backend->ops->dtype),
                           .name = name};
}

/* Takes memory from the backend and fills it with zeros. A slab of 0 elements stays without. */
static enum status slab_new(struct tensor *slab, struct backend *backend, struct error *error)
{
    if (slab->bytes == 0)
        return STATUS_OK;
    slab->data = backend->source.take(backend->source.context, slab->bytes);
    if (slab->data == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %s of %zu bytes on %s", slab->name,
                         slab->bytes, backend->ops->name);
    return backend_fill(backend, slab, 0, error);
}

static void slab_free(struct tensor *slab, struct backend *backend)
{
    if (slab->data != NULL)
        backend->source.give(backend->source.context, slab->data, slab->bytes);
    slab->data = NULL;
}

static void *slab_address(const struct tensor *slab, size_t offset)
{
    return (char *)slab->data + offset * dtype_bytes(slab->dtype);
}

/* ---- registering ---- */

enum status params_new(struct params **out, struct backend *backend, struct error *error)
{
    struct params *params = calloc(1, sizeof *params);
    if (params == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for parameters");
    params->backend = backend;
    *out = params;
    return STATUS_OK;
}

static void free_entry(struct parameter *parameter)
{
    if (parameter != NULL)
        free((void *)(uintptr_t)parameter->name); // allocated by params_add, const for everyone else
    free(parameter);
}

void params_free(struct params *params)
{
    if (params == NULL)
        return;
    assert(params->parallels == NULL);
    for (uint32_t i = 0; i < params->count; i++)
        free_entry(params->entries[i]);
    free(params->entries);
    if (params->built) {
        slab_free(&params->slab, params->backend);
        slab_free(&params->buffers, params->backend);
    }
    free(params);
}

static bool params_make_room(struct params *params)
{
    if (params->count < params->capacity)
        return true;
    uint32_t capacity = params->capacity == 0 ? 16 : 2 * params->capacity;
    struct parameter **entries = reallocarray(params->entries, capacity, sizeof *entries);
    if (entries == NULL)
        return false;
    params->entries = entries;
    params->capacity = capacity;
    return true;
}

enum status params_add(struct params *params, const char *name, enum parameter_kind kind, struct shape shape,
                       struct init init, struct parameter **out, struct error *error)
{
    char text[SHAPE_TEXT_BYTES];
    assert(!params->laid_out && isfinite(init.value));
    assert(kind != PARAMETER_COUNTER || shape.rank == 0);
    assert(kind == PARAMETER_TRAINED || init.kind == INIT_CONSTANT);
    if (params_find(params, name) != NULL)
        return error_set(error, STATUS_INVALID, "parameter name \"%s\" is there already", name);
    if (shape_elements(&shape) == 0)
        return error_set(error, STATUS_INVALID, "parameter %s: expected 1..%d elements, got shape %s", name,
                         SHAPE_ELEMENTS_MAX, shape_text(&shape, text));
    struct parameter *parameter = calloc(1, sizeof *parameter);
    char *copy = strdup(name);
    if (parameter == NULL || copy == NULL || !params_make_room(params)) {
        free(parameter);
        free(copy);
        return error_set(error, STATUS_NO_MEMORY, "no memory for parameter %s", name);
    }
    *parameter = (struct parameter){.name = copy,
                                    .kind = kind,
                                    .index = params->count,
                                    .init = init,
                                    .tensor = {.shape = shape, .dtype = params->backend->ops->dtype},
                                    .params = params};
    parameter->tensor.name = copy;
    params->entries[params->count++] = parameter;
    *out = parameter;
    return STATUS_OK;
}

/* ---- looking ---- */

uint32_t params_count(const struct params *params)
{
    return params->count;
}

struct parameter *params_at(struct params *params, uint32_t index)
{
    return params->entries[index];
}

struct parameter *params_find(struct params *params, const char *name)
{
    for (uint32_t i = 0; i < params->count; i++)
        if (strcmp(params->entries[i]->name, name) == 0)
            return params->entries[i];
    return NULL;
}

struct backend *params_backend(const struct params *params)
{
    return params->backend;
}

const struct tensor *params_slab(const struct params *params)
{
    return &params->slab;
}

const struct tensor *params_buffers(const struct params *params)
{
    return &params->buffers;
}

/* ---- laying out ---- */

/* Gives the entries of one kind their offsets. *elements becomes the slab's size, gaps included. */
static enum status lay_out_kind(struct params *params, enum parameter_kind kind, size_t *elements,
                                struct error *error)
{
    const size_t unit = dtype_bytes(params->backend->ops->dtype), step = SLAB_ALIGNMENT_BYTES / unit;
    *elements = 0;
    for (uint32_t i = 0; i < params->count; i++) {
        struct parameter *parameter = params->entries[i];
        if (parameter->kind != kind)
            continue;
        size_t count = shape_elements(&parameter->tensor.shape);
        parameter->offset = *elements;
        parameter->tensor.bytes = count * unit;
        *elements += (count + step - 1) / step * step;
        if (*elements > SHAPE_ELEMENTS_MAX)
            return error_set(error, STATUS_INVALID,
                             "parameter %s: the parameters up to here have %zu elements, at most %d can be",
                             parameter->name, *elements, SHAPE_ELEMENTS_MAX);
    }
    return STATUS_OK;
}

enum status params_lay_out(struct params *params, struct error *error)
{
    assert(!params->laid_out);
    size_t trained = 0, buffers = 0;
    enum status status = lay_out_kind(params, PARAMETER_TRAINED, &trained, error);
    if (status == STATUS_OK)
        status = lay_out_kind(params, PARAMETER_BUFFER, &buffers, error);
    if (status != STATUS_OK)
        return status;
    params->slab = slab_describe(params->backend, trained, "parameters");
    params->buffers = slab_describe(params->backend, buffers, "buffers");
    params->laid_out = true;
    return STATUS_OK;
}

size_t params_elements(const struct params *params)
{
    assert(params->laid_out);
    return params->slab.shape.size[0];
}

size_t params_buffer_elements(const struct params *params)
{
    assert(params->laid_out);
    return params->buffers.shape.size[0];
}

/* ---- placing ---- */

/* Places the entries of one kind with an index in [first, end) in `slab`, which has memory. Returns their
 * number. */
static uint32_t place_kind(struct params *params, enum parameter_kind kind, uint32_t first, uint32_t end,
                           const struct tensor *slab)
{
    uint32_t placed = 0;
    for (uint32_t i = first; i < end; i++) {
        struct parameter *parameter = params->entries[i];
        if (parameter->kind != kind)
            continue;
        parameter->tensor.data = slab_address(slab, parameter->offset);
        placed++;
    }
    return placed;
}

static uint32_t count_kind(const struct params *params, enum parameter_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < params->count; i++)
        count += params->entries[i]->kind == kind;
    return count;
}

/* The slab with element 0 at `data`. The tensor's memory counts as writable; the caller writes to none that
 * is mapped read-only. */
static struct tensor slab_at(const struct params *params, const struct tensor *slab, const void *data)
{
    assert(params->laid_out && !params->built && params->backend->ops->host);
    assert(data != NULL && (uintptr_t)data % SLAB_ALIGNMENT_BYTES == 0);
    struct tensor at = *slab;
    at.data = (void *)(uintptr_t)data;
    return at;
}

void params_place(struct params *params, uint32_t first, uint32_t end, const void *slab)
{
    assert(first <= end && end <= params->count);
    const struct tensor at = slab_at(params, &params->slab, slab);
    const bool whole =
        place_kind(params, PARAMETER_TRAINED, first, end, &at) == count_kind(params, PARAMETER_TRAINED);
    params->slab.data = whole ? at.data : NULL;
}

void params_place_buffers(struct params *params, const void *buffers)
{
    const struct tensor at = slab_at(params, &params->buffers, buffers);
    place_kind(params, PARAMETER_BUFFER, 0, params->count, &at);
    params->buffers.data = at.data;
}

void params_displace(struct params *params)
{
    assert(params->laid_out && !params->built);
    for (uint32_t i = 0; i < params->count; i++)
        params->entries[i]->tensor.data = NULL;
    params->slab.data = NULL;
    params->buffers.data = NULL;
}

/* ---- first values ----
 *
 * They are drawn in float32 on the host and uploaded, so that a seed means the same numbers on every backend,
 * the double one included. */

void params_count_from(struct params *params, uint32_t first)
{
    assert(!params->built);
    params->first = first;
}

static void draw_uniform(float *values, uint32_t count, struct rng_key key, double bound)
{
    for (uint32_t element = 0; element < count; element++)
        values[element] = rng_initial_uniform(key.seed, key.episode, element, bound);
}

static void draw_normal(float *values, uint32_t count, struct rng_key key, double deviation)
{
    for (uint32_t element = 0; element < count; element++) {
        uint32_t words[4];
        key.environment = element;
        rng_block(&key, RNG_INIT, 0, words);
        values[element] = (float)rng_normal(words, deviation);
    }
}

/* `host` has room for the entry. `trained` is its index among the trained ones. */
static enum status begin_entry(struct params *params, struct parameter *parameter, uint64_t seed,
                               uint32_t trained, float *host, struct error *error)
{
    const struct rng_key key = {.seed = seed, .episode = trained};
    uint32_t count = (uint32_t)shape_elements(&parameter->tensor.shape);
    switch (parameter->init.kind) {
    case INIT_CONSTANT:
        return backend_fill(params->backend, &parameter->tensor, parameter->init.value, error);
    case INIT_UNIFORM:
        draw_uniform(host, count, key, parameter->init.value);
        break;
    case INIT_NORMAL:
        draw_normal(host, count, key, parameter->init.value);
        break;
    }
    return backend_upload(params->backend, &parameter->tensor, DTYPE_F32, host, error);
}

/* The first values of the entries in [first, end). `host` has room for the largest. */
static enum status begin_entries(struct params *params, uint64_t seed, uint32_t first, uint32_t end,
                                 float *host, struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t trained = params->first;
    for (uint32_t i = 0; i < end && status == STATUS_OK; i++) {
        struct parameter *parameter = params->entries[i];
        if (i >= first && parameter->kind == PARAMETER_COUNTER)
            parameter->counter = (int64_t)parameter->init.value;
        else if (i >= first)
            status = begin_entry(params, parameter, seed, trained, host, error);
        trained += parameter->kind == PARAMETER_TRAINED;
    }
    return status;
}

enum status params_begin(struct params *params, uint64_t seed, uint32_t first, uint32_t end,
                         struct error *error)
{
    assert(params->laid_out && first <= end && end <= params->count);
    size_t largest = 0;
    for (uint32_t i = first; i < end; i++) {
        const struct parameter *parameter = params->entries[i];
        assert(parameter->kind == PARAMETER_COUNTER || parameter->tensor.data != NULL);
        size_t count = shape_elements(&parameter->tensor.shape);
        largest = count > largest ? count : largest;
    }
    float *host = malloc((largest + 1) * sizeof *host);
    if (host == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to draw %zu initial values", largest);
    enum status status = begin_entries(params, seed, first, end, host, error);
    free(host);
    return status;
}

enum status params_build(struct params *params, uint64_t seed, struct error *error)
{
    enum status status = params_lay_out(params, error);
    if (status != STATUS_OK)
        return status;
    params->built = true;
    status = slab_new(&params->slab, params->backend, error);
    if (status == STATUS_OK)
        status = slab_new(&params->buffers, params->backend, error);
    if (status != STATUS_OK)
        return status;
    place_kind(params, PARAMETER_TRAINED, 0, params->count, &params->slab);
    place_kind(params, PARAMETER_BUFFER, 0, params->count, &params->buffers);
    return params_begin(params, seed, 0, params->count, error);
}

/* ---- reading and writing ---- */

enum status params_read(struct params *params, const struct parameter *parameter, enum dtype dtype,
                        void *values, struct error *error)
{
    return backend_download(params->backend, &parameter->tensor, dtype, values, error);
}

enum status params_write(struct params *params, struct parameter *parameter, enum dtype dtype,
                         const void *values, struct error *error)
{
    return backend_upload(params->backend, &parameter->tensor, dtype, values, error);
}

/* ---- layouts ---- */

void params_adopt(struct params *params)
{
    if (params->backend->ops->layout_hash == NULL)
        return;
    for (uint32_t i = 0; i < params->count; i++) {
        struct tensor *tensor = &params->entries[i]->tensor;
        if (params->entries[i]->kind != PARAMETER_TRAINED || tensor->wanted == NULL)
            continue;
        tensor->layout = tensor->wanted;
        tensor->wanted = NULL;
        for (struct gradients *each = params->parallels; each != NULL; each = each->next)
            each->entries[i].layout = tensor->layout;
    }
}

static uint64_t fingerprint(const struct params *params, bool canonical)
{
    const struct backend_ops *ops = params->backend->ops;
    uint64_t hash = FNV1A_BEGIN;
    assert(params->laid_out);
    for (uint32_t i = 0; i < params->count; i++) {
        const struct parameter *parameter = params->entries[i];
        const struct tensor *tensor = &parameter->tensor;
        hash = fnv1a(hash, parameter->name, strlen(parameter->name) + 1);
        hash = fnv1a_number(hash, parameter->kind, 4);
        hash = fnv1a_number(hash, tensor->shape.rank, 4);
        for (uint32_t d = 0; d < tensor->shape.rank; d++)
            hash = fnv1a_number(hash, tensor->shape.size[d], 4);
        hash =
            fnv1a_number(hash, canonical || tensor->layout == NULL ? 0 : ops->layout_hash(tensor->layout), 8);
    }
    return hash;
}

uint64_t params_fingerprint(const struct params *params)
{
    return fingerprint(params, false);
}

uint64_t params_fingerprint_canonical(const struct params *params)
{
    return fingerprint(params, true);
}

/* ---- gradients ---- */

/* An entry parallel to `parameter`, in its present layout, before it has a place. */
static struct tensor gradients_describe(const struct parameter *parameter)
{
    struct tensor entry = parameter->tensor;
    entry.data = NULL;
    entry.wanted = NULL;
    return entry;
}

enum status gradients_new_unplaced(struct gradients **out, struct params *params, struct error *error)
{
    assert(params->laid_out);
    struct gradients *gradients = calloc(1, sizeof *gradients);
    if (gradients == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for gradients");
    gradients->params = params;
    gradients->next = params->parallels;
    params->parallels = gradients;
    gradients->slab = slab_describe(params->backend, params_elements(params), "gradients");
    gradients->entries = calloc((size_t)params->count + 1, sizeof *gradients->entries);
    gradients->written = calloc((size_t)params->count + 1, sizeof *gradients->written);
    if (gradients->entries == NULL || gradients->written == NULL) {
        gradients_free(gradients);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u gradients", params->count);
    }
    for (uint32_t i = 0; i < params->count; i++)
        if (params->entries[i]->kind == PARAMETER_TRAINED)
            gradients->entries[i] = gradients_describe(params->entries[i]);
    *out = gradients;
    return STATUS_OK;
}

/* Sets the address of every entry. */
static void gradients_place_entries(struct gradients *gradients)
{
    const struct params *params = gradients->params;
    for (uint32_t i = 0; i < params->count; i++)
        if (params->entries[i]->kind == PARAMETER_TRAINED)
            gradients->entries[i].data = slab_address(&gradients->slab, params->entries[i]->offset);
}

enum status gradients_new(struct gradients **out, struct params *params, struct error *error)
{
    struct gradients *gradients;
    enum status status = gradients_new_unplaced(&gradients, params, error);
    if (status != STATUS_OK)
        return status;
    gradients->owned = true;
    status = slab_new(&gradients->slab, params->backend, error);
    if (status != STATUS_OK) {
        gradients_free(gradients);
        return status;
    }
    gradients_place_entries(gradients);
    *out = gradients;
    return STATUS_OK;
}

void gradients_place(struct gradients *gradients, void *slab)
{
    assert(!gradients->owned && gradients->params->backend->ops->host);
    assert(slab != NULL && (uintptr_t)slab % SLAB_ALIGNMENT_BYTES == 0);
    gradients->slab.data = slab;
    gradients_place_entries(gradients);
}

void gradients_free(struct gradients *gradients)
{
    if (gradients == NULL)
        return;
    struct params *params = gradients->params;
    struct gradients **link = &params->parallels;
    while (*link != gradients)
        link = &(*link)->next;
    *link = gradients->next;
    if (gradients->owned)
        slab_free(&gradients->slab, params->backend);
    free(gradients->entries);
    free(gradients->written);
    free(gradients);
}

struct tensor *gradients_slab(struct gradients *gradients)
{
    return &gradients->slab;
}

struct params *gradients_params(struct gradients *gradients)
{
    return gradients->params;
}

/* ---- gradients of one step ---- */

void gradients_begin(struct gradients *gradients)
{
    memset(gradients->written, 0, gradients->params->count * sizeof *gradients->written);
}

struct tensor *gradients_take(struct gradients *gradients, const struct parameter *parameter, bool *fresh)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    *fresh = !gradients->written[parameter->index];
    gradients->written[parameter->index] = true;
    return &gradients->entries[parameter->index];
}

const struct tensor *gradients_written(const struct gradients *gradients, const struct parameter *parameter)
{
    return gradients->written[parameter->index] ? &gradients->entries[parameter->index] : NULL;
}

enum status gradients_complete(struct gradients *gradients, struct error *error)
{
    struct params *params = gradients->params;
    for (uint32_t i = 0; i < params->count; i++) {
        if (params->entries[i]->kind != PARAMETER_TRAINED || gradients->written[i])
            continue;
        enum status status = backend_fill(params->backend, &gradients->entries[i], 0, error);
        if (status != STATUS_OK)
            return status;
        gradients->written[i] = true;
    }
    return STATUS_OK;
}

enum status gradients_write(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                            const void *values, struct error *error)
{
    bool fresh;
    return backend_upload(gradients->params->backend, gradients_take(gradients, parameter, &fresh), dtype,
                          values, error);
}

enum status gradients_add(struct gradients *to, struct gradients *from, const struct parameter *parameter,
                          struct error *error)
{
    struct params *params = to->params;
    assert(from->params == params && parameter->params == params && from->written[parameter->index]);
    bool fresh;
    struct tensor *sum = gradients_take(to, parameter, &fresh);
    enum status status = STATUS_OK;
    if (fresh) // -0 + x is x, whatever sign a zero has
        status = backend_fill(params->backend, sum, -0.0, error);
    if (status == STATUS_OK)
        status = backend_accumulate(params->backend, sum, &from->entries[parameter->index], error);
    return status;
}

/* ---- reading and checking gradients ---- */

enum status gradients_read(struct gradients *gradients, const struct parameter *parameter, enum dtype dtype,
                           void *values, struct error *error)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK)
        status = backend_download(gradients->params->backend, &gradients->entries[parameter->index], dtype,
                                  values, error);
    return status;
}

enum status gradients_square_sum(struct gradients *gradients, const struct parameter *parameter, double *sum,
                                 struct error *error)
{
    assert(parameter->params == gradients->params && parameter->kind == PARAMETER_TRAINED);
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK)
        status =
            backend_square_sum(gradients->params->backend, &gradients->entries[parameter->index], sum, error);
    return status;
}

/* A device is waited for once: its sum is over the slab. */
enum status gradients_squares(struct gradients *gradients, double *sum, struct error *error)
{
    struct params *params = gradients->params;
    *sum = 0;
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK && !params->backend->ops->host && gradients->slab.bytes > 0)
        return backend_square_sum(params->backend, &gradients->slab, sum, error);
    for (uint32_t i = 0; i < params->count && status == STATUS_OK; i++) {
        double part = 0;
        if (params->entries[i]->kind == PARAMETER_TRAINED)
            status = backend_square_sum(params->backend, &gradients->entries[i], &part, error);
        *sum += part;
    }
    return status;
}

/* Entries lie in the slab in their order of registration. */
enum status gradients_check(struct gradients *gradients, struct error *error)
{
    struct params *params = gradients->params;
    size_t index = SIZE_MAX;
    enum status status = gradients_complete(gradients, error);
    if (status == STATUS_OK && gradients->slab.bytes > 0)
        status = backend_first_not_finite(params->backend, &gradients->slab, &index, error);
    if (status != STATUS_OK || index == SIZE_MAX)
        return status;
    uint32_t i = params->count - 1;
    while (params->entries[i]->kind != PARAMETER_TRAINED || params->entries[i]->offset > index)
        i--;
    return error_set(error, STATUS_INTERNAL,
                     "the gradient of %s holds a NaN or an infinity (element %zu in memory)",
                     params->entries[i]->name, index - params->entries[i]->offset);
}
