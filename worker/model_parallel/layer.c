/* Makes the three layers, computes their forwards, and has their rows in the table of classes. The thread of
 * the worker that holds the layer runs this. */
#include "worker/model_parallel/layer.h"

#include "worker/autograd/dist_versions.h"
#include "worker/device.h"

#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

/* Registers the layer's parameters, after counting the model's parameters that come before them. */
static enum status layer_register_params(struct layer *layer, struct error *error)
{
    const uint32_t before_decoder = 1 + 4 * layer->rnn.layers;
    switch (layer->which) {
    case JOB_LAYER_EMBEDDING:
        return rnn_encoder_init(&layer->model.encoder, &layer->rnn, layer->params, error);
    case JOB_LAYER_LSTM:
        params_count_from(layer->params, 1);
        return rnn_lstm_init(&layer->model.lstm, &layer->rnn, layer->params, error);
    default:
        params_count_from(layer->params, before_decoder);
        return rnn_decoder_init(&layer->model.decoder, &layer->rnn, layer->params, error);
    }
}

static enum status layer_build(struct layer *layer, const struct layer_settings *settings,
                               struct error *error)
{
    if (settings->versions == 0)
        return params_build(layer->params, settings->seed, error);
    enum status status = params_lay_out(layer->params, error);
    if (status == STATUS_OK)
        status = dist_versions_new(&layer->versions, layer->params, settings->versions, error);
    if (status == STATUS_OK)
        status = params_begin(layer->params, settings->seed, 0, params_count(layer->params), error);
    return status;
}

enum status layer_new(struct layer **out, enum job_layer which, const struct layer_settings *settings,
                      const struct job *job, struct error *error)
{
    struct layer *layer = calloc(1, sizeof *layer);
    if (layer == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a layer of the model");
    layer->which = which;
    layer->rnn = settings->rnn;
    layer->seed = settings->seed;
    enum status status = device_open(&layer->backend, job, settings->threads, false, error);
    if (status == STATUS_OK)
        status = params_new(&layer->params, layer->backend, error);
    if (status == STATUS_OK)
        status = layer_register_params(layer, error);
    if (status == STATUS_OK)
        status = layer_build(layer, settings, error);
    if (status == STATUS_OK)
        *out = layer;
    else
        layer_free(layer);
    return status;
}

void layer_free(struct layer *layer)
{
    if (layer == NULL)
        return;
    dist_versions_free(layer->versions);
    params_free(layer->params);
    backend_close(layer->backend);
    free(layer->stack);
    free(layer);
}

/* ---- forward ---- */

/* True: input `index` has this type and shape, where size 0 fits any. Otherwise the tape fails with a
 * sentence. */
static bool layer_input_fits(const struct layer *layer, struct tape *tape, struct variable *const in[],
                             uint32_t index, const char *what, enum dtype dtype, const struct shape *shape)
{
    char came[SHAPE_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    const struct tensor *tensor = in[index] != NULL ? variable_tensor(in[index]) : NULL;
    const char *name = layer_classes[layer->which].name;
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

static uint32_t embedding_forward(struct layer *layer, struct tape *tape, struct variable *const in[],
                                  const struct draw *draw, struct variable *out[])
{
    if (!layer_input_fits(layer, tape, in, 0, "tokens (steps, batch)", DTYPE_I32, &(struct shape){.rank = 2}))
        return 0;
    out[0] = rnn_encoder_forward(&layer->model.encoder, &layer->rnn, tape, in[0], draw);
    return 1;
}

/* One LSTM layer's slice of a state (layers, batch, hidden). */
static struct variable *lstm_state_of_layer(struct tape *tape, const struct variable *state, uint32_t index)
{
    struct tensor of = *variable_tensor(state);
    of.bytes /= of.shape.size[0];
    of.data = (char *)of.data + index * of.bytes;
    of.shape = SHAPE2(of.shape.size[1], of.shape.size[2]);
    return tape_constant(tape, &of);
}

/* Stacks one member (h or c, at `offset` in struct lstm_state) of the LSTM layers' states: (layers, batch,
 * hidden). */
static struct variable *lstm_stack_states(struct layer *layer, struct tape *tape,
                                          const struct lstm_state *state, size_t offset, const char *name,
                                          uint32_t batch)
{
    const size_t each = (size_t)batch * layer->rnn.hidden, count = layer->rnn.layers * each;
    if (count > layer->stack_count) {
        float *larger = realloc(layer->stack, count * sizeof *larger);
        if (larger == NULL)
            return tape_fail(tape, STATUS_NO_MEMORY, "no memory for a state of %zu numbers", count);
        layer->stack = larger;
        layer->stack_count = count;
    }
    for (uint32_t i = 0; i < layer->rnn.layers; i++) {
        const struct variable *of =
            *(struct variable *const *)(const void *)((const char *)&state[i] + offset);
        if (of == NULL || tape_read(tape, of, DTYPE_F32, layer->stack + i * each) != STATUS_OK)
            return NULL;
    }
    return tape_input(tape, SHAPE3(layer->rnn.layers, batch, layer->rnn.hidden), DTYPE_F32, name,
                      layer->stack);
}

static uint32_t lstm_forward(struct layer *layer, struct tape *tape, struct variable *const in[],
                             const struct draw *draw, struct variable *out[])
{
    const struct rnn_config *rnn = &layer->rnn;
    const enum dtype dtype = layer->backend->ops->dtype;
    if (!layer_input_fits(layer, tape, in, 0, "embedded tokens (steps, batch, embedding)", dtype,
                          &SHAPE3(0, 0, rnn->embedding)))
        return 0;
    const uint32_t batch = variable_tensor(in[0])->shape.size[1];
    const struct shape shape = SHAPE3(rnn->layers, batch, rnn->hidden);
    struct lstm_state state[RNN_LAYERS_MAX];
    if (!layer_input_fits(layer, tape, in, 1, "a state h (layers, batch, hidden)", dtype, &shape) ||
        !layer_input_fits(layer, tape, in, 2, "a state c (layers, batch, hidden)", dtype, &shape))
        return 0;
    for (uint32_t i = 0; i < rnn->layers; i++) {
        state[i].h = lstm_state_of_layer(tape, in[1], i);
        state[i].c = lstm_state_of_layer(tape, in[2], i);
    }
    out[0] = rnn_lstm_forward(&layer->model.lstm, rnn, tape, in[0], state, draw);
    out[1] = lstm_stack_states(layer, tape, state, offsetof(struct lstm_state, h), "h", batch);
    out[2] = lstm_stack_states(layer, tape, state, offsetof(struct lstm_state, c), "c", batch);
    return 3;
}

static uint32_t decoder_forward(struct layer *layer, struct tape *tape, struct variable *const in[],
                                const struct draw *draw, struct variable *out[])
{
    if (!layer_input_fits(layer, tape, in, 0, "an output (steps, batch, hidden)", layer->backend->ops->dtype,
                          &SHAPE3(0, 0, layer->rnn.hidden)))
        return 0;
    out[0] = rnn_decoder_forward(&layer->model.decoder, &layer->rnn, tape, in[0], draw);
    return 1;
}

uint32_t layer_forward(struct layer *layer, struct tape *tape, struct variable *const in[], uint32_t in_count,
                       const uint64_t numbers[LAYER_NUMBERS], struct variable *out[LAYER_VARIABLES_MAX])
{
    static uint32_t (*const forwards[])(struct layer *, struct tape *, struct variable *const[],
                                        const struct draw *, struct variable *[]) = {
        [JOB_LAYER_EMBEDDING] = embedding_forward,
        [JOB_LAYER_LSTM] = lstm_forward,
        [JOB_LAYER_DECODER] = decoder_forward,
    };
    static const uint32_t takes[] = {
        [JOB_LAYER_EMBEDDING] = 1, [JOB_LAYER_LSTM] = 3, [JOB_LAYER_DECODER] = 1};
    const struct draw draw = {.seed = layer->seed, .word = {(uint32_t)numbers[0], (uint32_t)numbers[1], 0}};
    if (in_count != takes[layer->which]) {
        tape_fail(tape, STATUS_INVALID, "%s: expected %u inputs, got %u", layer_classes[layer->which].name,
                  takes[layer->which], in_count);
        return 0;
    }
    return forwards[layer->which](layer, tape, in, &draw, out);
}

/* ---- as an object that other workers call ---- */

static struct backend *object_backend(void *object)
{
    return ((struct layer *)object)->backend;
}

static struct params *object_params(void *object)
{
    return ((struct layer *)object)->params;
}

static struct dist_versions *object_versions(void *object)
{
    return ((struct layer *)object)->versions;
}

static void object_forward(void *object, struct dist_piece *piece)
{
    const struct dist_given *given = dist_piece_given(piece);
    struct tape *tape = dist_piece_tape(piece);
    struct variable *out[LAYER_VARIABLES_MAX] = {NULL};
    uint32_t out_count = 0;
    if (given->function != 0 || given->number_count != LAYER_NUMBERS)
        tape_fail(tape, STATUS_INVALID,
                  "a layer of the model: expected function 0 of %d numbers, got function %u of %u",
                  LAYER_NUMBERS, given->function, given->number_count);
    else
        out_count = layer_forward(object, tape, given->in, given->in_count, given->numbers, out);
    dist_return(piece, out, out_count);
}

static const struct dist_class dist_class_of_layers = {
    .backend = object_backend,
    .params = object_params,
    .versions = object_versions,
    .forward = object_forward,
};

/* ---- constructors ---- */

struct rpc_message layer_arguments(const struct layer_settings *settings)
{
    return (struct rpc_message){
        .tensor_count = 2,
        .tensors = {[1] = {.dtype = WIRE_U8, .rank = 1, .dims = {sizeof *settings}}},
        .data = {[1] = settings},
    };
}

/* Checks what another worker asks for: the model's own code trusts its sizes. dist_versions_new checks how
 * many versions there are. */
static enum status layer_check_settings(const char *name, const struct layer_settings *settings,
                                        struct error *error)
{
    enum { THREADS_MAX = 1024 };
    const struct {
        const char *what;
        uint32_t number, most;
    } checks[] = {{"tokens", settings->rnn.tokens, INT32_MAX},
                  {"numbers in an embedding", settings->rnn.embedding, INT32_MAX},
                  {"hidden units", settings->rnn.hidden, INT32_MAX / 4},
                  {"layers", settings->rnn.layers, RNN_LAYERS_MAX},
                  {"threads", settings->threads, THREADS_MAX}};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (checks[i].number == 0 || checks[i].number > checks[i].most)
            return error_set(error, STATUS_INVALID, "%s: expected 1..%u %s, got %u", name, checks[i].most,
                             checks[i].what, checks[i].number);
    if (settings->rnn.dropout >= 0 && settings->rnn.dropout < 1)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: expected a dropout in [0, 1), got %g", name,
                     settings->rnn.dropout);
}

static enum status layer_create(void *context, const struct rref_class *class,
                                const struct rpc_message *arguments, void **object, struct error *error)
{
    const struct job *const *job = context;
    const struct wire_tensor *tensor = &arguments->tensors[1];
    struct layer_settings settings;
    struct layer *layer;
    if (arguments->tensor_count != 2 || tensor->dtype != WIRE_U8 || tensor->rank != 1 ||
        tensor->dims[0] != sizeof settings)
        return error_set(error, STATUS_INVALID, "%s: expected settings of %zu bytes to make it of",
                         class->name, sizeof settings);
    memcpy(&settings, arguments->data[1], sizeof settings);
    enum status status = layer_check_settings(class->name, &settings, error);
    if (status == STATUS_OK)
        status = layer_new(&layer, (enum job_layer)(class - layer_classes), &settings, *job, error);
    if (status == STATUS_OK)
        *object = layer;
    return status;
}

static void layer_destroy(void *object)
{
    layer_free(object);
}

const struct rref_class layer_classes[JOB_LAYERS] = {
    [JOB_LAYER_EMBEDDING] = {"embedding", layer_create, layer_destroy, .extension = &dist_class_of_layers},
    [JOB_LAYER_LSTM] = {"lstm", layer_create, layer_destroy, .extension = &dist_class_of_layers},
    [JOB_LAYER_DECODER] = {"decoder", layer_create, layer_destroy, .extension = &dist_class_of_layers},
};
