/* A policy on a backend: the network up to its outputs (policy_networks.c), the head on the host
 * (kernels/policy/dense.h).
 *
 * The network computes pieces of at most 256 rows. A piece is filled up with rows of zeros, so that the
 * backend need not plan for every number of rows: to a power of two or, of a policy with values or a captured
 * launch, to one size for acting; with values, also to one for learning. A backend's sums depend on the
 * piece's size and on the row's place in it. So each environment acts at its own place there, whoever acts
 * beside it, and PPO begins with the probabilities and values of a review. A greedy choice takes one row at a
 * time, so that an evaluation's episodes do not depend on the others.
 *
 * Dense layers without memory act by a captured launch, where the backend has one; all else is recorded on
 * the tape.
 *
 * With a memory a piece of a minibatch is some of its sequences (policy_sequences.h). The memory is the
 * tape's LSTM or GRU, because its inputs and their gradients are on the backend: those of the CNN, and all of
 * a GPU's. A policy without a backend has kernels/policy/recurrent instead. That takes starts within a
 * sequence, fills nothing up, and acts with the bits with which it learns; small memories are faster there.
 *
 * To learn, the outputs of a piece are read from the tape. The head and the objective say by how much L pulls
 * at each output. The tape walks back from sum(pull * output), whose gradient is L's. The pieces' gradients
 * add up in the batch's order. */
#include "kernels/backend.h"
#include "worker/model/policy_pieces.h"
#include "worker/model/policy_sequences.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct policy_tape {
    struct policy_learner learner; // the first member
    struct policy_network network;
    struct backend *backend;
    struct policy_launch *launch;       // by which dense layers act; NULL: by the tape
    struct policy_sequences *sequences; // NULL: no memory
    struct head *head;
    struct policy_pieces pieces;
    uint32_t outputs, deviations; // deviations: elements of log_std
    bool gaussian, has_value;
    uint32_t learn_rows;            // with values: what every piece that does not act is filled up to
    float *features;                // (rows_max, features); NULL: the head does not read them
    float *output, *pulls;          // (rows_max, outputs) and dL/d of them
    float *value, *value_pulls;     // (rows_max) and dL/d of them
    float *log_probability, *own;   // (rows_max) of the rows' own actions, and dL/d of them
    float *entropy, *entropy_pulls; // (rows_max) and dL/d of them
    float *log_std;                 // (deviations)
    float *log_std_pulls;           // (deviations) dL/d of them of a piece
    float *log_std_part;            // (deviations) and of one chunk of its rows
};

/* ---- pieces ---- */

/* Before the pieces of a batch to learn from. */
static void begin_pieces(const struct policy_tape *net, const struct policy_rows *rows)
{
    if (net->sequences != NULL)
        policy_sequences_cut(net->sequences, rows);
}

/* The piece behind `first` rows of the batch to learn from. */
static struct policy_piece piece_of(const struct policy_tape *net, const struct policy_rows *rows,
                                    uint32_t first)
{
    if (net->sequences != NULL) {
        struct policy_piece piece = {.rows = policy_sequences_piece(net->sequences, first)};
        piece.filled = policy_round_up(piece.rows.count);
        return piece;
    }
    return policy_piece_cut(rows, first, net->has_value ? net->learn_rows : net->pieces.piece_rows,
                            net->learn_rows);
}

/* Records the piece's forward, and reads the outputs that are `wanted` into net->output and net->value, place
 * by place. Their variables have not been taken by an operation. */
static struct policy_outputs record_piece(const struct policy_tape *net, const struct policy_piece *piece,
                                          unsigned wanted)
{
    struct tape *tape = net->learner.tape;
    struct policy_recurrence recurrence, *remembers = NULL;
    policy_pieces_read(&net->pieces, piece);
    const struct policy_inputs inputs = policy_pieces_input(&net->pieces, tape, piece->filled);
    if (net->sequences != NULL) {
        recurrence = policy_sequences_input(net->sequences, tape);
        remembers = &recurrence;
    }
    const struct policy_outputs outputs =
        policy_network_record(&net->network, tape, &inputs, remembers, wanted);
    if ((wanted & POLICY_ACTION) != 0)
        tape_read_later(tape, outputs.action, DTYPE_F32, net->output);
    if ((wanted & POLICY_ACTION) != 0 && net->features != NULL)
        tape_read_later(tape, outputs.features, DTYPE_F32, net->features);
    if ((wanted & POLICY_VALUE) != 0)
        tape_read_later(tape, outputs.value, DTYPE_F32, net->value);
    if (piece->keeps_states)
        policy_sequences_read(net->sequences, tape, remembers);
    tape_wait(tape);
    return outputs;
}

/* Rows of a piece, as many as the head takes at once. */
struct chunk {
    struct policy_rows rows;
    uint32_t first; // of the piece
    struct head_rows head;
};

static struct chunk chunk_of(const struct policy_tape *net, const struct policy_rows *rows, uint32_t first)
{
    const struct policy_rows chunk = policy_chunk(rows, first);
    const size_t features = net->features != NULL ? dense_features(&net->network.shape, DENSE_POLICY) : 0;
    return (struct chunk){.rows = chunk,
                          .first = first,
                          .head = {.batch = {.count = chunk.count,
                                             .row = chunk.row,
                                             .mask = chunk.allowed,
                                             .choices = net->gaussian ? NULL : chunk.actions,
                                             .actions = net->gaussian ? chunk.actions : NULL},
                                   .outputs = net->output + (size_t)first * net->outputs,
                                   .features = features > 0 ? net->features + first * features : NULL}};
}

/* ---- acting ---- */

/* All outputs of the piece, place by place. */
static enum status launch_piece(const struct policy_tape *net, const struct policy_piece *piece,
                                struct error *error)
{
    void *results[3];
    uint32_t count = 0;
    if (net->features != NULL)
        results[count++] = net->features;
    results[count++] = net->output;
    results[count] = net->value;
    policy_pieces_read(&net->pieces, piece);
    return net->backend->ops->launch_run(net->backend, net->launch, piece->filled, net->pieces.source[0].read,
                                         NULL, results, error);
}

static enum status compute_piece(const struct policy_tape *net, const struct policy_piece *piece,
                                 unsigned wanted, struct error *error)
{
    if (net->launch != NULL && (wanted & POLICY_ACTION) != 0)
        return launch_piece(net, piece, error);
    tape_begin(net->learner.tape, TAPE_INFER, NULL);
    tape_on_progress(net->learner.tape, NULL, NULL);
    record_piece(net, piece, wanted);
    return tape_finish(net->learner.tape, error);
}

/* The piece's outputs, which are read row by row from then on; each row is a step of another environment. */
static enum status infer_piece(const struct policy_tape *net, const struct policy_piece *piece,
                               unsigned wanted, struct error *error)
{
    if (net->sequences != NULL)
        policy_sequences_step(net->sequences, &piece->rows, piece->place, piece->filled);
    const enum status status = compute_piece(net, piece, wanted, error);
    if (status == STATUS_OK && piece->keeps_states)
        policy_sequences_keep(net->sequences, &piece->rows, piece->place);
    policy_piece_gather(piece, net->output, net->outputs);
    policy_piece_gather(piece, net->value, 1);
    if (net->features != NULL)
        policy_piece_gather(piece, net->features, dense_features(&net->network.shape, DENSE_POLICY));
    return status;
}

static enum status act_piece(const void *self, const struct policy_piece *of, const struct dense_draw *draw,
                             struct error *error)
{
    const struct policy_tape *net = self;
    struct policy_piece piece = *of;
    piece.keeps_states = net->sequences != NULL;
    if (draw == NULL)
        piece.rows.values = NULL;
    const bool keeps = piece.rows.values != NULL;
    const unsigned wanted = POLICY_ACTION | (keeps ? POLICY_VALUE : 0);
    const enum status status = infer_piece(net, &piece, wanted, error);
    const struct chunk all = chunk_of(net, &piece.rows, 0);
    if (status != STATUS_OK)
        return status;
    head_act(net->head, &all.head, draw, net->log_probability);
    if (draw == NULL && !isfinite(net->log_probability[0])) // of its only row
        return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    for (uint32_t i = 0; i < piece.rows.count && keeps; i++) {
        piece.rows.log_probabilities[piece.rows.row[i]] = net->log_probability[i];
        piece.rows.values[piece.rows.row[i]] = net->value[i];
    }
    return STATUS_OK;
}

static enum status act_in_order(const struct policy_tape *net, const struct policy_rows *rows,
                                struct dense_draw draw, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += net->pieces.piece_rows) {
        const struct policy_piece piece = policy_piece_cut(rows, first, net->pieces.piece_rows, 0);
        status = act_piece(net, &piece, &draw, error);
        draw.environment += piece.rows.count;
        draw.step += piece.rows.count;
    }
    return status;
}

static enum status policy_tape_act(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                                   struct error *error)
{
    const struct policy_tape *net = self;
    return draw != NULL && !net->has_value && net->launch == NULL
               ? act_in_order(net, rows, *draw, error)
               : policy_pieces_act(&net->pieces, rows, draw, act_piece, self, error);
}

static enum status policy_tape_estimate(void *self, const struct policy_rows *rows, struct error *error)
{
    const struct policy_tape *net = self;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct policy_piece piece =
            net->sequences != NULL ? policy_piece_cut(rows, first, net->pieces.act_rows, net->pieces.act_rows)
                                   : piece_of(net, rows, first);
        status = infer_piece(net, &piece, POLICY_VALUE, error);
        for (uint32_t i = 0; i < piece.rows.count && status == STATUS_OK; i++)
            rows->values[piece.rows.row[i]] = net->value[i];
        first += piece.rows.count;
    }
    return status;
}

static double policy_tape_deviation(const void *self)
{
    const struct policy_tape *net = self;
    double sum = 0;
    for (uint32_t d = 0; d < net->deviations; d++)
        sum += exp((double)net->log_std[d]);
    return sum / net->deviations;
}

/* log_std as it is now, to the head. */
static enum status load_head(struct policy_tape *net, struct error *error)
{
    if (!net->gaussian)
        return STATUS_OK;
    const enum status status =
        params_read(net->learner.params, params_at(net->learner.params, 0), DTYPE_F32, net->log_std, error);
    if (status == STATUS_OK)
        head_load(net->head, net->log_std);
    return status;
}

/* ---- walking back ---- */

/* The sum of all pulls times what they pull at. */
static struct variable *record_pulls(const struct policy_tape *net, struct policy_outputs outputs)
{
    struct variable *pull =
        policy_learner_pull(net->learner.tape, outputs.action, "log-probabilities' pull", net->pulls);
    if (net->gaussian) {
        struct variable *log_std = tape_parameter(net->learner.tape, params_at(net->learner.params, 0));
        pull = tape_add(
            net->learner.tape, pull,
            policy_learner_pull(net->learner.tape, log_std, "log-densities' pull", net->log_std_pulls),
            false);
    }
    if (net->has_value)
        pull = tape_add(
            net->learner.tape, pull,
            policy_learner_pull(net->learner.tape, outputs.value, "values' pull", net->value_pulls), false);
    return pull;
}

/* Ends the piece's step, whose part of L is `part`. */
static enum status walk_back(const struct policy_tape *net, struct policy_outputs outputs, double part,
                             struct error *error)
{
    struct variable *pull = record_pulls(net, outputs);
    double sum;
    tape_loss(net->learner.tape, pull, &sum);
    if (!isfinite(part) && tape_wait(net->learner.tape) == STATUS_OK)
        tape_fail(net->learner.tape, STATUS_INTERNAL,
                  "the loss is %g, and no tensor holds a NaN or an infinity", part);
    tape_backward(net->learner.tape, pull);
    return tape_finish(net->learner.tape, error);
}

/* ---- learning ---- */

/* Records the piece as for a step, and evaluates its rows' own actions. */
static struct policy_outputs evaluate_piece(const struct policy_tape *net, const struct policy_piece *piece,
                                            unsigned wanted, policy_progress *progress, void *context)
{
    tape_begin_adding(net->learner.tape, net->learner.gradients);
    tape_on_progress(net->learner.tape, progress, context);
    const struct policy_outputs outputs = record_piece(net, piece, wanted);
    const bool failed = tape_status(net->learner.tape, NULL) != STATUS_OK;
    for (uint32_t first = 0; first < piece->rows.count && !failed; first += POLICY_CHUNK_ROWS) {
        const struct chunk chunk = chunk_of(net, &piece->rows, first);
        head_evaluate(net->head, &chunk.head, net->log_probability + first, net->entropy + first);
    }
    return outputs;
}

static enum status policy_tape_review(void *self, const struct policy_rows *rows, policy_progress *progress,
                                      void *context, struct error *error)
{
    const struct policy_tape *net = self;
    gradients_begin(net->learner.gradients);
    begin_pieces(net, rows);
    for (uint32_t first = 0; first < rows->count;) {
        const struct policy_piece piece = piece_of(net, rows, first);
        evaluate_piece(net, &piece, POLICY_ACTION | POLICY_VALUE, progress, context);
        const enum status status = tape_finish(net->learner.tape, error);
        if (status != STATUS_OK)
            return status;
        for (uint32_t i = 0; i < piece.rows.count; i++) {
            rows->log_probabilities[piece.rows.row[i]] = net->log_probability[i];
            rows->values[piece.rows.row[i]] = net->value[i];
        }
        first += piece.rows.count;
    }
    return STATUS_OK;
}

/* Adds a chunk of the piece to the batch's sums, and fills what the losses pull at its outputs and values.
 * Adds what they pull at log_std. `coefficient` as learn_pieces has it, of the chunk's rows. */
static void judge_chunk(const struct policy_tape *net, const struct chunk *chunk, const float *coefficient,
                        struct surrogate *objective)
{
    const struct policy_rows *rows = &chunk->rows;
    const uint32_t first = chunk->first;
    const struct dense_pulls pulls = {.log_probability = net->own + first,
                                      .entropy = coefficient == NULL ? net->entropy_pulls + first : NULL,
                                      .value = net->value_pulls + first};
    if (coefficient != NULL) {
        struct surrogate_sums sums = {0};
        policy_judge_rewards(rows->count, coefficient, net->log_probability + first, net->own + first, &sums);
        surrogate_add(&objective->sums, &sums);
    } else {
        surrogate_judge_actions(objective, rows->count, rows->row, net->log_probability + first,
                                net->entropy + first, &pulls, &objective->sums);
        surrogate_judge_values(objective, rows->count, rows->row, net->value + first, &pulls,
                               &objective->sums);
    }
    head_pull(net->head, &chunk->head, &pulls, net->pulls + (size_t)first * net->outputs, net->log_std_part);
    for (uint32_t d = 0; d < net->deviations && net->gaussian; d++)
        net->log_std_pulls[d] += net->log_std_part[d];
}

/* The coefficients are those of the piece's rows. */
static void judge_piece(const struct policy_tape *net, const struct policy_piece *piece,
                        const float *coefficient, struct surrogate *objective)
{
    memset(net->log_std_pulls, 0, net->deviations * sizeof *net->log_std_pulls);
    for (uint32_t first = 0; first < piece->rows.count; first += POLICY_CHUNK_ROWS) {
        const struct chunk chunk = chunk_of(net, &piece->rows, first);
        judge_chunk(net, &chunk, coefficient != NULL ? coefficient + first : NULL, objective);
    }
    policy_piece_clear(piece, net->pulls, net->outputs);
    policy_piece_clear(piece, net->value_pulls, 1);
}

/* Fills the gradient and the objective's sums. `coefficient`: REINFORCE's, and L is sums.policy; NULL: PPO.
 */
static enum status learn_pieces(const struct policy_tape *net, const struct policy_rows *rows,
                                const float *coefficient, struct surrogate *objective,
                                policy_progress *progress, void *context, struct error *error)
{
    const unsigned wanted = coefficient != NULL ? POLICY_ACTION : POLICY_ACTION | POLICY_VALUE;
    enum status status = STATUS_OK;
    gradients_begin(net->learner.gradients);
    begin_pieces(net, rows);
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct policy_piece piece = piece_of(net, rows, first);
        const struct policy_outputs outputs = evaluate_piece(net, &piece, wanted, progress, context);
        if (tape_status(net->learner.tape, NULL) == STATUS_OK)
            judge_piece(net, &piece, coefficient != NULL ? coefficient + first : NULL, objective);
        first += piece.rows.count;
        status =
            walk_back(net, outputs,
                      coefficient != NULL ? objective->sums.policy : surrogate_losses(objective).loss, error);
    }
    return status;
}

static enum status policy_tape_learn(void *self, const struct policy_rows *rows, const float *coefficient,
                                     uint32_t episode, double *loss, policy_progress *progress, void *context,
                                     struct error *error)
{
    struct policy_tape *net = self;
    struct surrogate objective = {0};
    (void)episode;
    enum status status = learn_pieces(net, rows, coefficient, &objective, progress, context, error);
    if (status == STATUS_OK)
        status = policy_learner_step(&net->learner, error);
    if (status == STATUS_OK)
        status = load_head(net, error);
    if (status == STATUS_OK)
        *loss = objective.sums.policy;
    return status;
}

static enum status policy_tape_improve(void *self, const struct policy_rows *rows,
                                       const struct policy_targets *targets, const struct policy_step *step,
                                       struct surrogate_losses *losses, struct error *error)
{
    struct policy_tape *net = self;
    struct surrogate minibatch;
    policy_begin_objective(&minibatch, rows, targets, step);
    enum status status = learn_pieces(net, rows, NULL, &minibatch, step->progress, step->context, error);
    *losses = surrogate_losses(&minibatch);
    if (status != STATUS_OK || losses->kl > step->kl_max)
        return status;
    status = policy_learner_clip(&net->learner, step->max_norm, &losses->gradient_norm, error);
    if (status == STATUS_OK)
        status = optimizer_lr_set(net->learner.optimizer, step->lr, error);
    if (status == STATUS_OK)
        status = optimizer_step(net->learner.optimizer, net->learner.gradients, error);
    if (status == STATUS_OK)
        status = load_head(net, error);
    losses->stepped = status == STATUS_OK;
    return status;
}

/* ---- values ---- */

static enum status policy_tape_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct policy_tape *net = self;
    const enum status status = policy_learner_restore(self, values, error);
    return status == STATUS_OK ? load_head(net, error) : status;
}

/* ---- opening ---- */

static enum status take_memory(struct policy_tape *net, struct error *error)
{
    const size_t rows = net->pieces.rows_max, features = dense_features(&net->network.shape, DENSE_POLICY);
    const bool explores = dense_explores(&net->network.shape);
    net->output = calloc(2 * rows * net->outputs, sizeof *net->output);
    net->value = calloc(6 * rows, sizeof *net->value);
    net->log_std = calloc(3 * (size_t)net->deviations, sizeof *net->log_std);
    if (explores)
        net->features = calloc(rows * features, sizeof *net->features);
    if (net->output == NULL || net->value == NULL || net->log_std == NULL ||
        (explores && net->features == NULL))
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu observations", rows);
    net->pulls = net->output + rows * net->outputs;
    net->value_pulls = net->value + rows;
    net->log_probability = net->value + 2 * rows;
    net->own = net->value + 3 * rows;
    net->entropy = net->value + 4 * rows;
    net->entropy_pulls = net->value + 5 * rows;
    net->log_std_pulls = net->log_std + net->deviations;
    net->log_std_part = net->log_std + 2 * (size_t)net->deviations;
    return policy_pieces_open(&net->pieces, error);
}

static void find_sizes(struct policy_tape *net, const struct policy_config *config)
{
    const uint32_t minibatch = policy_minibatch_rows(config);
    if (!config->has_value)
        return;
    net->has_value = true;
    net->learn_rows = policy_share_evenly(minibatch, net->pieces.piece_rows);
    if (config->memory != POLICY_NO_MEMORY && net->pieces.rows_max < policy_round_up(minibatch))
        net->pieces.rows_max = policy_round_up(minibatch);
}

/* The sequences of a piece share its steps, so that a piece has as many rows as their observations allow. */
static enum status open_sequences(struct policy_tape *net, const struct policy_config *config,
                                  struct error *error)
{
    if (config->memory == POLICY_NO_MEMORY)
        return STATUS_OK;
    return policy_sequences_new(&net->sequences, config, net->pieces.act_rows,
                                POLICY_PIECE_FLOATS / net->pieces.inputs, error);
}

/* The launch has one size for choosing and one for acting. */
static enum status open_launch(struct policy_tape *net, struct error *error)
{
    struct policy_launch_settings settings = {.rows_max = net->pieces.act_rows, .fixed = true};
    if (net->network.form == POLICY_FORM_CNN || net->sequences != NULL ||
        net->backend->ops->launch_new == NULL)
        return STATUS_OK;
    policy_network_layers(&net->network, &settings);
    return net->backend->ops->launch_new(net->backend, &settings, &net->launch, error);
}

static void describe(struct policy_tape *net, const struct policy_config *config)
{
    const struct dense_shape shape = policy_dense_shape(config);
    net->network = policy_network_of(config);
    net->outputs = dense_outputs(&shape);
    net->deviations = shape.components * (dense_explores(&shape) ? dense_features(&shape, DENSE_POLICY) : 1);
    net->gaussian = shape.gaussian;
    find_sizes(net, config);
}

static enum status policy_tape_open(void *self, const struct policy_config *config, struct backend *backend,
                                    const struct dense_normalizer *normalizer, struct error *error)
{
    struct policy_tape *net = self;
    net->backend = backend;
    policy_pieces_describe(&net->pieces, config, normalizer);
    describe(net, config);
    enum status status = take_memory(net, error);
    if (status == STATUS_OK)
        status = head_new(&net->head, &net->network.shape, error);
    if (status == STATUS_OK)
        status = policy_learner_open(&net->learner, config, backend, error);
    net->network.params = net->learner.params;
    if (status == STATUS_OK)
        status = open_sequences(net, config, error);
    if (status == STATUS_OK)
        status = open_launch(net, error);
    return status == STATUS_OK ? load_head(net, error) : status;
}

static void policy_tape_close(void *self)
{
    struct policy_tape *net = self;
    if (net->launch != NULL)
        net->backend->ops->launch_free(net->backend, net->launch);
    policy_learner_close(&net->learner);
    policy_sequences_free(net->sequences);
    head_free(net->head);
    policy_pieces_close(&net->pieces);
    free(net->output);
    free(net->value);
    free(net->features);
    free(net->log_std);
}

const struct policy_kind policy_tape_kind = {.bytes = sizeof(struct policy_tape),
                                             .open = policy_tape_open,
                                             .close = policy_tape_close,
                                             .act = policy_tape_act,
                                             .learn = policy_tape_learn,
                                             .estimate = policy_tape_estimate,
                                             .deviation = policy_tape_deviation,
                                             .review = policy_tape_review,
                                             .improve = policy_tape_improve,
                                             .save = policy_learner_save,
                                             .restore = policy_tape_restore};
