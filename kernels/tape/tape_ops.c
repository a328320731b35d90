/* The operations by their names: each function sets the attributes and inputs of one tape_apply. */
#include "kernels/tape/tape.h"

/* One output; NULL after a failure. */
static struct variable *apply_op(struct tape *tape, enum op op, const struct op_attributes *attributes,
                                 struct variable *const in[])
{
    struct variable *out[OP_OUTPUTS_MAX] = {0};
    tape_apply(tape, op, attributes, in, out);
    return out[0];
}

struct variable *tape_linear(struct tape *tape, struct variable *x, struct variable *weight,
                             struct variable *bias)
{
    return apply_op(tape, OP_LINEAR, &(struct op_attributes){0}, (struct variable *[]){x, weight, bias});
}

struct variable *tape_conv2d(struct tape *tape, struct variable *x, struct variable *weight,
                             struct variable *bias, uint32_t stride, uint32_t padding)
{
    const struct op_attributes attributes = {.stride = {stride, stride}, .padding = {padding, padding}};
    return apply_op(tape, OP_CONV2D, &attributes, (struct variable *[]){x, weight, bias});
}

struct variable *tape_batch_norm(struct tape *tape, struct variable *x, struct variable *weight,
                                 struct variable *bias, struct variable *running_mean,
                                 struct variable *running_variance, bool training, double epsilon, bool relu,
                                 const struct batch_statistics *statistics)
{
    const struct op_attributes attributes = {.relu = relu, .training = training, .epsilon = epsilon};
    struct variable *const in[] = {x, weight, bias, running_mean, running_variance};
    struct variable *out[OP_OUTPUTS_MAX] = {0};
    const struct tensor *const into[OP_OUTPUTS_MAX] = {NULL, statistics != NULL ? &statistics->mean : NULL,
                                                       statistics != NULL ? &statistics->variance : NULL};
    tape_apply_into(tape, OP_BATCH_NORM, &attributes, in, into, out);
    return out[0];
}

/* ---- pools ---- */

struct variable *tape_max_pool(struct tape *tape, struct variable *x, uint32_t kernel, uint32_t stride,
                               uint32_t padding)
{
    const struct op_attributes attributes = {
        .kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}};
    return apply_op(tape, OP_MAX_POOL, &attributes, (struct variable *[]){x});
}

struct variable *tape_global_avg_pool(struct tape *tape, struct variable *x)
{
    if (tape_status(tape, NULL) != STATUS_OK || x == NULL)
        return NULL;
    const struct shape *shape = &variable_tensor(x)->shape;
    char text[SHAPE_TEXT_BYTES];
    if (shape->rank != 4)
        return tape_fail(tape, STATUS_INVALID, "global_avg_pool: x has shape %s, expected a rank of 4",
                         shape_text(shape, text));
    const struct op_attributes attributes = {.kernel = {shape->size[2], shape->size[3]}, .stride = {1, 1}};
    struct variable *pooled = apply_op(tape, OP_AVG_POOL, &attributes, (struct variable *[]){x});
    struct variable *flat = tape_reshape(tape, pooled, SHAPE2(shape->size[0], shape->size[1]));
    tape_drop(tape, pooled);
    return flat;
}

/* ---- element by element ---- */

struct variable *tape_relu(struct tape *tape, struct variable *x)
{
    return apply_op(tape, OP_RELU, &(struct op_attributes){0}, (struct variable *[]){x});
}

struct variable *tape_tanh(struct tape *tape, struct variable *x)
{
    return apply_op(tape, OP_TANH, &(struct op_attributes){0}, (struct variable *[]){x});
}

struct variable *tape_add(struct tape *tape, struct variable *a, struct variable *b, bool relu)
{
    const struct op_attributes attributes = {.relu = relu};
    return apply_op(tape, OP_ADD, &attributes, (struct variable *[]){a, b});
}

struct variable *tape_reshape(struct tape *tape, struct variable *x, struct shape shape)
{
    const struct op_attributes attributes = {.shape = shape};
    return apply_op(tape, OP_RESHAPE, &attributes, (struct variable *[]){x});
}

struct variable *tape_dropout(struct tape *tape, struct variable *x, double p, const struct draw *draw,
                              struct variable *rows)
{
    if (!tape_records(tape) || p == 0)
        return x;
    const struct op_attributes attributes = {.dropout = p, .draw = *draw};
    return apply_op(tape, OP_DROPOUT, &attributes, (struct variable *[]){x, rows});
}

struct variable *tape_log_softmax(struct tape *tape, struct variable *x)
{
    return apply_op(tape, OP_LOG_SOFTMAX, &(struct op_attributes){0}, (struct variable *[]){x});
}

/* ---- sequences ---- */

struct variable *tape_embedding(struct tape *tape, struct variable *indices, struct variable *weight)
{
    return apply_op(tape, OP_EMBEDDING, &(struct op_attributes){0}, (struct variable *[]){indices, weight});
}

static struct variable *recurrent_layer(struct tape *tape, enum op op, struct variable *x,
                                        const struct lstm_parameters *layer, struct lstm_state *state)
{
    struct variable *const lstm[] = {
        x, state->h, state->c, layer->weight_ih, layer->weight_hh, layer->bias_ih, layer->bias_hh};
    struct variable *const gru[] = {
        x, state->h, layer->weight_ih, layer->weight_hh, layer->bias_ih, layer->bias_hh};
    struct variable *out[OP_OUTPUTS_MAX] = {0};
    tape_apply(tape, op, &(struct op_attributes){0}, op == OP_LSTM_LAYER ? lstm : gru, out);
    *state = (struct lstm_state){.h = out[1], .c = out[2]};
    return out[0];
}

struct variable *tape_recurrent(struct tape *tape, enum op op, struct variable *x, uint32_t layers,
                                const struct lstm_parameters *parameters, struct lstm_state *state, double p,
                                const struct draw *draw)
{
    struct variable *y = x;
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct variable *below = y;
        y = recurrent_layer(tape, op, below, &parameters[layer], &state[layer]);
        if (layer > 0)
            tape_drop(tape, below);
        if (layer + 1 == layers || p == 0)
            continue;
        struct draw between = *draw;
        between.word[2] += layer;
        y = tape_dropout(tape, y, p, &between, NULL);
    }
    return y;
}

/* ---- losses and sums ---- */

struct variable *tape_mse(struct tape *tape, struct variable *x, struct variable *target)
{
    return apply_op(tape, OP_MSE, &(struct op_attributes){0}, (struct variable *[]){x, target});
}

struct variable *tape_cross_entropy(struct tape *tape, struct variable *logits, struct variable *target)
{
    return apply_op(tape, OP_CROSS_ENTROPY, &(struct op_attributes){0},
                    (struct variable *[]){logits, target});
}

struct variable *tape_log_probability(struct tape *tape, struct variable *log_probabilities,
                                      struct variable *actions)
{
    struct variable *const in[] = {log_probabilities, actions};
    return apply_op(tape, OP_LOG_PROBABILITY, &(struct op_attributes){0}, in);
}

struct variable *tape_sum(struct tape *tape, struct variable *x, struct variable *coefficient, double scale)
{
    const struct op_attributes attributes = {.scale = scale};
    return apply_op(tape, OP_SUM, &attributes, (struct variable *[]){x, coefficient});
}
