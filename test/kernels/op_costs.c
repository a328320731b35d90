/* Bounds and costs of an operation's call.
 *
 * A float32 result differs from the exact one by what rounding leaves in its sums and in its functions.
 * Rounding errors of a sum of n terms add up like a random walk: each is at most u = 2^-24 of the partial
 * sum, and beside the largest of the results, which itself grows with sqrt(n) where terms have both signs,
 * about u sqrt(n) is left. The factor 4 covers the tail over all elements of a tensor, the order of summation
 * (one accumulator or many) and products that are rounded before they are added. Beside it stands, per
 * operation, what its functions cost: a library's exp, log or tanh that is good to some units in the last
 * place, a variance's division and root. Results that are copies of inputs or of gradients must be exact. */
#include "test/kernels/op_cases.h"

#include <math.h>

static const double rounding = 0x1p-24;

/* In units of rounding: several for a library's exp and log, an LSTM's one on top of another, and for a
 * variance's division and root. */
static double function_units(enum op op)
{
    switch (op) {
    case OP_LSTM_LAYER:
    case OP_GRU_LAYER:
        return 32;
    case OP_LOG_SOFTMAX:
    case OP_CROSS_ENTROPY:
    case OP_TANH:
        return 16;
    case OP_BATCH_NORM:
        return 8;
    default:
        return 0;
    }
}

static double elements(const struct tensor *tensor)
{
    return (double)shape_elements(&tensor->shape);
}

/* Elements that one channel has: of an (n, c, h, w) tensor without the c. */
static double per_channel(const struct tensor *tensor)
{
    return elements(tensor) / tensor->shape.size[1];
}

static double last_size(const struct tensor *tensor)
{
    return tensor->shape.size[tensor->shape.rank - 1];
}

/* The longest sum behind an element of an output. */
static double terms_forward(const struct op_call *call)
{
    const struct tensor *const *in = (const struct tensor *const *)call->in;
    switch (call->op) {
    case OP_LINEAR:
        return last_size(in[1]);
    case OP_CONV2D:
        return elements(in[1]) / in[1]->shape.size[0];
    case OP_BATCH_NORM:
        return per_channel(in[0]);
    case OP_AVG_POOL:
        return (double)call->attributes.kernel[0] * call->attributes.kernel[1];
    case OP_LOG_SOFTMAX:
        return last_size(in[0]);
    case OP_LSTM_LAYER: // each step's sums, carried on by the state
        return in[0]->shape.size[0] * (last_size(in[0]) + last_size(in[4]));
    case OP_GRU_LAYER:
        return in[0]->shape.size[0] * (last_size(in[0]) + last_size(in[3]));
    case OP_MSE:
    case OP_CROSS_ENTROPY:
    case OP_SUM:
        return elements(in[0]);
    default:
        return 1;
    }
}

/* The longest sum behind an element of input i's gradient. */
static double terms_backward(const struct op_call *call, uint32_t i)
{
    const struct tensor *const *in = (const struct tensor *const *)call->in;
    switch (call->op) {
    case OP_LINEAR:
        return i == 0 ? in[1]->shape.size[0] : in[0]->shape.size[0];
    case OP_CONV2D:
        return i == 0 ? per_channel(in[1]) : per_channel(call->out[0]);
    case OP_BATCH_NORM:
        return per_channel(in[0]);
    case OP_MAX_POOL:
    case OP_AVG_POOL:
        return (double)call->attributes.kernel[0] * call->attributes.kernel[1];
    case OP_LOG_SOFTMAX:
        return last_size(in[0]);
    case OP_EMBEDDING:
        return elements(in[0]);
    case OP_LSTM_LAYER:
        return in[0]->shape.size[0] * (4 * last_size(in[4]) + last_size(in[0]) + in[0]->shape.size[1]);
    case OP_GRU_LAYER:
        return in[0]->shape.size[0] * (3 * last_size(in[3]) + last_size(in[0]) + in[0]->shape.size[1]);
    case OP_CROSS_ENTROPY:
        return in[0]->shape.size[1];
    default:
        return 1;
    }
}

/* Values that are only moved, or picked. */
static bool copies(enum op op, bool backward)
{
    const bool both = op == OP_RELU || op == OP_RESHAPE || op == OP_LOG_PROBABILITY;
    return both || (!backward && (op == OP_MAX_POOL || op == OP_EMBEDDING));
}

static double bound(enum op op, double terms)
{
    return rounding * (4 * sqrt(terms) + function_units(op));
}

double op_bound_output(const struct op_call *call)
{
    return copies(call->op, false) ? 0 : bound(call->op, terms_forward(call));
}

double op_bound_gradient(const struct op_call *call, uint32_t i)
{
    return copies(call->op, true) ? 0 : bound(call->op, terms_backward(call, i));
}

/* ---- costs ---- */

/* Of one product: forward, and each of the two gradients again as much. */
static double product_flops(const struct op_call *call)
{
    const double out = elements(call->out[0]);
    switch (call->op) {
    case OP_LINEAR:
    case OP_CONV2D:
        return 2 * terms_forward(call) * out;
    case OP_LSTM_LAYER:
        return 2 * 4 * (last_size(call->in[0]) + last_size(call->in[4])) * out;
    case OP_GRU_LAYER:
        return 2 * 3 * (last_size(call->in[0]) + last_size(call->in[3])) * out;
    default:
        return 0;
    }
}

double op_flops(const struct op_call *call, bool backward)
{
    const uint32_t weight = call->op == OP_LSTM_LAYER ? 3 : call->op == OP_GRU_LAYER ? 2 : 1;
    if (!backward)
        return product_flops(call);
    return product_flops(call) * ((call->din[0] != NULL) + (call->din[weight] != NULL));
}

static double bytes_of(const struct tensor *tensor)
{
    return tensor == NULL ? 0 : elements(tensor) * (double)dtype_bytes(tensor->dtype);
}

double op_bytes(const struct op_call *call, bool backward)
{
    const struct op_rule *rule = op_rule(call->op);
    double bytes = 0;
    if (call->op == OP_EMBEDDING && !backward) // of the vocabulary only the rows that are asked for
        return bytes_of(call->in[0]) + 2 * bytes_of(call->out[0]);
    for (uint32_t i = 0; i < rule->inputs; i++) {
        const bool reads = !backward || (rule->in[i].flags & OP_READ) != 0;
        bytes += (reads ? bytes_of(call->in[i]) : 0) + (backward ? bytes_of(call->din[i]) : 0);
    }
    for (uint32_t i = 0; i < rule->outputs; i++) {
        const bool reads = !backward || (rule->out[i].flags & OP_READ) != 0;
        bytes += (reads ? bytes_of(call->out[i]) : 0) + (backward ? bytes_of(call->dout[i]) : 0);
    }
    return bytes;
}
