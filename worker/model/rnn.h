/* The tutorial's language model: embedding, dropout, LSTM, dropout, decoder. It is split so that its ends can
 * run on another worker.
 *
 * Encoder, LSTM and decoder register their own parameters, so that a worker that holds the embedding and the
 * decoder has exactly those. Names are the tutorial's: "encoder.weight", "rnn.weight_ih_l0", …,
 * "decoder.weight", "decoder.bias". First values: encoder and decoder weights uniform in ±0.1, the decoder's
 * bias 0, the LSTM uniform in ±1 / sqrt(hidden). */
#ifndef WORKER_MODEL_RNN_H
#define WORKER_MODEL_RNN_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"

enum { RNN_LAYERS_MAX = 8 };

struct rnn_config {
    uint32_t tokens;    /* vocabulary */
    uint32_t embedding; /* width of a token's vector */
    uint32_t hidden;
    uint32_t layers; /* 1..RNN_LAYERS_MAX */
    double dropout;  /* after the embedding, between the layers, before the decoder; 0 <= p < 1 */
};

/* Dropout's module numbers, word[2] of the draws. */
enum { RNN_MODULE_ENCODER = 0, RNN_MODULE_LSTM = 1, RNN_MODULE_DECODER = 1 + RNN_LAYERS_MAX };

struct rnn_encoder {
    struct parameter *weight;
};
struct rnn_lstm {
    struct parameter *weight_ih[RNN_LAYERS_MAX], *weight_hh[RNN_LAYERS_MAX];
    struct parameter *bias_ih[RNN_LAYERS_MAX], *bias_hh[RNN_LAYERS_MAX];
};
struct rnn_decoder {
    struct parameter *weight, *bias;
};

/* Each registers its parameters; before params_build. Errors of params_add. */
enum status rnn_encoder_init(struct rnn_encoder *encoder, const struct rnn_config *config,
                             struct params *params, struct error *error);
enum status rnn_lstm_init(struct rnn_lstm *lstm, const struct rnn_config *config, struct params *params,
                          struct error *error);
enum status rnn_decoder_init(struct rnn_decoder *decoder, const struct rnn_config *config,
                             struct params *params, struct error *error);

/* Registers the parameters of all three, for files that hold the whole model. */
enum status rnn_register(const struct rnn_config *config, struct params *params, struct error *error);

/* tokens (steps, batch) int32 -> (steps, batch, embedding) after dropout. `draw` gives seed, trainer and
 * iteration; the module is set here. */
struct variable *rnn_encoder_forward(const struct rnn_encoder *encoder, const struct rnn_config *config,
                                     struct tape *tape, struct variable *tokens, const struct draw *draw);

/* (steps, batch, embedding) -> (steps, batch, hidden). state: `layers` entries, in and out. */
struct variable *rnn_lstm_forward(const struct rnn_lstm *lstm, const struct rnn_config *config,
                                  struct tape *tape, struct variable *embedded, struct lstm_state *state,
                                  const struct draw *draw);

/* (steps, batch, hidden), dropped out -> logits (steps, batch, tokens). */
struct variable *rnn_decoder_forward(const struct rnn_decoder *decoder, const struct rnn_config *config,
                                     struct tape *tape, struct variable *output, const struct draw *draw);

#endif
