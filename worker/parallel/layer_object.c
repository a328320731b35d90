/* The rows of layer_object.h: constructors, and the forward of a call. The thread of the worker that holds
 * the object. */
#include "worker/parallel/layer_object.h"

#include "worker/parallel/parallel.h"

#include <string.h>

static struct backend *object_backend(void *object)
{
    return layer_backend(object);
}

static struct params *object_params(void *object)
{
    return layer_params(object);
}

static struct dist_versions *object_versions(void *object)
{
    return layer_versions(object);
}

static void object_forward(void *object, struct dist_piece *piece)
{
    struct variable *in[LAYER_VARIABLES_MAX] = {NULL}, *out[LAYER_VARIABLES_MAX] = {NULL};
    uint32_t number_count;
    const uint64_t *numbers = dist_piece_numbers(piece, &number_count);
    const uint32_t in_count = dist_piece_inputs(piece);
    if (dist_piece_function(piece) != 0 || number_count != LAYER_NUMBERS) {
        dist_fail(piece, STATUS_INVALID,
                  "a layer of the model: expected function 0 of %d numbers, got function %u of %u",
                  LAYER_NUMBERS, dist_piece_function(piece), number_count);
        return;
    }
    for (uint32_t i = 0; i < in_count && i < LAYER_VARIABLES_MAX; i++)
        in[i] = dist_piece_input(piece, i);
    const uint32_t out_count = layer_forward(object, dist_piece_tape(piece), in, in_count, numbers, out);
    dist_return(piece, out, out_count);
}

static const struct dist_class dist_class_of_layers = {
    .backend = object_backend,
    .params = object_params,
    .versions = object_versions,
    .forward = object_forward,
};

/* ---- constructors ---- */

struct rpc_message layer_arguments(const struct layer_settings *settings, uint64_t numbers[LAYER_ARGUMENTS])
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
        .tensors = {[1] = {.dtype = WIRE_U64, .rank = 1, .dims = {LAYER_ARGUMENTS}}},
        .data = {[1] = numbers},
    };
}

/* A number for a field of 32 bits; a larger one becomes UINT32_MAX, which the field's check rejects by name.
 */
static uint32_t layer_narrow_argument(uint64_t number)
{
    return number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
}

static enum status layer_create(enum job_layer which, void *context, const struct rpc_message *arguments,
                                void **object, struct error *error)
{
    enum { THREADS_MAX = 1024 };
    const struct parallel *parallel = context;
    const struct wire_tensor *tensor = &arguments->tensors[1];
    uint64_t numbers[LAYER_ARGUMENTS];
    struct layer *layer;
    if (arguments->tensor_count != 2 || tensor->dtype != WIRE_U64 || tensor->rank != 1 ||
        tensor->dims[0] != LAYER_ARGUMENTS)
        return error_set(error, STATUS_INVALID, "%s: expected %d numbers of 64 bits to make it of",
                         layer_classes[which].name, LAYER_ARGUMENTS);
    memcpy(numbers, arguments->data[1], sizeof numbers);
    if (numbers[6] == 0 || numbers[6] > THREADS_MAX)
        return error_set(error, STATUS_INVALID, "%s: expected 1..%d threads, got %llu",
                         layer_classes[which].name, THREADS_MAX, (unsigned long long)numbers[6]);
    struct layer_settings settings = {.rnn = {.tokens = layer_narrow_argument(numbers[0]),
                                              .embedding = layer_narrow_argument(numbers[1]),
                                              .hidden = layer_narrow_argument(numbers[2]),
                                              .layers = layer_narrow_argument(numbers[3])},
                                      .seed = numbers[5],
                                      .threads = (uint32_t)numbers[6],
                                      .versions = layer_narrow_argument(numbers[7])};
    memcpy(&settings.rnn.dropout, &numbers[4], sizeof numbers[4]);
    enum status status = layer_new(&layer, which, &settings, parallel->job, error);
    if (status == STATUS_OK)
        *object = layer;
    return status;
}

static enum status layer_create_embedding(void *context, uint16_t creator,
                                          const struct rpc_message *arguments, void **object,
                                          struct error *error)
{
    (void)creator;
    return layer_create(JOB_LAYER_EMBEDDING, context, arguments, object, error);
}

static enum status layer_create_lstm(void *context, uint16_t creator, const struct rpc_message *arguments,
                                     void **object, struct error *error)
{
    (void)creator;
    return layer_create(JOB_LAYER_LSTM, context, arguments, object, error);
}

static enum status layer_create_decoder(void *context, uint16_t creator, const struct rpc_message *arguments,
                                        void **object, struct error *error)
{
    (void)creator;
    return layer_create(JOB_LAYER_DECODER, context, arguments, object, error);
}

static void layer_destroy(void *object)
{
    layer_free(object);
}

const struct rref_class layer_classes[JOB_LAYERS] = {
    [JOB_LAYER_EMBEDDING] = {.name = "embedding",
                             .create = layer_create_embedding,
                             .destroy = layer_destroy,
                             .extension = &dist_class_of_layers},
    [JOB_LAYER_LSTM] = {.name = "lstm",
                        .create = layer_create_lstm,
                        .destroy = layer_destroy,
                        .extension = &dist_class_of_layers},
    [JOB_LAYER_DECODER] = {.name = "decoder",
                           .create = layer_create_decoder,
                           .destroy = layer_destroy,
                           .extension = &dist_class_of_layers},
};
