/* The tutorial's policy on a GPU: parameters in the backend's memory, one captured launch to act (launch_new
 * in kernels/backend.h), operations of the tape to learn and to choose. Only observations, keys, actions and
 * returns are copied between host and device: the tape draws the keep bits again from the rows' keys.
 *
 * A rollout's rows are gathered in the batch's order into host memory that is taken once. A batch is filled
 * up to the next power of two, of at least MLP_CHUNK_ROWS, so that the device need not plan for every number
 * of rows that an episode may have. The filling is rows of zeros with coefficient 0, which add exactly
 * nothing to loss and gradient. A rollout of more than 2^20 rows is uploaded in pieces. */
#include "worker/model/policy_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the network on the tape ---- */

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

/* ---- a rollout on the tape ---- */

/* Keeps a tensor of hidden units at 2^30 elements at the most. */
enum { PIECE_ROWS = 1 << 20 };

struct policy_batch {
    struct policy_config config;
    struct mlp_shape shape;
    uint32_t rows_max;                 // of one piece, filled up
    float *observations, *coefficient; // (rows_max, inputs), (rows_max)
    int32_t *words, *actions;          // (rows_max, 3), (rows_max)
};

enum status policy_batch_new(struct policy_batch **out, const struct policy_config *config,
                             struct error *error)
{
    struct policy_batch *rows = calloc(1, sizeof *rows);
    if (rows == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of rows");
    rows->config = *config;
    rows->shape = policy_mlp_shape(config);
    rows->rows_max =
        policy_filled_up(config->rows_max < PIECE_ROWS ? config->rows_max : PIECE_ROWS, MLP_CHUNK_ROWS);
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

/* Copies the observations of `count` of the batch's rows from `first` on, then zeros up to `filled`. */
static struct variable *record_observations(struct policy_batch *rows, struct tape *tape,
                                            const struct mlp_batch *batch, uint32_t first, uint32_t count,
                                            uint32_t filled)
{
    const uint32_t inputs = rows->shape.inputs;
    for (uint32_t i = 0; i < count; i++)
        memcpy(rows->observations + (size_t)i * inputs,
               batch->observations + (size_t)batch->row[first + i] * inputs,
               inputs * sizeof *rows->observations);
    memset(rows->observations + (size_t)count * inputs, 0,
           (size_t)(filled - count) * inputs * sizeof *rows->observations);
    return tape_input(tape, SHAPE2(filled, inputs), DTYPE_F32, "observations", rows->observations);
}

/* The same of all else that learning reads. */
static void gather_rows(struct policy_batch *rows, const struct mlp_batch *batch, const float *coefficient,
                        uint32_t episode, uint32_t first, uint32_t count, uint32_t filled)
{
    const uint32_t environments = rows->config.environments, rest = filled - count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = batch->row[first + i];
        const uint32_t words[3] = {row % environments, row / environments, episode};
        memcpy(rows->words + (size_t)i * 3, words, sizeof words);
        rows->coefficient[i] = coefficient[first + i];
        rows->actions[i] = batch->actions[row];
    }
    memset(rows->words + (size_t)count * 3, 0, (size_t)rest * 3 * sizeof *rows->words);
    memset(rows->coefficient + count, 0, rest * sizeof *rows->coefficient);
    memset(rows->actions + count, 0, rest * sizeof *rows->actions);
}

static struct variable *record_piece(struct policy_batch *rows, struct params *params, struct tape *tape,
                                     struct variable *observations, uint32_t filled)
{
    const struct policy_config *config = &rows->config;
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
        const uint32_t filled = policy_filled_up(count, MLP_CHUNK_ROWS);
        struct variable *observations = record_observations(rows, tape, batch, first, count, filled);
        gather_rows(rows, batch, coefficient, episode, first, count, filled);
        struct variable *piece = record_piece(rows, params, tape, observations, filled);
        loss = first == 0 ? piece : tape_add(tape, loss, piece, false);
        first += count;
    } while (first < all);
    return loss;
}

/* ---- acting ---- */

struct policy_mlp_gpu {
    struct policy_learner learner; // the first member
    struct backend *backend;
    struct policy_launch *launch; // by which it acts
    struct policy_batch *batch;   // the rows to learn from
    uint32_t inputs, environments;
    bool one_size;       // every launch has a place for each environment
    float *observations; // (environments, inputs) of the rows that act
    int32_t *keys;       // (environments, 3)
    int32_t *actions;    // (environments)
};

/* Places without a row are zeros. */
static enum status draw_actions(const struct policy_mlp_gpu *gpu, const struct policy_rows *rows,
                                const struct dense_draw *draw, struct error *error)
{
    const uint32_t inputs = gpu->inputs, places = gpu->one_size ? gpu->environments : rows->count;
    const float *observations = rows->observations;
    assert(rows->count <= gpu->environments);
    memset(gpu->observations, 0, (size_t)places * inputs * sizeof *gpu->observations);
    memset(gpu->keys, 0, (size_t)places * 3 * sizeof *gpu->keys);
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint32_t place = gpu->one_size ? draw->environment[i] : i;
        const uint32_t key[3] = {draw->environment[i], draw->step[i], draw->episode};
        memcpy(gpu->observations + (size_t)place * inputs, observations + (size_t)rows->row[i] * inputs,
               inputs * sizeof *observations);
        memcpy(gpu->keys + (size_t)place * 3, key, sizeof key);
    }
    const enum status status = gpu->backend->ops->launch_run(
        gpu->backend, gpu->launch, places, gpu->observations, gpu->keys, (void *[]){gpu->actions}, error);
    for (uint32_t i = 0; i < rows->count && status == STATUS_OK; i++)
        ((int32_t *)rows->actions)[rows->row[i]] = gpu->actions[gpu->one_size ? draw->environment[i] : i];
    return status;
}

/* Pieces of one size: a sum on a backend may depend on the number of rows, which falls as episodes end. */
static enum status choose_actions(const struct policy_mlp_gpu *gpu, const struct policy_rows *rows,
                                  struct error *error)
{
    const struct mlp_batch batch = policy_mlp_batch(rows);
    struct tape *tape = gpu->learner.tape;
    float scores[MLP_CHUNK_ROWS * MLP_ACTIONS_MAX];
    for (uint32_t first = 0; first < rows->count; first += MLP_CHUNK_ROWS) {
        const struct policy_rows piece = policy_chunk(rows, first);
        tape_begin(tape, TAPE_INFER, NULL);
        tape_on_progress(tape, NULL, NULL);
        struct variable *observations =
            record_observations(gpu->batch, tape, &batch, first, piece.count, MLP_CHUNK_ROWS);
        tape_read(tape, policy_batch_forward(gpu->learner.params, tape, observations, NULL, 0, 0), DTYPE_F32,
                  scores);
        const enum status status = tape_finish(tape, error);
        if (status != STATUS_OK)
            return status;
        if (!policy_choose_greatest(&piece, scores, gpu->batch->shape.actions))
            return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    }
    return STATUS_OK;
}

static enum status gpu_act(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                           struct error *error)
{
    return draw != NULL ? draw_actions(self, rows, draw, error) : choose_actions(self, rows, error);
}

/* ---- learning ---- */

/* Loss and gradients of the batch; no update. */
static enum status walk_tape(struct policy_mlp_gpu *gpu, const struct mlp_batch *batch,
                             const float *coefficient, uint32_t episode, double *loss,
                             policy_progress *progress, void *context, struct error *error)
{
    tape_begin(gpu->learner.tape, TAPE_TRAIN, gpu->learner.gradients);
    tape_on_progress(gpu->learner.tape, progress, context);
    struct variable *out =
        policy_batch_loss(gpu->batch, gpu->learner.params, gpu->learner.tape, batch, coefficient, episode);
    tape_loss(gpu->learner.tape, out, loss);
    tape_backward(gpu->learner.tape, out);
    return tape_finish(gpu->learner.tape, error);
}

static enum status gpu_learn(void *self, const struct policy_rows *rows, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error)
{
    struct policy_mlp_gpu *gpu = self;
    const struct mlp_batch batch = policy_mlp_batch(rows);
    double found = 0;
    enum status status = walk_tape(gpu, &batch, coefficient, episode, &found, progress, context, error);
    if (status == STATUS_OK)
        status = policy_learner_step(&gpu->learner, error);
    if (status == STATUS_OK)
        *loss = found;
    return status;
}

/* Steps over no rows, so that the tape has all the memory it will need before the first episode, and the GPU
 * has loaded its kernels. */
static enum status warm_up(struct policy_mlp_gpu *gpu, struct error *error)
{
    const struct mlp_batch nothing = {0};
    const float none = 0;
    enum status status = STATUS_OK;
    for (int step = 0; step < 2 && status == STATUS_OK; step++) {
        double loss;
        status = walk_tape(gpu, &nothing, &none, 0, &loss, NULL, NULL, error);
    }
    return status;
}

/* ---- opening ---- */

static enum status take_memory(struct policy_mlp_gpu *gpu, struct error *error)
{
    gpu->observations = calloc(gpu->environments, gpu->inputs * sizeof *gpu->observations);
    gpu->keys = calloc(gpu->environments, 3 * sizeof *gpu->keys);
    gpu->actions = calloc(gpu->environments, sizeof *gpu->actions);
    return gpu->observations != NULL && gpu->keys != NULL && gpu->actions != NULL
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for the rows of %u environments",
                           gpu->environments);
}

static enum status open_launch(struct policy_mlp_gpu *gpu, const struct policy_config *config,
                               struct error *error)
{
    struct params *params = gpu->learner.params;
    const struct policy_launch_settings settings = {.inputs = gpu->inputs,
                                                    .layers = 2,
                                                    .layer = {{.weight = params_at(params, 0)->tensor,
                                                               .bias = params_at(params, 1)->tensor,
                                                               .activation = OP_RELU,
                                                               .dropout = config->dropout},
                                                              {.weight = params_at(params, 2)->tensor,
                                                               .bias = params_at(params, 3)->tensor,
                                                               .from = 1,
                                                               .activation = OP_LINEAR,
                                                               .result = POLICY_LAUNCH_ACTIONS}},
                                                    .seed = config->seed,
                                                    .rows_max = config->environments,
                                                    .fixed = config->one_size};
    return gpu->backend->ops->launch_new(gpu->backend, &settings, &gpu->launch, error);
}

static void gpu_close(void *self)
{
    struct policy_mlp_gpu *gpu = self;
    if (gpu->launch != NULL)
        gpu->backend->ops->launch_free(gpu->backend, gpu->launch);
    policy_batch_free(gpu->batch);
    policy_learner_close(&gpu->learner);
    free(gpu->observations);
    free(gpu->keys);
    free(gpu->actions);
}

static enum status gpu_open(void *self, const struct policy_config *config, struct backend *backend,
                            const struct dense_normalizer *normalizer, struct error *error)
{
    struct policy_mlp_gpu *gpu = self;
    (void)normalizer;
    gpu->backend = backend;
    gpu->inputs = policy_mlp_shape(config).inputs;
    gpu->environments = config->environments;
    gpu->one_size = config->one_size;
    enum status status = policy_learner_open(&gpu->learner, config, backend, error);
    if (status == STATUS_OK)
        status = policy_batch_new(&gpu->batch, config, error);
    if (status == STATUS_OK)
        status = take_memory(gpu, error);
    if (status == STATUS_OK)
        status = open_launch(gpu, config, error);
    return status == STATUS_OK ? warm_up(gpu, error) : status;
}

const struct policy_kind policy_mlp_gpu_kind = {.bytes = sizeof(struct policy_mlp_gpu),
                                                .open = gpu_open,
                                                .close = gpu_close,
                                                .act = gpu_act,
                                                .learn = gpu_learn,
                                                .save = policy_learner_save,
                                                .restore = policy_learner_restore};
