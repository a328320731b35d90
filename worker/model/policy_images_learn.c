/* How a policy for images learns: its steps of REINFORCE and of PPO.
 *
 * A piece's outputs are read from the tape; the head and the objective say by how much L pulls at each of
 * them; and the tape walks back from sum(pull * output), whose gradient is L's. The pieces' gradients add up
 * in the batch's order. */
#include "kernels/backend.h"
#include "worker/model/policy_images.h"
#include "worker/model/policy_objective.h"

#include <math.h>
#include <string.h>

enum { ALL = POLICY_CNN_ACTION | POLICY_CNN_VALUE };

/* ---- walking back ---- */

/* Rows that fill up pull at nothing. */
static void clear_filling(const struct images_piece *piece, float *pulls, uint32_t columns)
{
    const size_t filling = (size_t)(piece->filled - piece->rows.count) * columns;
    memset(pulls + (size_t)piece->rows.count * columns, 0, filling * sizeof *pulls);
}

/* sum(pull * x), whose gradient with respect to x is the pull. */
static struct variable *record_pull(struct tape *tape, struct variable *x, const char *name,
                                    const float *pull)
{
    if (x == NULL)
        return NULL;
    struct variable *by = tape_input(tape, variable_tensor(x)->shape, DTYPE_F32, name, pull);
    return tape_sum(tape, x, by, 1);
}

/* The sum of all pulls times what they pull at. */
static struct variable *record_pulls(const struct policy_images *net, struct policy_cnn_outputs outputs)
{
    struct variable *pull = record_pull(net->tape, outputs.action, "log-probabilities' pull", net->pulls);
    if (net->gaussian) {
        struct variable *log_std = tape_parameter(net->tape, params_at(net->params, 0));
        pull = tape_add(net->tape, pull,
                        record_pull(net->tape, log_std, "log-densities' pull", net->log_std_pulls), false);
    }
    if (net->has_value)
        pull = tape_add(net->tape, pull,
                        record_pull(net->tape, outputs.value, "values' pull", net->value_pulls), false);
    return pull;
}

/* Ends the piece's step, whose part of L is `part`. */
static enum status walk_back(const struct policy_images *net, struct policy_cnn_outputs outputs, double part,
                             struct error *error)
{
    struct variable *pull = record_pulls(net, outputs);
    double sum;
    tape_loss(net->tape, pull, &sum);
    if (!isfinite(part))
        tape_fail(net->tape, STATUS_INTERNAL, "the loss is %g, and no tensor holds a NaN or an infinity",
                  part);
    tape_backward(net->tape, pull);
    return tape_finish(net->tape, error);
}

/* ---- REINFORCE ---- */

/* The piece's part of L, and dL/d of the outputs and of log_std. */
static double pull_piece(const struct policy_images *net, const struct images_piece *piece,
                         const float *coefficient)
{
    const struct head_rows rows = images_head_rows(net, &piece->rows);
    double loss = 0;
    head_evaluate(net->head, &rows, net->log_probability, NULL);
    for (uint32_t i = 0; i < piece->rows.count; i++) {
        net->own[i] = -coefficient[i];
        loss -= (double)coefficient[i] * (double)net->log_probability[i];
    }
    head_pull(net->head, &rows, &(struct dense_pulls){.log_probability = net->own}, net->pulls,
              net->log_std_pulls);
    clear_filling(piece, net->pulls, net->outputs);
    return loss;
}

/* Adds the piece's gradient, and its part of L to *loss. */
static enum status learn_piece(const struct policy *policy, const struct images_piece *piece,
                               const float *coefficient, double *loss, policy_progress *progress,
                               void *context, struct error *error)
{
    const struct policy_images *net = policy->network;
    double part = 0;
    tape_begin_adding(net->tape, net->gradients);
    tape_on_progress(net->tape, progress, context);
    const struct policy_cnn_outputs outputs = images_record(policy, piece, POLICY_CNN_ACTION);
    if (tape_status(net->tape, NULL) == STATUS_OK)
        part = pull_piece(net, piece, coefficient);
    *loss += part;
    return walk_back(net, outputs, part, error);
}

enum status policy_images_learn(struct policy *policy, const struct policy_rows *rows,
                                const float *coefficient, uint32_t episode, double *loss,
                                policy_progress *progress, void *context, struct error *error)
{
    struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    double found = 0;
    (void)episode;
    gradients_begin(net->gradients);
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct images_piece piece = images_piece_of(net, rows, first);
        status = learn_piece(policy, &piece, coefficient + first, &found, progress, context, error);
        first += piece.rows.count;
    }
    if (status == STATUS_OK) // a NaN in a parameter would stay
        status = gradients_check(net->gradients, error);
    if (status == STATUS_OK)
        status = optimizer_step(net->optimizer, net->gradients, error);
    if (status == STATUS_OK)
        status = images_load_head(net, error);
    if (status == STATUS_OK)
        *loss = found;
    return status;
}

/* ---- PPO ---- */

/* Records the piece as for a step, and evaluates its rows' own actions. */
static struct policy_cnn_outputs evaluate_piece(const struct policy *policy, const struct images_piece *piece,
                                                policy_progress *progress, void *context)
{
    const struct policy_images *net = policy->network;
    const struct head_rows rows = images_head_rows(net, &piece->rows);
    tape_begin_adding(net->tape, net->gradients);
    tape_on_progress(net->tape, progress, context);
    const struct policy_cnn_outputs outputs = images_record(policy, piece, ALL);
    if (tape_status(net->tape, NULL) == STATUS_OK)
        head_evaluate(net->head, &rows, net->log_probability, net->entropy);
    return outputs;
}

enum status policy_images_review(struct policy *policy, const struct policy_rows *rows,
                                 policy_progress *progress, void *context, struct error *error)
{
    const struct policy_images *net = policy->network;
    gradients_begin(net->gradients);
    for (uint32_t first = 0; first < rows->count;) {
        const struct images_piece piece = images_piece_of(net, rows, first);
        evaluate_piece(policy, &piece, progress, context);
        const enum status status = tape_finish(net->tape, error);
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

/* Adds the piece to the minibatch; what the losses pull at the outputs, the values and log_std. */
static void judge_piece(const struct policy_images *net, const struct images_piece *piece,
                        struct policy_minibatch *minibatch)
{
    const struct head_rows rows = images_head_rows(net, &piece->rows);
    const struct surrogate_pulls pulls = {
        .log_probability = net->own, .entropy = net->entropy_pulls, .value = net->value_pulls};
    policy_minibatch_judge_actions(minibatch, &piece->rows, net->log_probability, net->entropy, &pulls,
                                   &minibatch->sums);
    policy_minibatch_judge_values(minibatch, &piece->rows, net->value, &pulls, &minibatch->sums);
    head_pull(net->head, &rows,
              &(struct dense_pulls){.log_probability = net->own, .entropy = net->entropy_pulls}, net->pulls,
              net->log_std_pulls);
    clear_filling(piece, net->pulls, net->outputs);
    clear_filling(piece, net->value_pulls, 1);
}

static enum status improve_pieces(struct policy *policy, const struct policy_rows *rows,
                                  const struct policy_step *step, struct policy_minibatch *minibatch,
                                  struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    gradients_begin(net->gradients);
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct images_piece piece = images_piece_of(net, rows, first);
        const struct policy_cnn_outputs outputs =
            evaluate_piece(policy, &piece, step->progress, step->context);
        if (tape_status(net->tape, NULL) == STATUS_OK)
            judge_piece(net, &piece, minibatch);
        first += piece.rows.count;
        status = walk_back(net, outputs, policy_minibatch_losses(minibatch).loss, error);
    }
    return status;
}

/* As torch.nn.utils.clip_grad_norm_; *norm is the one before. STATUS_INTERNAL: it is not finite, or too large
 * for the sums of squares. */
static enum status clip_gradient(const struct policy_images *net, double max_norm, double *norm,
                                 struct error *error)
{
    double squares = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(net->params) && status == STATUS_OK; i++) {
        double part = 0;
        status = gradients_square_sum(net->gradients, params_at(net->params, i), &part, error);
        squares += part;
    }
    *norm = sqrt(squares);
    if (status == STATUS_OK && !isfinite(*norm))
        status = gradients_check(net->gradients, error);
    if (status == STATUS_OK && !isfinite(*norm))
        status = error_set(error, STATUS_INTERNAL, "the norm of the gradient is %g", *norm);
    const double factor = policy_clip_factor(*norm, max_norm);
    if (status != STATUS_OK || factor >= 1)
        return status;
    return backend_scale(params_backend(net->params), gradients_slab(net->gradients), factor, error);
}

enum status policy_images_improve(struct policy *policy, const struct policy_rows *rows,
                                  const struct policy_targets *targets, const struct policy_step *step,
                                  struct policy_losses *losses, struct error *error)
{
    struct policy_images *net = policy->network;
    struct policy_minibatch minibatch;
    policy_minibatch_begin(&minibatch, net->surrogate, rows, targets, &step->objective);
    enum status status = improve_pieces(policy, rows, step, &minibatch, error);
    *losses = policy_minibatch_losses(&minibatch);
    if (status != STATUS_OK || losses->kl > step->kl_max)
        return status;
    status = clip_gradient(net, step->max_norm, &losses->gradient_norm, error);
    if (status == STATUS_OK)
        status = optimizer_lr_set(net->optimizer, step->lr, error);
    if (status == STATUS_OK)
        status = optimizer_step(net->optimizer, net->gradients, error);
    if (status == STATUS_OK)
        status = images_load_head(net, error);
    losses->stepped = status == STATUS_OK;
    return status;
}
