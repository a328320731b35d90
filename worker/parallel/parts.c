/* The parts: how they are made, and one forward each. The thread of the worker that holds them. */
#include "worker/parallel/parts.h"

#include "worker/autograd/dist_versions.h"
#include "worker/device.h"
#include "worker/parallel/parallel.h"

#include <stdlib.h>
#include <string.h>

struct part {
    enum job_layer which;
    struct rnn_config rnn;
    uint64_t seed;
    struct backend *backend;
    struct params *params;
    struct dist_versions *versions; // NULL: one
    union {
        struct rnn_encoder encoder;
        struct rnn_lstm lstm;
        struct rnn_decoder decoder;
    } model;
    float *stack; // (stack_count) one state's layers on their way out
    size_t stack_count;
};

/* ---- making ---- */

/* Its parameters, and how many of the model's come before them. */
static enum status register_part(struct part *part, struct error *error)
{
    const uint32_t before_decoder = 1 + 4 * part->rnn.layers;
    switch (part->which) {
    case JOB_LAYER_EMBEDDING:
        return rnn_encoder_init(&part->model.encoder, &part->rnn, part->params, error);
    case JOB_LAYER_LSTM:
        params_count_from(part->params, 1);
        return rnn_lstm_init(&part->model.lstm, &part->rnn, part->params, error);
    default:
        params_count_from(part->params, before_decoder);
        return rnn_decoder_init(&part->model.decoder, &part->rnn, part->params, error);
    }
}

static enum status build(struct part *part, const struct part_settings *settings, struct error *error)
{
    if (settings->versions == 0)
        return params_build(part->params, settings->seed, error);
    enum status status = params_lay_out(part->params, error);
    if (status == STATUS_OK)
        status = dist_versions_new(&part->versions, part->params, settings->versions, error);
    if (status == STATUS_OK)
        status = params_begin(part->params, settings->seed, 0, params_count(part->params), error);
    return status;
}

enum status part_new(struct part **out, enum job_layer which, const struct part_settings *settings,
                     const struct job *job, struct error *error)
{
    struct part *part = calloc(1, sizeof *part);
    if (part == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a part of the model");
    part->which = which;
    part->rnn = settings->rnn;
    part->seed = settings->seed;
    enum status status = device_open(&part->backend, job, settings->threads, false, error);
    if (status == STATUS_OK)
        status = params_new(&part->params, part->backend, error);
    if (status == STATUS_OK)
        status = register_part(part, error);
    if (status == STATUS_OK)
        status = build(part, settings, error);
    if (status == STATUS_OK)
        *out = part;
    else
        part_free(part);
    return status;
}

void part_free(struct part *part)
{
    if (part == NULL)
        return;
    dist_versions_free(part->versions);
    params_free(part->params);
    backend_close(part->backend);
    free(part->stack);
    free(part);
}

struct backend *part_backend(struct part *part)
{
    return part->backend;
}

struct params *part_params(struct part *part)
{
    return part->params;
}

/* ---- forward ---- */

/* Whether input `index` is there with this type and shape, of which 0 is any size. The tape tells where not.
 */
static bool fits(const struct part *part, struct tape *tape, struct variable *const in[], uint32_t index,
                 const char *what, enum dtype dtype, const struct shape *shape)
{
    char came[SHAPE_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    const struct tensor *tensor = in[index] != NULL ? variable_tensor(in[index]) : NULL;
    const char *name = part_classes[part->which].name;
    if (tensor == NULL) {
        tape_fail(tape, STATUS_INVALID, "%s: expected %s as input %u, got none", name, what, index);
        return false;
    }
    struct shape wanted = *shape;
    for (uint32_t i = 0; i < shape->rank && i < tensor->shape.rank; i++)
        if (wanted.size[i] == 0)
            wanted.size[i] = tensor->shape.size[i];
    if (tensor->dtype == dtype && tensor->layout == NULL && shape_equal(&tensor->shape, &wanted))
        return true;
    tape_fail(tape, STATUS_INVALID, "%s: expected %s of rank %u, %s, %s, got %s, %s", name, what, shape->rank,
              shape_text(&wanted, expected), dtype_name(dtype), shape_text(&tensor->shape, came),
              dtype_name(tensor->dtype));
    return false;
}

static uint32_t embedding_forward(struct part *part, struct tape *tape, struct variable *const in[],
                                  const struct draw *draw, struct variable *out[])
{
    if (!fits(part, tape, in, 0, "tokens (steps, batch)", DTYPE_I32, &(struct shape){.rank = 2}))
        return 0;
    out[0] = rnn_encoder_forward(&part->model.encoder, &part->rnn, tape, in[0], draw);
    return 1;
}

/* One layer of a state that holds all of them one behind the other. */
static struct variable *layer_of(struct tape *tape, const struct variable *state, uint32_t layer)
{
    struct tensor of = *variable_tensor(state);
    of.bytes /= of.shape.size[0];
    of.data = (char *)of.data + layer * of.bytes;
    of.shape = SHAPE2(of.shape.size[1], of.shape.size[2]);
    return tape_constant(tape, &of);
}

/* (layers, batch, hidden) out of the layers' own states, whose member (h or c) lies `offset` bytes into a
 * struct lstm_state. */
static struct variable *stack(struct part *part, struct tape *tape, const struct lstm_state *state,
                              size_t offset, const char *name, uint32_t batch)
{
    const size_t each = (size_t)batch * part->rnn.hidden, count = part->rnn.layers * each;
    if (count > part->stack_count) {
        float *larger = realloc(part->stack, count * sizeof *larger);
        if (larger == NULL)
            return tape_fail(tape, STATUS_NO_MEMORY, "no memory for a state of %zu numbers", count);
        part->stack = larger;
        part->stack_count = count;
    }
    for (uint32_t layer = 0; layer < part->rnn.layers; layer++) {
        const struct variable *of =
            *(struct variable *const *)(const void *)((const char *)&state[layer] + offset);
        if (of == NULL || tape_read(tape, of, DTYPE_F32, part->stack + layer * each) != STATUS_OK)
            return NULL;
    }
    return tape_input(tape, SHAPE3(part->rnn.layers, batch, part->rnn.hidden), DTYPE_F32, name, part->stack);
}

static uint32_t lstm_forward(struct part *part, struct tape *tape, struct variable *const in[],
                             const struct draw *draw, struct variable *out[])
{
    const struct rnn_config *rnn = &part->rnn;
    const enum dtype dtype = part->backend->ops->dtype;
    if (!fits(part, tape, in, 0, "embedded tokens (steps, batch, embedding)", dtype,
              &SHAPE3(0, 0, rnn->embedding)))
        return 0;
    const uint32_t batch = variable_tensor(in[0])->shape.size[1];
    const struct shape shape = SHAPE3(rnn->layers, batch, rnn->hidden);
    struct lstm_state state[RNN_LAYERS_MAX];
    if (!fits(part, tape, in, 1, "a state h (layers, batch, hidden)", dtype, &shape) ||
        !fits(part, tape, in, 2, "a state c (layers, batch, hidden)", dtype, &shape))
        return 0;
    for (uint32_t layer = 0; layer < rnn->layers; layer++) {
        state[layer].h = layer_of(tape, in[1], layer);
        state[layer].c = layer_of(tape, in[2], layer);
    }
    out[0] = rnn_lstm_forward(&part->model.lstm, rnn, tape, in[0], state, draw);
    out[1] = stack(part, tape, state, offsetof(struct lstm_state, h), "h", batch);
    out[2] = stack(part, tape, state, offsetof(struct lstm_state, c), "c", batch);
    return 3;
}

static uint32_t decoder_forward(struct part *part, struct tape *tape, struct variable *const in[],
                                const struct draw *draw, struct variable *out[])
{
    if (!fits(part, tape, in, 0, "an output (steps, batch, hidden)", part->backend->ops->dtype,
              &SHAPE3(0, 0, part->rnn.hidden)))
        return 0;
    out[0] = rnn_decoder_forward(&part->model.decoder, &part->rnn, tape, in[0], draw);
    return 1;
}

uint32_t part_forward(struct part *part, struct tape *tape, struct variable *const in[], uint32_t in_count,
                      const uint64_t numbers[PART_NUMBERS], struct variable *out[PART_VARIABLES_MAX])
{
    static uint32_t (*const forwards[])(struct part *, struct tape *, struct variable *const[],
                                        const struct draw *, struct variable *[]) = {
        [JOB_LAYER_EMBEDDING] = embedding_forward,
        [JOB_LAYER_LSTM] = lstm_forward,
        [JOB_LAYER_DECODER] = decoder_forward,
    };
    static const uint32_t takes[] = {
        [JOB_LAYER_EMBEDDING] = 1, [JOB_LAYER_LSTM] = 3, [JOB_LAYER_DECODER] = 1};
    const struct draw draw = {.seed = part->seed, .word = {(uint32_t)numbers[0], (uint32_t)numbers[1], 0}};
    if (in_count != takes[part->which]) {
        tape_fail(tape, STATUS_INVALID, "%s: expected %u inputs, got %u", part_classes[part->which].name,
                  takes[part->which], in_count);
        return 0;
    }
    return forwards[part->which](part, tape, in, &draw, out);
}

/* ---- as objects ---- */

static struct backend *object_backend(void *object)
{
    return part_backend(object);
}

static struct params *object_params(void *object)
{
    return part_params(object);
}

static struct dist_versions *object_versions(void *object)
{
    return ((struct part *)object)->versions;
}

static void object_forward(void *object, struct dist_piece *piece)
{
    struct variable *in[PART_VARIABLES_MAX] = {NULL}, *out[PART_VARIABLES_MAX] = {NULL};
    uint32_t number_count;
    const uint64_t *numbers = dist_piece_numbers(piece, &number_count);
    const uint32_t in_count = dist_piece_inputs(piece);
    if (dist_piece_function(piece) != 0 || number_count != PART_NUMBERS) {
        dist_fail(piece, STATUS_INVALID,
                  "a part of the model: expected function 0 of %d numbers, got function %u of %u",
                  PART_NUMBERS, dist_piece_function(piece), number_count);
        return;
    }
    for (uint32_t i = 0; i < in_count && i < PART_VARIABLES_MAX; i++)
        in[i] = dist_piece_input(piece, i);
    const uint32_t out_count = part_forward(object, dist_piece_tape(piece), in, in_count, numbers, out);
    dist_return(piece, out, out_count);
}

static const struct dist_class part_dist_class = {
    .backend = object_backend,
    .params = object_params,
    .versions = object_versions,
    .forward = object_forward,
};

/* ---- constructors ---- */

struct rpc_message part_arguments(const struct part_settings *settings, uint64_t numbers[PART_ARGUMENTS])
{
    numbers[0] = settings->rnn.tokens;
    numbers[1] = settings->rnn.embedding;
    numbers[2] = settings->rnn.hidden;
    numbers[3] = settings->rnn.layers;
    memcpy(&numbers[4], &settings->rnn.dropout, sizeof numbers[4]);
    numbers[5] = settings->seed;
    numbers[6] = settings->threads;
    numbers[7] = settings->versions;
    return (struct rpc_message){
        .tensor_count = 2,
        .tensors = {[1] = {.dtype = WIRE_U64, .rank = 1, .dims = {PART_ARGUMENTS}}},
        .data = {[1] = numbers},
    };
}

/* A number that a part keeps in 32 bits; what does not fit becomes one that is refused with its name. */
static uint32_t narrow(uint64_t number)
{
    return number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
}

static enum status create(enum job_layer which, void *context, const struct rpc_message *arguments,
                          void **object, struct error *error)
{
    enum { THREADS_MAX = 1024 };
    const struct parallel *parallel = context;
    const struct wire_tensor *tensor = &arguments->tensors[1];
    uint64_t numbers[PART_ARGUMENTS];
    struct part *part;
    if (arguments->tensor_count != 2 || tensor->dtype != WIRE_U64 || tensor->rank != 1 ||
        tensor->dims[0] != PART_ARGUMENTS)
        return error_set(error, STATUS_INVALID, "%s: expected %d numbers of 64 bits to make it of",
                         part_classes[which].name, PART_ARGUMENTS);
    memcpy(numbers, arguments->data[1], sizeof numbers);
    if (numbers[6] == 0 || numbers[6] > THREADS_MAX)
        return error_set(error, STATUS_INVALID, "%s: expected 1..%d threads, got %llu",
                         part_classes[which].name, THREADS_MAX, (unsigned long long)numbers[6]);
    struct part_settings settings = {.rnn = {.tokens = narrow(numbers[0]),
                                             .embedding = narrow(numbers[1]),
                                             .hidden = narrow(numbers[2]),
                                             .layers = narrow(numbers[3])},
                                     .seed = numbers[5],
                                     .threads = (uint32_t)numbers[6],
                                     .versions = narrow(numbers[7])};
    memcpy(&settings.rnn.dropout, &numbers[4], sizeof numbers[4]);
    enum status status = part_new(&part, which, &settings, parallel->job, error);
    if (status == STATUS_OK)
        *object = part;
    return status;
}

static enum status create_embedding(void *context, uint16_t creator, const struct rpc_message *arguments,
                                    void **object, struct error *error)
{
    (void)creator;
    return create(JOB_LAYER_EMBEDDING, context, arguments, object, error);
}

static enum status create_lstm(void *context, uint16_t creator, const struct rpc_message *arguments,
                               void **object, struct error *error)
{
    (void)creator;
    return create(JOB_LAYER_LSTM, context, arguments, object, error);
}

static enum status create_decoder(void *context, uint16_t creator, const struct rpc_message *arguments,
                                  void **object, struct error *error)
{
    (void)creator;
    return create(JOB_LAYER_DECODER, context, arguments, object, error);
}

static void destroy(void *object)
{
    part_free(object);
}

const struct rref_class part_classes[JOB_LAYERS] = {
    [JOB_LAYER_EMBEDDING] = {.name = "embedding",
                             .create = create_embedding,
                             .destroy = destroy,
                             .extension = &part_dist_class},
    [JOB_LAYER_LSTM] = {.name = "lstm",
                        .create = create_lstm,
                        .destroy = destroy,
                        .extension = &part_dist_class},
    [JOB_LAYER_DECODER] = {.name = "decoder",
                           .create = create_decoder,
                           .destroy = destroy,
                           .extension = &part_dist_class},
};
