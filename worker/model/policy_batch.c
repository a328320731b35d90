/* The tutorial's policy on the tape: its forward, which gives its backward, and the gathering of a rollout.
 */
#include "worker/model/policy_batch.h"

#include <stdlib.h>
#include <string.h>

struct variable *policy_batch_forward(struct params *params, struct tape *tape, struct variable *observations,
                                      struct variable *rows, double dropout, uint64_t seed)
{
    const struct draw draw = {.seed = seed};
    struct variable *parameter[4];
    for (uint32_t i = 0; i < 4; i++)
        parameter[i] = tape_parameter(tape, params_at(params, i));
    struct variable *affine1 = tape_linear(tape, observations, parameter[0], parameter[1]);
    struct variable *dropped = tape_dropout(tape, affine1, dropout, &draw, rows);
    struct variable *hidden = tape_relu(tape, dropped);
    tape_drop(tape, dropped);
    struct variable *logits = tape_linear(tape, hidden, parameter[2], parameter[3]);
    tape_drop(tape, hidden);
    struct variable *log_probabilities = tape_log_softmax(tape, logits);
    tape_drop(tape, logits);
    return log_probabilities;
}

/* ---- a rollout ---- */

/* Keeps a tensor of hidden units at 2^30 elements at the most. */
enum { PIECE_ROWS = 1 << 20 };

struct policy_batch {
    struct policy_config config;
    struct mlp_shape shape;
    uint32_t rows_max;                 // of one piece, filled up
    float *observations, *coefficient; // (rows_max, inputs), (rows_max)
    int32_t *words, *actions;          // (rows_max, 3), (rows_max)
};

/* The next power of two of at least MLP_CHUNK_ROWS; `rows` is at most PIECE_ROWS. */
static uint32_t filled_up(uint32_t rows)
{
    uint32_t filled = MLP_CHUNK_ROWS;
    while (filled < rows)
        filled *= 2;
    return filled;
}

enum status policy_batch_new(struct policy_batch **out, const struct policy_config *config,
                             struct error *error)
{
    struct policy_batch *rows = calloc(1, sizeof *rows);
    if (rows == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of rows");
    rows->config = *config;
    rows->shape = policy_mlp_shape(config);
    rows->rows_max = filled_up(config->rows_max < PIECE_ROWS ? config->rows_max : PIECE_ROWS);
    rows->observations = calloc(rows->rows_max, rows->shape.inputs * sizeof *rows->observations);
    rows->coefficient = calloc(rows->rows_max, sizeof *rows->coefficient);
    rows->words = calloc(rows->rows_max, 3 * sizeof *rows->words);
    rows->actions = calloc(rows->rows_max, sizeof *rows->actions);
    if (rows->observations == NULL || rows->coefficient == NULL || rows->words == NULL ||
        rows->actions == NULL) {
        policy_batch_free(rows);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u rows", config->rows_max);
    }
    *out = rows;
    return STATUS_OK;
}

void policy_batch_free(struct policy_batch *rows)
{
    if (rows == NULL)
        return;
    free(rows->observations);
    free(rows->coefficient);
    free(rows->words);
    free(rows->actions);
    free(rows);
}

/* Copies `count` of the batch's rows from `first` on, then zeros up to `filled`. */
static void gather_rows(struct policy_batch *rows, const struct mlp_batch *batch, const float *coefficient,
                        uint32_t episode, uint32_t first, uint32_t count, uint32_t filled)
{
    const uint32_t inputs = rows->shape.inputs, environments = rows->config.environments;
    const uint32_t rest = filled - count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = batch->row[first + i];
        const uint32_t words[3] = {row % environments, row / environments, episode};
        memcpy(rows->observations + (size_t)i * inputs, batch->observations + (size_t)row * inputs,
               inputs * sizeof *rows->observations);
        memcpy(rows->words + (size_t)i * 3, words, sizeof words);
        rows->coefficient[i] = coefficient[first + i];
        rows->actions[i] = batch->actions[row];
    }
    memset(rows->observations + (size_t)count * inputs, 0,
           (size_t)rest * inputs * sizeof *rows->observations);
    memset(rows->words + (size_t)count * 3, 0, (size_t)rest * 3 * sizeof *rows->words);
    memset(rows->coefficient + count, 0, rest * sizeof *rows->coefficient);
    memset(rows->actions + count, 0, rest * sizeof *rows->actions);
}

static struct variable *record_piece(struct policy_batch *rows, struct params *params, struct tape *tape,
                                     uint32_t filled)
{
    const struct policy_config *config = &rows->config;
    struct variable *observations =
        tape_input(tape, SHAPE2(filled, rows->shape.inputs), DTYPE_F32, "observations", rows->observations);
    struct variable *words = tape_input(tape, SHAPE2(filled, 3), DTYPE_I32, "rows' keys", rows->words);
    struct variable *actions = tape_input(tape, SHAPE1(filled), DTYPE_I32, "actions", rows->actions);
    struct variable *returns = tape_input(tape, SHAPE1(filled), DTYPE_F32, "returns", rows->coefficient);
    struct variable *log_probabilities =
        policy_batch_forward(params, tape, observations, words, config->dropout, config->seed);
    return tape_sum(tape, tape_log_probability(tape, log_probabilities, actions), returns, -1);
}

struct variable *policy_batch_loss(struct policy_batch *rows, struct params *params, struct tape *tape,
                                   const struct mlp_batch *batch, const float *coefficient, uint32_t episode)
{
    const uint32_t all = batch->count;
    struct variable *loss = NULL;
    uint32_t first = 0;
    do {
        const uint32_t count = all - first < rows->rows_max ? all - first : rows->rows_max;
        const uint32_t filled = filled_up(count);
        gather_rows(rows, batch, coefficient, episode, first, count, filled);
        struct variable *piece = record_piece(rows, params, tape, filled);
        loss = first == 0 ? piece : tape_add(tape, loss, piece, false);
        first += count;
    } while (first < all);
    return loss;
}
