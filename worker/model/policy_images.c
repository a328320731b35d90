/* A policy for images: the CNN on the tape up to its outputs, the head on the host (kernels/policy/dense.h).
 *
 * The tape computes pieces of at most 256 rows. A piece is filled up with black images, so that the backend
 * need not plan for every number of rows: to a power of two or, of a policy with values, to one size for
 * learning and one for acting. A backend's sums depend on the piece's size and on the row's place in it. With
 * values, therefore, each environment acts at its own place, whoever acts beside it, and PPO begins with the
 * probabilities and values of a review. A greedy choice takes one image at a time, so that an evaluation's
 * episodes do not depend on the others.
 *
 * To learn, the outputs of a piece are read from the tape. The head and the objective say by how much L pulls
 * at each output. The tape walks back from sum(pull * output), whose gradient is L's. The pieces' gradients
 * add up in the batch's order. */
#include "kernels/backend.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_FLOATS = 1 << 24 }; /* of a piece's images, unless one image has more */

struct policy_images {
    struct policy_learner learner; // the first member
    struct head *head;
    const struct dense_normalizer *normalizer; // NULL: none
    uint64_t seed;
    bool bytes;      // observations are uint8
    uint32_t inputs; // elements of an observation
    uint32_t height, width, channels, outputs, components;
    uint32_t piece_rows; // of a piece, at most
    bool gaussian, has_value;
    uint32_t places, act_rows;      // with values: one for each environment; those of a piece
    uint32_t learn_rows;            // with values: what every other piece is filled up to
    float *images;                  // (piece_rows, channels, height, width)
    float *output, *pulls;          // (piece_rows, outputs) and dL/d of them
    float *value, *value_pulls;     // (piece_rows) and dL/d of them
    float *log_probability, *own;   // (piece_rows) of the rows' own actions, and dL/d of them
    float *entropy, *entropy_pulls; // (piece_rows) and dL/d of them
    float *log_std, *log_std_pulls; // (components)
    /* (piece_rows) each, of the rows that act in a piece: what struct policy_rows and struct dense_draw have,
     * and the place in the piece. */
    uint32_t *row, *environment, *step, *place;
};

/* Rows that the tape computes together. */
struct piece {
    struct policy_rows rows;
    uint32_t filled;       // black images behind, or between, the rows make them so many
    const uint32_t *place; // (rows.count) of each row, ascending; NULL: row i is at place i
};

/* ---- the network ----
 *
 * That of Mnih et al., "Human-level control through deep reinforcement learning" (Nature 518, 2015). No
 * padding; every layer has a bias; policy_parameters.h lists the parameters.
 *
 *     images (rows, channels, height, width)
 *     -> conv 32 of 8x8, stride 4 -> ReLU -> conv 64 of 4x4, stride 2 -> ReLU -> conv 64 of 3x3 -> ReLU
 *     -> flatten -> linear 512 -> ReLU = the features -> linear: logits or means
 *     features, shared or of a second CNN -> linear: the value */

/* Logits or means (rows, outputs); values (rows, 1). */
struct cnn_outputs {
    struct variable *action, *value;
};

enum { WANT_ACTION = 1, WANT_VALUE = 2, WANT_ALL = WANT_ACTION | WANT_VALUE }; // a set

static struct variable *find_parameter(struct params *params, struct tape *tape, const char *layer,
                                       const char *which)
{
    char name[POLICY_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", layer, which);
    return tape_parameter(tape, params_find(params, name));
}

/* ReLU in the place of x. */
static struct variable *activate(struct tape *tape, struct variable *x)
{
    struct variable *y = tape_relu(tape, x);
    tape_drop(tape, x);
    return y;
}

static struct variable *convolve(struct params *params, struct tape *tape, const char *layer, uint32_t stride,
                                 struct variable *x)
{
    struct variable *y = tape_conv2d(tape, x, find_parameter(params, tape, layer, "weight"),
                                     find_parameter(params, tape, layer, "bias"), stride, 0);
    return activate(tape, y);
}

static struct variable *flatten(struct tape *tape, struct variable *x)
{
    if (x == NULL)
        return NULL;
    const uint32_t *size = variable_tensor(x)->shape.size;
    struct variable *y = tape_reshape(tape, x, SHAPE2(size[0], size[1] * size[2] * size[3]));
    tape_drop(tape, x);
    return y;
}

static struct variable *connect(struct params *params, struct tape *tape, const char *layer,
                                struct variable *x)
{
    return tape_linear(tape, x, find_parameter(params, tape, layer, "weight"),
                       find_parameter(params, tape, layer, "bias"));
}

/* The features that the extractor `name` finds in the images. */
static struct variable *extract(struct params *params, struct tape *tape, const char *name,
                                struct variable *images)
{
    static const char *const convolutions[] = {"cnn.0", "cnn.2", "cnn.4"};
    static const uint32_t strides[] = {4, 2, 1};
    char layer[POLICY_NAME_BYTES - 8];
    struct variable *x = images;
    for (uint32_t l = 0; l < 3; l++) {
        snprintf(layer, sizeof layer, "%s.%s", name, convolutions[l]);
        struct variable *y = convolve(params, tape, layer, strides[l], x);
        if (l > 0)
            tape_drop(tape, x);
        x = y;
    }
    snprintf(layer, sizeof layer, "%s.linear.0", name);
    struct variable *flat = flatten(tape, x), *linear = connect(params, tape, layer, flat);
    tape_drop(tape, flat);
    return activate(tape, linear);
}

/* Computes the outputs that are `wanted`; the others are NULL. */
static struct cnn_outputs cnn_forward(struct params *params, struct tape *tape, struct variable *images,
                                      unsigned wanted)
{
    const bool shared = params_find(params, "vf_features_extractor.cnn.0.weight") == NULL;
    struct cnn_outputs outputs = {0};
    struct variable *features = NULL;
    if ((wanted & WANT_ACTION) != 0 || shared)
        features = extract(params, tape, "features_extractor", images);
    if ((wanted & WANT_ACTION) != 0)
        outputs.action = connect(params, tape, "action_net", features);
    if ((wanted & WANT_VALUE) != 0 && !shared) {
        tape_drop(tape, features);
        features = extract(params, tape, "vf_features_extractor", images);
    }
    if ((wanted & WANT_VALUE) != 0)
        outputs.value = connect(params, tape, "value_net", features);
    tape_drop(tape, features);
    return outputs;
}

/* ---- pieces ---- */

static uint32_t filled_up(uint32_t rows)
{
    uint32_t filled = 1;
    while (filled < rows)
        filled *= 2;
    return filled;
}

/* `filled` 0: to a power of two. */
static struct piece cut_piece(const struct policy_rows *rows, uint32_t first, uint32_t rows_max,
                              uint32_t filled)
{
    const uint32_t left = rows->count - first;
    struct piece piece = {.rows = *rows};
    piece.rows.count = left < rows_max ? left : rows_max;
    piece.rows.row += first;
    piece.filled = filled > 0 ? filled : filled_up(piece.rows.count);
    return piece;
}

/* The piece of the batch from row `first` on, for all but acting with values. */
static struct piece images_piece_of(const struct policy_images *net, const struct policy_rows *rows,
                                    uint32_t first)
{
    return cut_piece(rows, first, net->has_value ? net->learn_rows : net->piece_rows, net->learn_rows);
}

/* What the network reads in place of element `at` of an observation. */
static float normalized(const struct dense_normalizer *normalizer, size_t at, float x)
{
    const float limit = normalizer->limit, scaled = (x - normalizer->mean[at]) * normalizer->scale[at];
    return scaled > limit ? limit : scaled < -limit ? -limit : scaled; // a NaN stays
}

/* One observation (height, width, channels) as an image (channels, height, width). */
static void turn_image(const struct policy_images *net, const void *observation, float *image)
{
    const struct dense_normalizer *normalizer = net->normalizer;
    const size_t pixels = (size_t)net->height * net->width;
    for (size_t pixel = 0; pixel < pixels; pixel++)
        for (uint32_t c = 0; c < net->channels; c++) {
            const size_t from = pixel * net->channels + c;
            float x = net->bytes ? (float)((const uint8_t *)observation)[from] / 255
                                 : ((const float *)observation)[from];
            if (normalizer != NULL)
                x = normalized(normalizer, from, x);
            image[c * pixels + pixel] = x;
        }
}

/* Black images from place `first` up to `end`. */
static void clear_images(const struct policy_images *net, uint32_t first, uint32_t end)
{
    memset(net->images + (size_t)first * net->inputs, 0,
           (size_t)(end - first) * net->inputs * sizeof *net->images);
}

/* The piece's images, as an input of the tape. */
static struct variable *record_images(const struct policy_images *net, const struct piece *piece)
{
    const size_t row_bytes = (size_t)net->inputs * (net->bytes ? 1 : sizeof(float));
    uint32_t place = 0;
    for (uint32_t i = 0; i < piece->rows.count; i++) {
        const uint32_t end = piece->place != NULL ? piece->place[i] : i;
        clear_images(net, place, end);
        turn_image(net, (const char *)piece->rows.observations + piece->rows.row[i] * row_bytes,
                   net->images + (size_t)end * net->inputs);
        place = end + 1;
    }
    clear_images(net, place, piece->filled);
    return tape_input(net->learner.tape, SHAPE4(piece->filled, net->channels, net->height, net->width),
                      DTYPE_F32, "observations", net->images);
}

/* Records the piece's forward, and reads the outputs that are `wanted` into
 * net->output and net->value, place by place. Their variables have not been taken by an operation. */
static struct cnn_outputs images_record(const struct policy_images *net, const struct piece *piece,
                                        unsigned wanted)
{
    const struct cnn_outputs outputs =
        cnn_forward(net->learner.params, net->learner.tape, record_images(net, piece), wanted);
    if ((wanted & WANT_ACTION) != 0)
        tape_read_later(net->learner.tape, outputs.action, DTYPE_F32, net->output);
    if ((wanted & WANT_VALUE) != 0)
        tape_read_later(net->learner.tape, outputs.value, DTYPE_F32, net->value);
    tape_wait(net->learner.tape);
    return outputs;
}

static struct head_rows images_head_rows(const struct policy_images *net, const struct policy_rows *rows)
{
    return (struct head_rows){.batch = {.count = rows->count,
                                        .row = rows->row,
                                        .mask = rows->allowed,
                                        .choices = net->gaussian ? NULL : rows->actions,
                                        .actions = net->gaussian ? rows->actions : NULL},
                              .outputs = net->output};
}

/* ---- acting ---- */

/* The piece's outputs, which are read row by row from then on. */
static enum status infer_piece(const struct policy_images *net, const struct piece *piece, unsigned wanted,
                               struct error *error)
{
    tape_begin(net->learner.tape, TAPE_INFER, NULL);
    tape_on_progress(net->learner.tape, NULL, NULL);
    images_record(net, piece, wanted);
    const enum status status = tape_finish(net->learner.tape, error);
    for (uint32_t i = 0; i < piece->rows.count && piece->place != NULL; i++) {
        memmove(net->output + (size_t)i * net->outputs, net->output + (size_t)piece->place[i] * net->outputs,
                net->outputs * sizeof *net->output);
        net->value[i] = net->value[piece->place[i]];
    }
    return status;
}

/* `draw` NULL: greedily. */
static enum status act_piece(const struct policy_images *net, const struct piece *piece,
                             const struct dense_draw *draw, struct error *error)
{
    const bool keeps = piece->rows.values != NULL;
    const unsigned wanted = WANT_ACTION | (keeps ? WANT_VALUE : 0);
    const enum status status = infer_piece(net, piece, wanted, error);
    const struct head_rows rows = images_head_rows(net, &piece->rows);
    if (status != STATUS_OK)
        return status;
    head_act(net->head, &rows, draw, net->log_probability);
    for (uint32_t i = 0; i < piece->rows.count && keeps; i++) {
        piece->rows.log_probabilities[piece->rows.row[i]] = net->log_probability[i];
        piece->rows.values[piece->rows.row[i]] = net->value[i];
    }
    return STATUS_OK;
}

static enum status act_in_order(const struct policy_images *net, const struct policy_rows *rows,
                                struct dense_draw draw, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += net->piece_rows) {
        const struct piece piece = cut_piece(rows, first, net->piece_rows, 0);
        status = act_piece(net, &piece, &draw, error);
        draw.environment += piece.rows.count;
        draw.step += piece.rows.count;
    }
    return status;
}

/* The batch's rows of the environments from `begin` on that have places in one piece. */
static struct piece pick_piece(const struct policy_images *net, const struct policy_rows *rows,
                               const struct dense_draw *draw, uint32_t begin)
{
    struct piece piece = {.rows = *rows, .filled = net->act_rows, .place = net->place};
    uint32_t count = 0;
    memset(net->place, 0xff, net->act_rows * sizeof *net->place);
    for (uint32_t i = 0; i < rows->count; i++)
        if (draw->environment[i] - begin < net->act_rows)
            net->place[draw->environment[i] - begin] = i;
    for (uint32_t place = 0; place < net->act_rows; place++) {
        const uint32_t i = net->place[place];
        if (i == UINT32_MAX)
            continue;
        net->row[count] = rows->row[i];
        net->environment[count] = draw->environment[i];
        net->step[count] = draw->step[i];
        net->place[count++] = place;
    }
    piece.rows.row = net->row;
    piece.rows.count = count;
    return piece;
}

static enum status act_in_places(const struct policy_images *net, const struct policy_rows *rows,
                                 const struct dense_draw *draw, struct error *error)
{
    uint32_t acted = 0;
    for (uint32_t begin = 0; begin < net->places; begin += net->act_rows) {
        const struct piece piece = pick_piece(net, rows, draw, begin);
        struct dense_draw own = *draw;
        own.environment = net->environment;
        own.step = net->step;
        const enum status status = piece.rows.count > 0 ? act_piece(net, &piece, &own, error) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
        acted += piece.rows.count;
    }
    assert(acted == rows->count); // each environment once
    (void)acted;
    return STATUS_OK;
}

static enum status images_act(void *self, const struct policy_rows *rows, uint32_t episode,
                              const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_images *net = self;
    const struct dense_draw draw = {
        .seed = net->seed, .episode = episode, .environment = environment, .step = step};
    return net->has_value ? act_in_places(net, rows, &draw, error) : act_in_order(net, rows, draw, error);
}

static enum status images_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    const struct policy_images *net = self;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first++) {
        struct piece piece = cut_piece(rows, first, 1, 1);
        piece.rows.values = NULL;
        status = act_piece(net, &piece, NULL, error);
        if (status == STATUS_OK && !isfinite(net->log_probability[0]))
            status = error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    }
    return status;
}

static enum status images_estimate(void *self, const struct policy_rows *rows, struct error *error)
{
    const struct policy_images *net = self;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct piece piece = images_piece_of(net, rows, first);
        status = infer_piece(net, &piece, WANT_VALUE, error);
        for (uint32_t i = 0; i < piece.rows.count && status == STATUS_OK; i++)
            rows->values[piece.rows.row[i]] = net->value[i];
        first += piece.rows.count;
    }
    return status;
}

static double images_deviation(const void *self)
{
    const struct policy_images *net = self;
    double sum = 0;
    for (uint32_t c = 0; c < net->components; c++)
        sum += exp((double)net->log_std[c]);
    return sum / net->components;
}

/* log_std as it is now, to the head. */
static enum status images_load_head(struct policy_images *net, struct error *error)
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

/* Rows that fill up pull at nothing. */
static void clear_filling(const struct piece *piece, float *pulls, uint32_t columns)
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
static struct variable *record_pulls(const struct policy_images *net, struct cnn_outputs outputs)
{
    struct variable *pull =
        record_pull(net->learner.tape, outputs.action, "log-probabilities' pull", net->pulls);
    if (net->gaussian) {
        struct variable *log_std = tape_parameter(net->learner.tape, params_at(net->learner.params, 0));
        pull = tape_add(net->learner.tape, pull,
                        record_pull(net->learner.tape, log_std, "log-densities' pull", net->log_std_pulls),
                        false);
    }
    if (net->has_value)
        pull =
            tape_add(net->learner.tape, pull,
                     record_pull(net->learner.tape, outputs.value, "values' pull", net->value_pulls), false);
    return pull;
}

/* Ends the piece's step, whose part of L is `part`. */
static enum status walk_back(const struct policy_images *net, struct cnn_outputs outputs, double part,
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
static struct cnn_outputs evaluate_piece(const struct policy_images *net, const struct piece *piece,
                                         unsigned wanted, policy_progress *progress, void *context)
{
    const struct head_rows rows = images_head_rows(net, &piece->rows);
    tape_begin_adding(net->learner.tape, net->learner.gradients);
    tape_on_progress(net->learner.tape, progress, context);
    const struct cnn_outputs outputs = images_record(net, piece, wanted);
    if (tape_status(net->learner.tape, NULL) == STATUS_OK)
        head_evaluate(net->head, &rows, net->log_probability, net->entropy);
    return outputs;
}

static enum status images_review(void *self, const struct policy_rows *rows, policy_progress *progress,
                                 void *context, struct error *error)
{
    const struct policy_images *net = self;
    gradients_begin(net->learner.gradients);
    for (uint32_t first = 0; first < rows->count;) {
        const struct piece piece = images_piece_of(net, rows, first);
        evaluate_piece(net, &piece, WANT_ALL, progress, context);
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

/* Adds the piece to the batch's sums, and fills what the losses pull at the outputs, the values and log_std.
 * `coefficient` as learn_pieces has it, of the piece's rows. */
static void judge_piece(const struct policy_images *net, const struct piece *piece, const float *coefficient,
                        struct surrogate *objective)
{
    const struct policy_rows *rows = &piece->rows;
    const struct head_rows head_rows = images_head_rows(net, rows);
    const struct dense_pulls pulls = {.log_probability = net->own,
                                      .entropy = coefficient == NULL ? net->entropy_pulls : NULL,
                                      .value = net->value_pulls};
    if (coefficient != NULL) {
        struct surrogate_sums sums = {0};
        policy_judge_rewards(rows->count, coefficient, net->log_probability, net->own, &sums);
        surrogate_add(&objective->sums, &sums);
    } else {
        surrogate_judge_actions(objective, rows->count, rows->row, net->log_probability, net->entropy, &pulls,
                                &objective->sums);
        surrogate_judge_values(objective, rows->count, rows->row, net->value, &pulls, &objective->sums);
    }
    head_pull(net->head, &head_rows, &pulls, net->pulls, net->log_std_pulls);
    clear_filling(piece, net->pulls, net->outputs);
    clear_filling(piece, net->value_pulls, 1);
}

/* Fills the gradient and the objective's sums. `coefficient`: REINFORCE's, and L is sums.policy; NULL: PPO.
 */
static enum status learn_pieces(const struct policy_images *net, const struct policy_rows *rows,
                                const float *coefficient, struct surrogate *objective,
                                policy_progress *progress, void *context, struct error *error)
{
    const unsigned wanted = coefficient != NULL ? WANT_ACTION : WANT_ALL;
    enum status status = STATUS_OK;
    gradients_begin(net->learner.gradients);
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct piece piece = images_piece_of(net, rows, first);
        const struct cnn_outputs outputs = evaluate_piece(net, &piece, wanted, progress, context);
        if (tape_status(net->learner.tape, NULL) == STATUS_OK)
            judge_piece(net, &piece, coefficient != NULL ? coefficient + first : NULL, objective);
        first += piece.rows.count;
        status =
            walk_back(net, outputs,
                      coefficient != NULL ? objective->sums.policy : surrogate_losses(objective).loss, error);
    }
    return status;
}

static enum status images_learn(void *self, const struct policy_rows *rows, const float *coefficient,
                                uint32_t episode, double *loss, policy_progress *progress, void *context,
                                struct error *error)
{
    struct policy_images *net = self;
    struct surrogate objective = {0};
    (void)episode;
    enum status status = learn_pieces(net, rows, coefficient, &objective, progress, context, error);
    if (status == STATUS_OK)
        status = policy_learner_step(&net->learner, error);
    if (status == STATUS_OK)
        status = images_load_head(net, error);
    if (status == STATUS_OK)
        *loss = objective.sums.policy;
    return status;
}

/* As torch.nn.utils.clip_grad_norm_; *norm is the one before. STATUS_INTERNAL: it is not finite, or too large
 * for the sums of squares. */
static enum status clip_gradient(const struct policy_images *net, double max_norm, double *norm,
                                 struct error *error)
{
    double squares = 0;
    enum status status = gradients_squares(net->learner.gradients, &squares, error);
    *norm = sqrt(squares);
    if (status == STATUS_OK && !isfinite(*norm))
        status = gradients_check(net->learner.gradients, error);
    if (status == STATUS_OK && !isfinite(*norm))
        status = error_set(error, STATUS_INTERNAL, "the norm of the gradient is %g", *norm);
    const double factor = policy_clip_factor(*norm, max_norm);
    if (status != STATUS_OK || factor >= 1)
        return status;
    return backend_scale(params_backend(net->learner.params), gradients_slab(net->learner.gradients), factor,
                         error);
}

static enum status images_improve(void *self, const struct policy_rows *rows,
                                  const struct policy_targets *targets, const struct policy_step *step,
                                  struct surrogate_losses *losses, struct error *error)
{
    struct policy_images *net = self;
    struct surrogate minibatch;
    enum status status = policy_begin_objective(&minibatch, rows, targets, step, error);
    if (status != STATUS_OK)
        return status;
    status = learn_pieces(net, rows, NULL, &minibatch, step->progress, step->context, error);
    *losses = surrogate_losses(&minibatch);
    if (status != STATUS_OK || losses->kl > step->kl_max)
        return status;
    status = clip_gradient(net, step->max_norm, &losses->gradient_norm, error);
    if (status == STATUS_OK)
        status = optimizer_lr_set(net->learner.optimizer, step->lr, error);
    if (status == STATUS_OK)
        status = optimizer_step(net->learner.optimizer, net->learner.gradients, error);
    if (status == STATUS_OK)
        status = images_load_head(net, error);
    losses->stepped = status == STATUS_OK;
    return status;
}

/* ---- values ---- */

static enum status images_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct policy_images *net = self;
    const enum status status = policy_learner_restore(self, values, error);
    return status == STATUS_OK ? images_load_head(net, error) : status;
}

/* ---- opening ---- */

static enum status take_memory(struct policy_images *net, struct error *error)
{
    const size_t rows = net->piece_rows;
    net->images = calloc(rows * net->inputs, sizeof *net->images);
    net->output = calloc(2 * rows * net->outputs, sizeof *net->output);
    net->value = calloc(6 * rows, sizeof *net->value);
    net->log_std = calloc(2 * (size_t)net->components, sizeof *net->log_std);
    net->row = calloc(4 * rows, sizeof *net->row);
    if (net->images == NULL || net->output == NULL || net->value == NULL || net->log_std == NULL ||
        net->row == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu images", rows);
    net->pulls = net->output + rows * net->outputs;
    net->value_pulls = net->value + rows;
    net->log_probability = net->value + 2 * rows;
    net->own = net->value + 3 * rows;
    net->entropy = net->value + 4 * rows;
    net->entropy_pulls = net->value + 5 * rows;
    net->log_std_pulls = net->log_std + net->components;
    net->environment = net->row + rows;
    net->step = net->row + 2 * rows;
    net->place = net->row + 3 * rows;
    return STATUS_OK;
}

/* The size of pieces of at most `rows_max` that share `rows` evenly. */
static uint32_t share_evenly(uint32_t rows, uint32_t rows_max)
{
    const uint32_t pieces = rows / rows_max + (rows % rows_max != 0);
    return pieces == 0 ? 1 : rows / pieces + (rows % pieces != 0);
}

static void find_sizes(struct policy_images *net, const struct policy_config *config)
{
    const uint32_t minibatch =
        config->minibatch_rows < config->rows_max ? config->minibatch_rows : config->rows_max;
    net->piece_rows = POLICY_CHUNK_ROWS;
    while (net->piece_rows > 1 && (size_t)net->piece_rows * net->inputs > PIECE_FLOATS)
        net->piece_rows /= 2;
    if (!config->has_value)
        return;
    net->has_value = true;
    net->places = config->environments;
    net->act_rows = share_evenly(config->environments, net->piece_rows);
    net->learn_rows = share_evenly(minibatch, net->piece_rows);
}

static enum status images_open(void **self, const struct policy_config *config, struct backend *backend,
                               const struct dense_normalizer *normalizer, struct error *error)
{
    const struct dense_shape shape = policy_dense_shape(config);
    struct policy_images *net = *self = calloc(1, sizeof *net);
    if (net == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    net->normalizer = normalizer;
    net->seed = config->seed;
    net->bytes = config->observation.dtype == ENVIRONMENT_U8;
    net->inputs = (uint32_t)environment_space_elements(&config->observation);
    net->height = config->observation.shape[0];
    net->width = config->observation.shape[1];
    net->channels = config->observation.shape[2];
    net->outputs = dense_outputs(&shape);
    net->components = shape.components;
    net->gaussian = shape.gaussian;
    find_sizes(net, config);
    enum status status = take_memory(net, error);
    if (status == STATUS_OK)
        status = head_new(&net->head, &shape, error);
    if (status == STATUS_OK)
        status = policy_learner_open(&net->learner, config, backend, error);
    return status == STATUS_OK ? images_load_head(net, error) : status;
}

static void images_free(void *self)
{
    struct policy_images *net = self;
    policy_learner_close(&net->learner);
    head_free(net->head);
    free(net->images);
    free(net->output);
    free(net->value);
    free(net->log_std);
    free(net->row);
    free(net);
}

const struct policy_kind policy_images_kind = {.open = images_open,
                                               .free = images_free,
                                               .act = images_act,
                                               .choose = images_choose,
                                               .learn = images_learn,
                                               .estimate = images_estimate,
                                               .deviation = images_deviation,
                                               .review = images_review,
                                               .improve = images_improve,
                                               .save = policy_learner_save,
                                               .restore = images_restore};
