/* The layers by themselves: each gives the same bits alone as within the whole model, and refuses inputs
 * that do not fit. */
#include "test/workplace.h"
#include "worker/model_parallel/layer.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 5, BATCH = 3, TOKENS = 10, WIDTH = 2, HIDDEN = 3, LAYERS = 4 };
enum { STATE = LAYERS * BATCH * HIDDEN, LOGITS = STEPS * BATCH * TOKENS };

static const struct job job = {.kind = JOB_MODEL_PARALLEL, .device = JOB_DEVICE_CPU};
static const struct layer_settings settings = {
    .rnn = {TOKENS, WIDTH, HIDDEN, LAYERS, 0.5}, .seed = 7, .threads = 1};
static const uint64_t numbers[LAYER_NUMBERS] = {1, 41};
static struct error error;

#define OK(call)                                                                                             \
    do {                                                                                                     \
        enum status ok_status = (call);                                                                      \
        ck_assert_msg(ok_status == STATUS_OK, "%s: %s: %s", #call, status_name(ok_status), error.text);      \
    } while (0)

struct result {
    float logits[LOGITS], h[STATE], c[STATE];
};

static int32_t tokens[STEPS * BATCH];
static float h[STATE], c[STATE];

static void draw_inputs(void)
{
    for (int i = 0; i < STEPS * BATCH; i++)
        tokens[i] = i * 7 % TOKENS;
    for (int i = 0; i < STATE; i++) {
        h[i] = (float)(i % 11) / 11 - 0.5f;
        c[i] = (float)(i % 5) / 5 - 0.3f;
    }
}

/* ---- the whole, on one tape ---- */

static struct backend *backend;
static struct params *params;
static struct rnn_encoder encoder;
static struct rnn_lstm lstm;
static struct rnn_decoder decoder;

static void open_whole(void)
{
    const struct backend_settings threads = {.threads = 1};
    OK(backend_load(&backend, "onednn", &threads, &error));
    OK(params_new(&params, backend, &error));
    OK(rnn_encoder_init(&encoder, &settings.rnn, params, &error));
    OK(rnn_lstm_init(&lstm, &settings.rnn, params, &error));
    OK(rnn_decoder_init(&decoder, &settings.rnn, params, &error));
    OK(params_build(params, settings.seed, &error));
}

static void close_whole(void)
{
    params_free(params);
    backend_close(backend);
}

static void run_whole(enum tape_mode mode, struct result *result)
{
    const struct draw draw = {.seed = settings.seed, .word = {1, 41, 0}};
    struct lstm_state state[RNN_LAYERS_MAX];
    struct tape *tape;
    OK(tape_new(&tape, backend, &error));
    tape_begin(tape, mode, NULL);
    struct variable *x = tape_input(tape, SHAPE2(STEPS, BATCH), DTYPE_I32, "tokens", tokens);
    for (int layer = 0; layer < LAYERS; layer++) {
        const int at = layer * BATCH * HIDDEN;
        state[layer].h = tape_input(tape, SHAPE2(BATCH, HIDDEN), DTYPE_F32, "h", h + at);
        state[layer].c = tape_input(tape, SHAPE2(BATCH, HIDDEN), DTYPE_F32, "c", c + at);
    }
    struct variable *embedded = rnn_encoder_forward(&encoder, &settings.rnn, tape, x, &draw);
    struct variable *output = rnn_lstm_forward(&lstm, &settings.rnn, tape, embedded, state, &draw);
    struct variable *logits = rnn_decoder_forward(&decoder, &settings.rnn, tape, output, &draw);
    tape_read(tape, logits, DTYPE_F32, result->logits);
    for (int layer = 0; layer < LAYERS; layer++) {
        const int at = layer * BATCH * HIDDEN;
        tape_read(tape, state[layer].h, DTYPE_F32, result->h + at);
        tape_read(tape, state[layer].c, DTYPE_F32, result->c + at);
    }
    OK(tape_finish(tape, &error));
    tape_free(tape);
}

/* ---- the layers, each on its own ---- */

static struct layer *layers[JOB_LAYERS];
static struct tape *tapes[JOB_LAYERS];

static void open_layers(void)
{
    for (int i = 0; i < JOB_LAYERS; i++) {
        OK(layer_new(&layers[i], i, &settings, &job, &error));
        OK(tape_new(&tapes[i], layers[i]->backend, &error));
    }
}

static void close_layers(void)
{
    for (int i = 0; i < JOB_LAYERS; i++) {
        tape_free(tapes[i]);
        layer_free(layers[i]);
    }
}

/* Reads the `out_count` outputs into `values`, one after the other. */
static void run_layer(enum job_layer which, struct variable *const in[], uint32_t in_count,
                      float *const values[], uint32_t out_count)
{
    struct variable *out[LAYER_VARIABLES_MAX] = {NULL};
    ck_assert_uint_eq(layer_forward(layers[which], tapes[which], in, in_count, numbers, out), out_count);
    for (uint32_t i = 0; i < out_count; i++)
        tape_read(tapes[which], out[i], DTYPE_F32, values[i]);
    OK(tape_finish(tapes[which], &error));
}

static void run_layers(enum tape_mode mode, struct result *result)
{
    static float embedded[STEPS * BATCH * WIDTH], output[STEPS * BATCH * HIDDEN];
    struct variable *in[LAYER_VARIABLES_MAX];
    for (int i = 0; i < JOB_LAYERS; i++)
        tape_begin(tapes[i], mode, NULL);
    in[0] = tape_input(tapes[0], SHAPE2(STEPS, BATCH), DTYPE_I32, "tokens", tokens);
    run_layer(JOB_LAYER_EMBEDDING, in, 1, (float *[]){embedded}, 1);
    in[0] = tape_input(tapes[1], SHAPE3(STEPS, BATCH, WIDTH), DTYPE_F32, "embedded", embedded);
    in[1] = tape_input(tapes[1], SHAPE3(LAYERS, BATCH, HIDDEN), DTYPE_F32, "h", h);
    in[2] = tape_input(tapes[1], SHAPE3(LAYERS, BATCH, HIDDEN), DTYPE_F32, "c", c);
    run_layer(JOB_LAYER_LSTM, in, 3, (float *[]){output, result->h, result->c}, 3);
    in[0] = tape_input(tapes[2], SHAPE3(STEPS, BATCH, HIDDEN), DTYPE_F32, "output", output);
    run_layer(JOB_LAYER_DECODER, in, 1, (float *[]){result->logits}, 1);
}

START_TEST(layers_compute_what_the_whole_does)
{
    static struct result whole, split;
    draw_inputs();
    open_whole();
    open_layers();
    for (enum tape_mode mode = TAPE_TRAIN; mode <= TAPE_INFER; mode++) {
        run_whole(mode, &whole);
        run_layers(mode, &split);
        ck_assert_mem_eq(whole.logits, split.logits, sizeof whole.logits);
        ck_assert_mem_eq(whole.h, split.h, sizeof whole.h);
        ck_assert_mem_eq(whole.c, split.c, sizeof whole.c);
    }
    close_layers();
    close_whole();
}
END_TEST

START_TEST(layers_begin_with_the_wholes_values)
{
    uint32_t seen = 0;
    open_whole();
    open_layers();
    for (int i = 0; i < JOB_LAYERS; i++) {
        struct params *of = layers[i]->params;
        for (uint32_t j = 0; j < params_count(of); j++, seen++) {
            float a[64], b[64];
            ck_assert_str_eq(params_at(of, j)->name, params_at(params, seen)->name);
            OK(params_read(of, params_at(of, j), DTYPE_F32, a, &error));
            OK(params_read(params, params_at(params, seen), DTYPE_F32, b, &error));
            ck_assert_mem_eq(a, b, shape_elements(&params_at(of, j)->tensor.shape) * sizeof *a);
        }
    }
    ck_assert_uint_eq(seen, params_count(params));
    close_layers();
    close_whole();
}
END_TEST

/* ---- what does not fit ---- */

static void refused(enum job_layer which, struct variable *const in[], uint32_t in_count,
                    const char *expected)
{
    struct variable *out[LAYER_VARIABLES_MAX];
    layer_forward(layers[which], tapes[which], in, in_count, numbers, out);
    ck_assert_int_eq(tape_finish(tapes[which], &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, expected) != NULL, "\"%s\" does not say \"%s\"", error.text, expected);
    tape_begin(tapes[which], TAPE_INFER, NULL);
}

START_TEST(what_does_not_fit_is_refused_by_name)
{
    struct variable *in[LAYER_VARIABLES_MAX] = {NULL};
    struct tape *tape;
    draw_inputs();
    open_layers();
    for (int i = 0; i < JOB_LAYERS; i++)
        tape_begin(tapes[i], TAPE_INFER, NULL);
    refused(JOB_LAYER_EMBEDDING, in, 2, "embedding: expected 1 inputs, got 2");
    refused(JOB_LAYER_EMBEDDING, in, 1, "embedding: expected tokens (steps, batch) as input 0, got none");
    in[0] = tape_input(tapes[0], SHAPE2(4, 3), DTYPE_F32, "tokens", h);
    refused(JOB_LAYER_EMBEDDING, in, 1, "of rank 2, 4x3, int32, got 4x3, float32");
    tokens[5] = TOKENS;
    in[0] = tape_input(tapes[0], SHAPE2(STEPS, BATCH), DTYPE_I32, "tokens", tokens);
    refused(JOB_LAYER_EMBEDDING, in, 1, "element 5 of indices \"tokens\" of shape 5x3 is 10, expected 0..9");
    tape = tapes[JOB_LAYER_LSTM];
    in[0] = tape_input(tape, SHAPE3(2, 3, 3), DTYPE_F32, "embedded", h);
    refused(JOB_LAYER_LSTM, in, 3, "of rank 3, 2x3x2, float32, got 2x3x3");
    in[0] = tape_input(tape, SHAPE3(2, 3, 2), DTYPE_F32, "embedded", h);
    in[1] = tape_input(tape, SHAPE3(LAYERS, 2, HIDDEN), DTYPE_F32, "h", h);
    refused(JOB_LAYER_LSTM, in, 3, "lstm: expected a state h (layers, batch, hidden) of rank 3, 4x3x3");
    in[0] = tape_input(tape, SHAPE3(2, 3, 2), DTYPE_F32, "embedded", h);
    in[1] = tape_input(tape, SHAPE3(LAYERS, BATCH, HIDDEN), DTYPE_F32, "h", h);
    in[2] = tape_input(tape, SHAPE2(LAYERS, BATCH), DTYPE_F32, "c", h);
    refused(JOB_LAYER_LSTM, in, 3, "lstm: expected a state c");
    in[0] = tape_input(tapes[JOB_LAYER_DECODER], SHAPE2(4, HIDDEN), DTYPE_F32, "output", h);
    refused(JOB_LAYER_DECODER, in, 1, "decoder: expected an output (steps, batch, hidden) of rank 3");
    close_layers();
}
END_TEST

/* What another worker gives a constructor. */
static void not_made_of(const struct layer_settings *bad, const char *expected)
{
    const struct rpc_message message = layer_arguments(bad);
    void *object;
    for (int layer = 0; layer < JOB_LAYERS; layer++) {
        const struct rref_class *class = &layer_classes[layer];
        ck_assert_int_eq(class->create(NULL, class, &message, &object, &error), STATUS_INVALID);
        ck_assert_msg(strstr(error.text, expected) != NULL, "\"%s\" does not say \"%s\"", error.text,
                      expected);
    }
}

START_TEST(what_no_layer_can_be_made_of_is_refused)
{
    const struct rref_class *class = &layer_classes[JOB_LAYER_LSTM];
    struct rpc_message message = layer_arguments(&settings);
    struct layer_settings bad;
    void *object;
    message.tensors[1].dims[0]--;
    ck_assert_int_eq(class->create(NULL, class, &message, &object, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "lstm: expected settings of 40 bytes") != NULL, "%s", error.text);
    bad = settings;
    bad.rnn.tokens = 0;
    not_made_of(&bad, "1..2147483647 tokens, got 0");
    bad = settings;
    bad.rnn.embedding = UINT32_MAX;
    not_made_of(&bad, "1..2147483647 numbers in an embedding, got 4294967295");
    bad = settings;
    bad.rnn.hidden = 0;
    not_made_of(&bad, "1..536870911 hidden units, got 0");
    bad = settings;
    bad.rnn.layers = 9;
    not_made_of(&bad, "1..8 layers, got 9");
    bad = settings;
    bad.rnn.dropout = (double)NAN;
    not_made_of(&bad, "a dropout in [0, 1), got ");
    bad = settings;
    bad.threads = 4096;
    not_made_of(&bad, "1..1024 threads, got 4096");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("layer");
    TCase *forward = tcase_create("forward");
    tcase_set_timeout(forward, 60);
    tcase_add_test(forward, layers_compute_what_the_whole_does);
    tcase_add_test(forward, layers_begin_with_the_wholes_values);
    suite_add_tcase(suite, forward);
    TCase *refusals = tcase_create("refusals");
    tcase_set_timeout(refusals, 60);
    tcase_add_test(refusals, what_does_not_fit_is_refused_by_name);
    tcase_add_test(refusals, what_no_layer_can_be_made_of_is_refused);
    suite_add_tcase(suite, refusals);
    return suite_run(suite);
}
