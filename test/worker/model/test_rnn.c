/* The language model: three steps of training held to PyTorch's (test/golden/rnn.py), whole and with its
 * ends on another tape with params of their own; dropout; inputs that do not fit. */
#include "test/training.h"
#include "test/workplace.h"
#include "worker/model/rnn.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, STATE_BYTES_MAX = 2 * 20 * 200 * (int)sizeof(double) };

static const struct golden_case {
    const char *record;
    struct rnn_config config;
    uint32_t length, batch;
    uint64_t seed;
} golden_cases[] = {
    {"rnn_small", {10, 2, 3, 4, 0}, 5, 3, 1},
    {"rnn_large", {10000, 200, 200, 2, 0}, 35, 20, 2},
};

/* Every case on every plug-in; the small one, whose runs stand first, on the oracle too. */
static const struct golden_run {
    int backend;
    const struct golden_case *of;
} golden_runs[] = {
    {0, &golden_cases[0]}, {1, &golden_cases[0]}, {TRAINING_PLUGINS, &golden_cases[0]},
    {0, &golden_cases[1]}, {1, &golden_cases[1]},
};
enum { SMALL_RUNS = 3, GOLDEN_RUNS = sizeof golden_runs / sizeof *golden_runs };

static struct training training;
static struct golden *golden;
static struct rnn_encoder encoder;
static struct rnn_lstm lstm;
static struct rnn_decoder decoder;
static const struct golden_case *of;
static const struct draw draw = {.seed = 5, .word = {1, 2, 0}};

/* One problem's data, and the state that a step hands on: (layers, batch, hidden), in double. */
static int32_t *data, *target;
static double *h, *c;

/* ---- against PyTorch ---- */

static float scale(const struct parameter *parameter, bool *constant)
{
    (void)constant;
    return strcmp(parameter->name, "encoder.weight") == 0 ? 1 : sqrtf(4.0f / (float)of->config.hidden);
}

static size_t layer_count(void)
{
    return (size_t)of->batch * of->config.hidden;
}

static double *draw_state(uint64_t *state)
{
    const size_t count = of->config.layers * layer_count();
    float *values = training_numbers(state, count, 1);
    double *wide = calloc(count, sizeof *wide);
    ck_assert_ptr_nonnull(wide);
    for (size_t i = 0; i < count; i++)
        wide[i] = (double)values[i];
    free(values);
    return wide;
}

/* Run `number` of GOLDEN_RUNS in `parts` params: 1, or 2 with the LSTM in the second. False where the run's
 * backend has no device. */
static bool golden_run_open(int number, uint32_t parts)
{
    struct backend *backend = training_backend(golden_runs[number].backend);
    if (backend == NULL)
        return false;
    const struct optimizer_settings sgd = {.kind = OPTIMIZER_SGD, .sgd = {.lr = 1.0}};
    struct error error = {0};
    of = golden_runs[number].of;
    uint64_t state = of->seed;
    training_init(&training, backend, parts);
    struct params *ends = training.params[0], *middle = training.params[parts - 1];
    training_ok(rnn_encoder_init(&encoder, &of->config, ends, &error), &error);
    training_ok(rnn_lstm_init(&lstm, &of->config, middle, &error), &error);
    training_ok(rnn_decoder_init(&decoder, &of->config, ends, &error), &error);
    training_build(&training, &sgd);
    training_take(&training, 0, 0, 1);
    if (parts == 2)
        training_take(&training, 1, 0, UINT32_MAX);
    training_take(&training, 0, 1, UINT32_MAX);
    training_draw(&training, &state, scale);
    h = draw_state(&state);
    c = draw_state(&state);
    data = training_indices(&state, (size_t)of->length * of->batch, of->config.tokens);
    target = training_indices(&state, (size_t)of->length * of->batch, of->config.tokens);
    golden = golden_open(of->record, state, backend->ops->dtype == DTYPE_F64);
    return true;
}

static void golden_run_close(void)
{
    golden_close(golden);
    free(h);
    free(c);
    free(data);
    free(target);
    training_fini(&training);
    backend_close(training.backend);
}

static void state_in(struct tape *tape, struct lstm_state *state)
{
    const struct shape shape = SHAPE2(of->batch, of->config.hidden);
    for (uint32_t layer = 0; layer < of->config.layers; layer++) {
        state[layer].h = tape_input(tape, shape, DTYPE_F64, "h", h + layer * layer_count());
        state[layer].c = tape_input(tape, shape, DTYPE_F64, "c", c + layer * layer_count());
    }
}

static void state_out(struct tape *tape, const struct lstm_state *state, uint32_t step)
{
    struct error error = {0};
    const size_t count = of->config.layers * layer_count();
    training_ok(tape_status(tape, &error), &error);
    for (uint32_t layer = 0; layer < of->config.layers; layer++) {
        training_ok(tape_read(tape, state[layer].h, DTYPE_F64, h + layer * layer_count()), &error);
        training_ok(tape_read(tape, state[layer].c, DTYPE_F64, c + layer * layer_count()), &error);
    }
    golden_check(golden, step, GOLDEN_OUTPUT, "h", h, count);
    golden_check(golden, step, GOLDEN_OUTPUT, "c", c, count);
}

static struct variable *embed(struct tape *tape)
{
    struct variable *tokens = tape_input(tape, SHAPE2(of->length, of->batch), DTYPE_I32, "tokens", data);
    return rnn_encoder_forward(&encoder, &of->config, tape, tokens, &draw);
}

/* From the LSTM's output to the gradients of all that is on this tape. */
static void decode_and_walk(struct tape *tape, struct variable *output, uint32_t step)
{
    const uint32_t rows = of->length * of->batch;
    double value = NAN;
    struct error error = {0};
    struct variable *logits = rnn_decoder_forward(&decoder, &of->config, tape, output, &draw);
    struct variable *flat = tape_reshape(tape, logits, SHAPE2(rows, of->config.tokens));
    struct variable *loss =
        tape_cross_entropy(tape, flat, tape_input(tape, SHAPE1(rows), DTYPE_I32, "target", target));
    tape_loss(tape, loss, &value);
    training_ok(tape_status(tape, &error), &error);
    training_output(tape, golden, step, "logits", logits);
    golden_check(golden, step, GOLDEN_LOSS, "loss", &value, 1);
    tape_backward(tape, loss);
}

static void whole_step(struct tape *tape, uint32_t step)
{
    struct lstm_state state[RNN_LAYERS_MAX];
    struct error error = {0};
    tape_begin(tape, TAPE_TRAIN, training.gradients[0]);
    state_in(tape, state);
    struct variable *output = rnn_lstm_forward(&lstm, &of->config, tape, embed(tape), state, &draw);
    state_out(tape, state, step);
    decode_and_walk(tape, output, step);
    training_ok(tape_finish(tape, &error), &error);
}

/* The LSTM as another worker has it: on a tape of its own, one node on the tape of the ends. */
struct middle {
    struct tape *tape;
    struct variable *in, *out;
};

/* What crosses between two tapes is a copy, as it would be between two workers. */
static enum status copy(struct tensor *to, struct tape *tape, const struct tensor *from, struct error *error)
{
    struct backend *backend = tape_backend(tape);
    enum status status = tensor_new(to, tape_arena(tape), from->shape, backend->ops->dtype, "copy", error);
    if (status == STATUS_OK)
        status = backend_fill(backend, to, 0, error);
    if (status == STATUS_OK)
        status = backend_accumulate(backend, to, from, error);
    return status;
}

static enum status middle_backward(void *context, struct tape *tape, bool first,
                                   const struct tensor *const dout[], struct tensor *const din[],
                                   struct error *error)
{
    struct middle *middle = context;
    ck_assert(first);
    tape_seed(middle->tape, middle->out, dout[0]);
    tape_walk(middle->tape);
    const enum status status = tape_status(middle->tape, error);
    return status == STATUS_OK ? copy(din[0], tape, variable_gradient(middle->in), error) : status;
}

static struct variable *middle_forward(struct middle *middle, struct tape *ends, struct variable *embedded,
                                       uint32_t step)
{
    struct lstm_state state[RNN_LAYERS_MAX];
    struct error error = {0};
    struct tensor arrived;
    struct tape_node node = {.name = "lstm elsewhere",
                             .context = middle,
                             .backward = middle_backward,
                             .inputs = 1,
                             .outputs = 1,
                             .in = {embedded}};
    struct variable *out[OP_OUTPUTS_MAX] = {NULL};
    training_ok(tape_status(ends, &error), &error);
    tape_begin(middle->tape, TAPE_TRAIN, training.gradients[1]);
    training_ok(copy(&arrived, middle->tape, variable_tensor(embedded), &error), &error);
    middle->in = tape_constant(middle->tape, &arrived);
    tape_want_gradient(middle->in);
    state_in(middle->tape, state);
    middle->out = rnn_lstm_forward(&lstm, &of->config, middle->tape, middle->in, state, &draw);
    state_out(middle->tape, state, step);
    training_ok(copy(&node.out[0], ends, variable_tensor(middle->out), &error), &error);
    training_ok(tape_node(ends, &node, out), &error);
    return out[0];
}

static void split_step(struct tape *ends, struct tape *other, uint32_t step)
{
    struct middle middle = {.tape = other};
    struct error error = {0};
    tape_begin(ends, TAPE_TRAIN, training.gradients[0]);
    struct variable *output = middle_forward(&middle, ends, embed(ends), step);
    decode_and_walk(ends, output, step);
    training_ok(tape_finish(ends, &error), &error);
    training_ok(tape_finish(other, &error), &error);
}

static void golden_train(bool update)
{
    struct tape *tape[TRAINING_PARAMS_MAX] = {NULL};
    struct error error = {0};
    for (uint32_t part = 0; part < training.params_count; part++)
        training_ok(tape_new(&tape[part], training.backend, &error), &error);
    for (uint32_t step = 1; step <= STEPS; step++) {
        if (training.params_count == 1)
            whole_step(tape[0], step);
        else
            split_step(tape[0], tape[1], step);
        training_step(&training, golden, step, update);
    }
    for (uint32_t part = 0; part < training.params_count; part++)
        tape_free(tape[part]);
}

START_TEST(it_trains_as_pytorchs_does)
{
    if (!golden_run_open(_i, 1))
        return;
    golden_train(true);
    golden_assert_all(golden);
    golden_run_close();
}
END_TEST

START_TEST(it_trains_the_same_with_its_ends_elsewhere)
{
    if (!golden_run_open(_i, 2))
        return;
    ck_assert_uint_eq(params_count(training.params[0]), 3);
    ck_assert_uint_eq(params_count(training.params[1]), 4 * of->config.layers);
    golden_train(true);
    golden_assert_all(golden);
    golden_run_close();
}
END_TEST

START_TEST(a_run_without_updates_is_seen)
{
    if (!golden_run_open(_i, 1))
        return;
    golden_train(false);
    training_expect_unmoved(&training, golden, STEPS);
    golden_run_close();
}
END_TEST

/* ---- what it draws, how it begins, what it refuses ---- */

static struct backend *backend;
static struct params *params;

static void open_model(const struct rnn_config *config)
{
    struct error error = {0};
    backend = training_backend(0);
    training_ok(params_new(&params, backend, &error), &error);
    training_ok(rnn_encoder_init(&encoder, config, params, &error), &error);
    training_ok(rnn_lstm_init(&lstm, config, params, &error), &error);
    training_ok(rnn_decoder_init(&decoder, config, params, &error), &error);
    training_ok(params_build(params, 1, &error), &error);
}

static void close_model(void)
{
    params_free(params);
    backend_close(backend);
}

START_TEST(entries_are_the_tutorials)
{
    static const char *const expected[] = {
        "encoder.weight 10x2", "rnn.weight_ih_l0 12x2", "rnn.weight_hh_l0 12x3", "rnn.bias_ih_l0 12",
        "rnn.bias_hh_l0 12",   "rnn.weight_ih_l1 12x3", "rnn.weight_hh_l1 12x3", "rnn.bias_ih_l1 12",
        "rnn.bias_hh_l1 12",   "decoder.weight 10x3",   "decoder.bias 10",
    };
    const struct rnn_config config = {10, 2, 3, 2, 0.5};
    open_model(&config);
    ck_assert_uint_eq(params_count(params), sizeof expected / sizeof *expected);
    for (uint32_t i = 0; i < params_count(params); i++) {
        char shape[SHAPE_TEXT_BYTES], text[SHAPE_TEXT_BYTES + 64];
        const struct parameter *parameter = params_at(params, i);
        snprintf(text, sizeof text, "%s %s", parameter->name, shape_text(&parameter->tensor.shape, shape));
        ck_assert_str_eq(text, expected[i]);
    }
    close_model();
}
END_TEST

/* The largest value, and the root of the mean square. */
static void spread(const char *name, double *largest, double *deviation)
{
    const struct parameter *parameter = params_find(params, name);
    const size_t count = shape_elements(&parameter->tensor.shape);
    struct error error = {0};
    double *values = calloc(count, sizeof *values), sum = 0;
    ck_assert_ptr_nonnull(values);
    training_ok(params_read(params, parameter, DTYPE_F64, values, &error), &error);
    *largest = 0;
    for (size_t i = 0; i < count; i++) {
        *largest = fmax(*largest, fabs(values[i]));
        sum += values[i] * values[i];
    }
    *deviation = sqrt(sum / (double)count);
    free(values);
}

START_TEST(parameters_begin_as_the_tutorials_do)
{
    static const struct {
        const char *name;
        double bound;
    } expected[] = {{"encoder.weight", 0.1},   {"rnn.weight_hh_l1", 0.125}, {"rnn.weight_ih_l0", 0.125},
                    {"rnn.bias_ih_l1", 0.125}, {"rnn.bias_hh_l0", 0.125},   {"decoder.weight", 0.1}};
    const struct rnn_config config = {50, 30, 64, 2, 0};
    double largest, deviation;
    open_model(&config);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        spread(expected[i].name, &largest, &deviation);
        ck_assert_double_le(largest, expected[i].bound);
        ck_assert_double_gt(largest, 0.95 * expected[i].bound);
        ck_assert_double_eq_tol(deviation, expected[i].bound / sqrt(3), 0.1 * expected[i].bound);
    }
    spread("decoder.bias", &largest, &deviation);
    ck_assert_double_eq(largest, 0);
    close_model();
}
END_TEST

enum { DROPPED = 40 * 8 * 16 };

static void write_all(struct parameter *parameter, bool identity)
{
    const size_t count = shape_elements(&parameter->tensor.shape);
    const size_t diagonal = identity ? (size_t)parameter->tensor.shape.size[1] + 1 : 1;
    struct error error = {0};
    double *values = calloc(count, sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (size_t i = 0; i < count; i += diagonal)
        values[i] = 1;
    training_ok(params_write(params, parameter, DTYPE_F64, values, &error), &error);
    free(values);
}

/* What the encoder's and the decoder's dropout make of ones, by a table of ones and a decoder that copies. */
static void dropped(const struct rnn_config *config, const struct draw *drawn, double *encoded,
                    double *decoded)
{
    static const int32_t tokens[40 * 8];
    float ones[DROPPED];
    struct tape *tape = NULL;
    struct error error = {0};
    for (size_t i = 0; i < DROPPED; i++)
        ones[i] = 1;
    training_ok(tape_new(&tape, backend, &error), &error);
    tape_begin(tape, TAPE_TRAIN, NULL);
    struct variable *x = tape_input(tape, SHAPE2(40, 8), DTYPE_I32, "tokens", tokens);
    struct variable *y = tape_input(tape, SHAPE3(40, 8, 16), DTYPE_F32, "ones", ones);
    tape_read(tape, rnn_encoder_forward(&encoder, config, tape, x, drawn), DTYPE_F64, encoded);
    tape_read(tape, rnn_decoder_forward(&decoder, config, tape, y, drawn), DTYPE_F64, decoded);
    training_ok(tape_finish(tape, &error), &error);
    tape_free(tape);
}

static size_t count_equal(const double *a, const double *b)
{
    size_t equal = 0;
    for (size_t i = 0; i < DROPPED; i++)
        equal += a[i] == b[i];
    return equal;
}

/* Each place draws masks of its own, keyed by iteration; what is kept is scaled. */
START_TEST(each_place_drops_by_itself)
{
    static double encoded[DROPPED], decoded[DROPPED], again[DROPPED], other[DROPPED], unused[DROPPED];
    const struct rnn_config config = {16, 16, 16, 1, 0.5};
    const struct draw later = {.seed = draw.seed, .word = {draw.word[0], draw.word[1] + 1, 0}};
    const double middle = 0.5 * DROPPED, margin = 5 * sqrt(0.25 * DROPPED);
    open_model(&config);
    write_all(encoder.weight, false);
    write_all(decoder.weight, true);
    dropped(&config, &draw, encoded, decoded);
    dropped(&config, &draw, again, unused);
    dropped(&config, &later, other, unused);
    for (size_t i = 0; i < DROPPED; i++) {
        ck_assert(encoded[i] == 0 || encoded[i] == 2);
        ck_assert(decoded[i] == 0 || decoded[i] == 2);
    }
    ck_assert_uint_eq(count_equal(encoded, again), DROPPED);
    ck_assert_double_eq_tol((double)count_equal(encoded, decoded), middle, margin);
    ck_assert_double_eq_tol((double)count_equal(encoded, other), middle, margin);
    close_model();
}
END_TEST

/* Tokens beyond the vocabulary, and an output that the decoder does not fit. */
START_TEST(what_does_not_fit_is_refused_by_name)
{
    static const int32_t tokens[] = {0, 9, 10, 3};
    static const float values[12];
    const struct rnn_config config = {10, 2, 3, 1, 0};
    struct tape *tape = NULL;
    struct error error = {0};
    open_model(&config);
    training_ok(tape_new(&tape, backend, &error), &error);
    tape_begin(tape, TAPE_INFER, NULL);
    rnn_encoder_forward(&encoder, &config, tape, tape_input(tape, SHAPE2(2, 2), DTYPE_I32, "tokens", tokens),
                        &draw);
    ck_assert_int_eq(tape_finish(tape, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "10") != NULL, "%s", error.text);
    tape_begin(tape, TAPE_INFER, NULL);
    rnn_decoder_forward(&decoder, &config, tape,
                        tape_input(tape, SHAPE3(3, 2, 2), DTYPE_F32, "output", values), &draw);
    ck_assert_int_eq(tape_finish(tape, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, "10x3") != NULL, "%s", error.text);
    tape_free(tape);
    close_model();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rnn");
    TCase *pytorch[] = {tcase_create("pytorch"), tcase_create("large")};
    const int runs[] = {0, SMALL_RUNS, GOLDEN_RUNS};
    for (int i = 0; i < 2; i++) {
        tcase_set_timeout(pytorch[i], 300);
        tcase_add_loop_test(pytorch[i], it_trains_as_pytorchs_does, runs[i], runs[i + 1]);
        tcase_add_loop_test(pytorch[i], it_trains_the_same_with_its_ends_elsewhere, runs[i], runs[i + 1]);
        tcase_add_loop_test(pytorch[i], a_run_without_updates_is_seen, runs[i], runs[i + 1]);
        suite_add_tcase(suite, pytorch[i]);
    }
    TCase *model = tcase_create("model");
    tcase_set_timeout(model, 120);
    tcase_add_test(model, entries_are_the_tutorials);
    tcase_add_test(model, parameters_begin_as_the_tutorials_do);
    tcase_add_test(model, each_place_drops_by_itself);
    tcase_add_test(model, what_does_not_fit_is_refused_by_name);
    suite_add_tcase(suite, model);
    return suite_run(suite);
}
