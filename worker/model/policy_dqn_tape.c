/* DQN with the CNN of Mnih et al. on a backend (policy_networks.c); the head is on the host (dqn_head.h).
 *
 * To act, each environment has its own place in a launch of one size (policy_pieces.h), so that its values
 * depend on no other row. Where all of a piece's choices are random, nothing is computed.
 *
 * To learn, a tape that records nothing finds the values of the next observations, and the head their
 * targets. A second tape reads the outputs for the observations; the head says by how much the loss pulls at
 * each, and the tape walks back from sum(pull * output). The pieces' gradients add up in the batch's order.
 */
#include "kernels/backend.h"
#include "worker/model/dqn_head.h"
#include "worker/model/policy_pieces.h"
#include "worker/model/q_learning.h"

#include <math.h>
#include <stdlib.h>

struct dqn_tape {
    struct policy_learner learner; // the first member
    struct policy_config config;
    struct dqn_head head;
    struct policy_pieces pieces;
    uint32_t outputs;    // of a row
    uint32_t learn_rows; // what every piece to learn from is filled up to
    /* (rows_max, outputs) each: of the network, of the target, and dL/d of the network's. */
    struct dense_matrix output, target_output, pull;
    double *target; // (rows_max)
};

/* ---- opening ---- */

static struct dense_matrix matrix_at(const struct dqn_tape *net, float *at)
{
    return (struct dense_matrix){.at = at, .stride = net->outputs};
}

static enum status take_memory(struct dqn_tape *net, struct error *error)
{
    const size_t rows = net->pieces.rows_max, count = rows * net->outputs;
    float *outputs = calloc(3 * count, sizeof *outputs);
    net->output = matrix_at(net, outputs);
    net->target = calloc(rows, sizeof *net->target);
    if (outputs == NULL || net->target == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the values of %zu observations", rows);
    net->target_output = matrix_at(net, outputs + count);
    net->pull = matrix_at(net, outputs + 2 * count);
    return policy_pieces_open(&net->pieces, error);
}

static enum status dqn_tape_open(void *self, const struct policy_config *config, struct backend *backend,
                                 const struct dense_normalizer *normalizer, struct error *error)
{
    struct dqn_tape *net = self;
    net->config = *config;
    net->head = dqn_head_of(config);
    net->outputs = dqn_head_outputs(&net->head);
    policy_pieces_describe(&net->pieces, config, normalizer);
    net->learn_rows = policy_share_evenly(config->q.batch_rows, net->pieces.piece_rows);
    const enum status status = take_memory(net, error);
    return status == STATUS_OK ? policy_learner_open(&net->learner, config, backend, error) : status;
}

static void dqn_tape_close(void *self)
{
    struct dqn_tape *net = self;
    policy_learner_close(&net->learner);
    policy_pieces_close(&net->pieces);
    free(net->output.at);
    free(net->target);
}

/* ---- forward ---- */

/* Records the network, or its target, over what net->pieces holds, and reads its outputs into `to`. */
static struct variable *record(const struct dqn_tape *net, bool target, const struct policy_inputs *inputs,
                               struct dense_matrix to)
{
    struct tape *tape = net->learner.tape;
    struct variable *outputs =
        policy_network_record_q(target ? net->learner.targets : net->learner.params, tape,
                                target ? "q_net_target" : "q_net", net->config.activation, inputs);
    tape_read_later(tape, outputs, DTYPE_F32, to.at);
    return outputs;
}

/* The outputs of the piece's rows. */
static enum status infer_piece(const struct dqn_tape *net, const struct policy_piece *piece,
                               struct error *error)
{
    struct tape *tape = net->learner.tape;
    policy_pieces_read(&net->pieces, piece);
    tape_begin(tape, TAPE_INFER, NULL);
    tape_on_progress(tape, NULL, NULL);
    const struct policy_inputs inputs = policy_pieces_input(&net->pieces, tape, piece->filled);
    record(net, false, &inputs, net->output);
    const enum status status = tape_finish(tape, error);
    policy_piece_gather(piece, net->output.at, net->outputs);
    return status;
}

/* ---- acting ---- */

static void dqn_tape_explore(void *self, const struct policy_exploration *exploration)
{
    ((struct dqn_tape *)self)->head.exploration = *exploration;
}

static enum status act_piece(const void *self, const struct policy_piece *piece,
                             const struct dense_draw *draw, struct error *error)
{
    const struct dqn_tape *net = self;
    struct dense_matrix values = {0};
    if (!dqn_head_is_random(&net->head, piece->rows.count, draw)) {
        const enum status status = infer_piece(net, piece, error);
        if (status != STATUS_OK)
            return status;
        values = dqn_head_values(&net->head, net->output, piece->rows.count);
    }
    return dqn_head_choose(&net->head, &piece->rows, values, draw, error);
}

static enum status dqn_tape_act(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                                struct error *error)
{
    const struct dqn_tape *net = self;
    return policy_pieces_act(&net->pieces, rows, draw, act_piece, self, error);
}

/* ---- learning ---- */

/* Reads the batch's rows from `first` on, as many as a piece has: their observations, or the next ones. */
static struct policy_piece read_transitions(const struct dqn_tape *net,
                                            const struct policy_transitions *batch, uint32_t first, bool next)
{
    const uint32_t left = batch->count - first;
    const struct policy_piece piece = {
        .rows = {.count = left < net->learn_rows ? left : net->learn_rows,
                 .row = net->pieces.row,
                 .observations = next ? batch->next_observations : batch->observations},
        .filled = net->learn_rows};
    for (uint32_t i = 0; i < piece.rows.count; i++)
        net->pieces.row[i] = first + i;
    policy_pieces_read(&net->pieces, &piece);
    return piece;
}

/* Fills net->target for the batch's rows from `first` on. */
static enum status find_targets(const struct dqn_tape *net, const struct policy_transitions *batch,
                                uint32_t first, struct error *error)
{
    struct tape *tape = net->learner.tape;
    const struct policy_piece piece = read_transitions(net, batch, first, true);
    const uint32_t count = piece.rows.count;
    tape_begin(tape, TAPE_INFER, NULL);
    const struct policy_inputs inputs = policy_pieces_input(&net->pieces, tape, piece.filled);
    record(net, true, &inputs, net->target_output);
    if (net->config.q.double_q)
        record(net, false, &inputs, net->output);
    const enum status status = tape_finish(tape, error);
    if (status != STATUS_OK)
        return status;
    const struct dense_matrix judge = dqn_head_values(&net->head, net->target_output, count);
    dqn_head_targets(&net->head, batch, first, count, judge,
                     net->config.q.double_q ? dqn_head_values(&net->head, net->output, count) : judge,
                     net->target);
    return STATUS_OK;
}

/* The name of the first parameter that holds a NaN or an infinity; NULL: none does. */
static const char *lost_parameter(struct params *params)
{
    struct error ignored;
    for (uint32_t i = 0; i < params_count(params); i++) {
        size_t at = SIZE_MAX;
        struct parameter *parameter = params_at(params, i);
        backend_first_not_finite(params_backend(params), &parameter->tensor, &at, &ignored);
        if (at != SIZE_MAX)
            return parameter->name;
    }
    return NULL;
}

/* Why the loss is not finite. */
static void fail(const struct dqn_tape *net, const struct policy_transitions *batch, double loss)
{
    static const char begin[] = "the first tensor that holds a NaN or an infinity is the";
    const char *tensor = q_lost_tensor(&net->config, batch), *parameter = NULL;
    if (tensor == NULL)
        parameter = lost_parameter(net->learner.params);
    if (tensor == NULL && parameter == NULL)
        parameter = lost_parameter(net->learner.targets);
    if (parameter != NULL)
        tape_fail(net->learner.tape, STATUS_INTERNAL, "the loss is %g; %s parameter %s", loss, begin,
                  parameter);
    else
        tape_fail(net->learner.tape, STATUS_INTERNAL, "the loss is %g; %s %s", loss, begin,
                  tensor != NULL ? tensor : "values");
}

/* Adds the gradient and the loss of the piece of the batch that begins with row *first, and goes behind it.
 */
static enum status learn_piece(const struct dqn_tape *net, const struct policy_transitions *batch,
                               uint32_t *first, double *loss, struct error *error)
{
    struct tape *tape = net->learner.tape;
    enum status status = find_targets(net, batch, *first, error);
    if (status != STATUS_OK)
        return status;
    const struct policy_piece piece = read_transitions(net, batch, *first, false);
    tape_begin_adding(tape, net->learner.gradients);
    const struct policy_inputs inputs = policy_pieces_input(&net->pieces, tape, piece.filled);
    struct variable *outputs = record(net, false, &inputs, net->output);
    if (tape_wait(tape) == STATUS_OK) {
        const struct dense_matrix values = dqn_head_values(&net->head, net->output, piece.rows.count);
        *loss += dqn_head_loss(&net->head, batch, *first, piece.rows.count, values, net->target, net->pull);
        policy_piece_clear(&piece, net->pull.at, net->outputs);
        if (!isfinite(*loss))
            fail(net, batch, *loss);
    }
    tape_backward(tape, policy_learner_pull(tape, outputs, "values' pull", net->pull.at));
    *first += piece.rows.count;
    return tape_finish(tape, error);
}

static enum status dqn_tape_fit(void *self, const struct policy_transitions *batch, double lr,
                                struct policy_q_losses *losses, struct error *error)
{
    struct dqn_tape *net = self;
    enum status status = STATUS_OK;
    double norm;
    *losses = (struct policy_q_losses){
        .actor = (double)NAN, .entropy_coefficient = (double)NAN, .entropy = (double)NAN};
    tape_on_progress(net->learner.tape, NULL, NULL);
    gradients_begin(net->learner.gradients);
    for (uint32_t first = 0; first < batch->count && status == STATUS_OK;)
        status = learn_piece(net, batch, &first, &losses->critic, error);
    if (status == STATUS_OK)
        status = policy_learner_clip(&net->learner, net->config.q.max_norm, &norm, error);
    if (status == STATUS_OK)
        status = optimizer_lr_set(net->learner.optimizer, lr, error);
    return status == STATUS_OK ? optimizer_step(net->learner.optimizer, net->learner.gradients, error)
                               : status;
}

static uint64_t dqn_tape_fits(const void *self)
{
    return optimizer_steps(((const struct dqn_tape *)self)->learner.optimizer);
}

static enum status dqn_tape_follow(void *self, struct error *error)
{
    struct dqn_tape *net = self;
    return policy_learner_follow(&net->learner, net->config.q.tau, error);
}

const struct policy_kind policy_dqn_tape_kind = {.bytes = sizeof(struct dqn_tape),
                                                 .open = dqn_tape_open,
                                                 .close = dqn_tape_close,
                                                 .act = dqn_tape_act,
                                                 .explore = dqn_tape_explore,
                                                 .fit = dqn_tape_fit,
                                                 .fits = dqn_tape_fits,
                                                 .follow = dqn_tape_follow,
                                                 .save = policy_learner_save,
                                                 .restore = policy_learner_restore};
