/* The language model's encoder, LSTM and decoder. Each keeps pointers to its parameters alone, so it runs on
 * any tape whose gradients belong to those params. */
#include "worker/model/rnn.h"

#include <math.h>
#include <stdio.h>

enum { NAME_BYTES = 48 };

static const struct init TENTH = {INIT_UNIFORM, 0.1};

/* ---- registration ---- */

enum status rnn_encoder_init(struct rnn_encoder *encoder, const struct rnn_config *config,
                             struct params *params, struct error *error)
{
    return params_add(params, "encoder.weight", PARAMETER_TRAINED, SHAPE2(config->tokens, config->embedding),
                      TENTH, &encoder->weight, error);
}

/* The four tensors of one layer, in PyTorch's order. */
static enum status add_layer(struct rnn_lstm *lstm, const struct rnn_config *config, uint32_t layer,
                             struct params *params, struct error *error)
{
    const uint32_t gates = 4 * config->hidden, inputs = layer == 0 ? config->embedding : config->hidden;
    const struct init init = {INIT_UNIFORM, 1 / sqrt(config->hidden)};
    const struct {
        const char *name;
        struct shape shape;
        struct parameter **parameter;
    } tensors[] = {
        {"weight_ih", SHAPE2(gates, inputs), &lstm->weight_ih[layer]},
        {"weight_hh", SHAPE2(gates, config->hidden), &lstm->weight_hh[layer]},
        {"bias_ih", SHAPE1(gates), &lstm->bias_ih[layer]},
        {"bias_hh", SHAPE1(gates), &lstm->bias_hh[layer]},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == STATUS_OK; i++) {
        char name[NAME_BYTES];
        snprintf(name, sizeof name, "rnn.%s_l%u", tensors[i].name, layer);
        status =
            params_add(params, name, PARAMETER_TRAINED, tensors[i].shape, init, tensors[i].parameter, error);
    }
    return status;
}

enum status rnn_lstm_init(struct rnn_lstm *lstm, const struct rnn_config *config, struct params *params,
                          struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t layer = 0; layer < config->layers && status == STATUS_OK; layer++)
        status = add_layer(lstm, config, layer, params, error);
    return status;
}

enum status rnn_decoder_init(struct rnn_decoder *decoder, const struct rnn_config *config,
                             struct params *params, struct error *error)
{
    const struct init zero = {INIT_CONSTANT, 0};
    enum status status = params_add(params, "decoder.weight", PARAMETER_TRAINED,
                                    SHAPE2(config->tokens, config->hidden), TENTH, &decoder->weight, error);
    if (status == STATUS_OK)
        status = params_add(params, "decoder.bias", PARAMETER_TRAINED, SHAPE1(config->tokens), zero,
                            &decoder->bias, error);
    return status;
}

enum status rnn_register(const struct rnn_config *config, struct params *params, struct error *error)
{
    struct rnn_encoder encoder;
    struct rnn_lstm lstm;
    struct rnn_decoder decoder;
    enum status status = rnn_encoder_init(&encoder, config, params, error);
    if (status == STATUS_OK)
        status = rnn_lstm_init(&lstm, config, params, error);
    return status == STATUS_OK ? rnn_decoder_init(&decoder, config, params, error) : status;
}

/* ---- forward ---- */

static struct draw of_module(const struct draw *draw, uint32_t module)
{
    struct draw of = *draw;
    of.word[2] = module;
    return of;
}

struct variable *rnn_encoder_forward(const struct rnn_encoder *encoder, const struct rnn_config *config,
                                     struct tape *tape, struct variable *tokens, const struct draw *draw)
{
    const struct draw of = of_module(draw, RNN_MODULE_ENCODER);
    struct variable *embedded = tape_embedding(tape, tokens, tape_parameter(tape, encoder->weight));
    return tape_dropout(tape, embedded, config->dropout, &of, NULL);
}

struct variable *rnn_lstm_forward(const struct rnn_lstm *lstm, const struct rnn_config *config,
                                  struct tape *tape, struct variable *embedded, struct lstm_state *state,
                                  const struct draw *draw)
{
    const struct draw of = of_module(draw, RNN_MODULE_LSTM);
    struct lstm_parameters parameters[RNN_LAYERS_MAX];
    for (uint32_t layer = 0; layer < config->layers; layer++)
        parameters[layer] =
            (struct lstm_parameters){.weight_ih = tape_parameter(tape, lstm->weight_ih[layer]),
                                     .weight_hh = tape_parameter(tape, lstm->weight_hh[layer]),
                                     .bias_ih = tape_parameter(tape, lstm->bias_ih[layer]),
                                     .bias_hh = tape_parameter(tape, lstm->bias_hh[layer])};
    return tape_recurrent(tape, OP_LSTM_LAYER, embedded, config->layers, parameters, state, config->dropout,
                          &of);
}

struct variable *rnn_decoder_forward(const struct rnn_decoder *decoder, const struct rnn_config *config,
                                     struct tape *tape, struct variable *output, const struct draw *draw)
{
    const struct draw of = of_module(draw, RNN_MODULE_DECODER);
    struct variable *dropped = tape_dropout(tape, output, config->dropout, &of, NULL);
    if (dropped == NULL)
        return NULL;
    const struct shape shape = variable_tensor(dropped)->shape; // (steps, batch, hidden)
    struct variable *rows = tape_reshape(tape, dropped, SHAPE2(shape.size[0] * shape.size[1], shape.size[2]));
    struct variable *logits =
        tape_linear(tape, rows, tape_parameter(tape, decoder->weight), tape_parameter(tape, decoder->bias));
    return tape_reshape(tape, logits, SHAPE3(shape.size[0], shape.size[1], config->tokens));
}
