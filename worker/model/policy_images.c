/* A policy for images: the CNN on the tape up to its outputs, the head on the host (kernels/policy/head.h).
 *
 * Rows pass in pieces of at most 256. A piece is filled up with black images to a power of two, so that the
 * backend need not plan for every number of rows. To learn, a piece's outputs are read from the tape; the
 * head says by how much L pulls at each of them; and the tape walks back from sum(pull * output), whose
 * gradient is L's. The pieces' gradients add up in the batch's order. */
#include "kernels/params/gradients.h"
#include "kernels/params/optim.h"
#include "kernels/policy/head.h"
#include "worker/model/policy_cnn.h"
#include "worker/model/policy_config.h"
#include "worker/model/policy_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_FLOATS = 1 << 24 }; /* of a piece's images, unless one image has more */

struct policy_images {
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
    struct head *head;
    uint32_t height, width, channels, outputs;
    uint32_t piece_rows; // a power of two
    bool gaussian;
    float *images;                  // (piece_rows, channels, height, width)
    float *output, *pulls;          // (piece_rows, outputs) and dL/d of them
    float *log_probability, *own;   // (piece_rows) of the rows' own actions, and dL/d of them
    float *log_std, *log_std_pulls; // (components)
};

/* ---- pieces ---- */

static struct policy_rows piece_of(const struct policy_images *net, const struct policy_rows *rows,
                                   uint32_t first)
{
    struct policy_rows piece = *rows;
    const uint32_t left = rows->count - first;
    piece.count = left < net->piece_rows ? left : net->piece_rows;
    piece.row += first;
    return piece;
}

static uint32_t filled_up(uint32_t rows)
{
    uint32_t filled = 1;
    while (filled < rows)
        filled *= 2;
    return filled;
}

/* One observation (height, width, channels) as an image (channels, height, width). */
static void turn_image(const struct policy_images *net, const void *observation, bool bytes, float *image)
{
    const size_t pixels = (size_t)net->height * net->width;
    for (size_t pixel = 0; pixel < pixels; pixel++)
        for (uint32_t c = 0; c < net->channels; c++) {
            const size_t from = pixel * net->channels + c;
            image[c * pixels + pixel] = bytes ? (float)((const uint8_t *)observation)[from] / 255
                                              : ((const float *)observation)[from];
        }
}

/* The piece's images, as an input of the tape. */
static struct variable *record_images(const struct policy *policy, const struct policy_rows *piece)
{
    const struct policy_images *net = policy->network;
    const uint32_t filled = filled_up(piece->count);
    const size_t row_bytes = (size_t)policy->inputs * (policy->bytes ? 1 : sizeof(float));
    for (uint32_t i = 0; i < piece->count; i++)
        turn_image(net, (const char *)piece->observations + piece->row[i] * row_bytes, policy->bytes,
                   net->images + (size_t)i * policy->inputs);
    memset(net->images + (size_t)piece->count * policy->inputs, 0,
           (size_t)(filled - piece->count) * policy->inputs * sizeof *net->images);
    return tape_input(net->tape, SHAPE4(filled, net->channels, net->height, net->width), DTYPE_F32,
                      "observations", net->images);
}

/* Reads the outputs of the piece's rows, which the tape has not given away yet. */
static struct variable *record_outputs(const struct policy *policy, const struct policy_rows *piece)
{
    const struct policy_images *net = policy->network;
    struct variable *outputs = policy_cnn_forward(net->params, net->tape, record_images(policy, piece));
    tape_read(net->tape, outputs, DTYPE_F32, net->output);
    return outputs;
}

static struct head_rows head_rows_of(const struct policy_images *net, const struct policy_rows *piece)
{
    return (struct head_rows){.batch = {.count = piece->count,
                                        .row = piece->row,
                                        .mask = piece->allowed,
                                        .choices = net->gaussian ? NULL : piece->actions,
                                        .actions = net->gaussian ? piece->actions : NULL},
                              .outputs = net->output};
}

/* ---- acting ---- */

static enum status infer_piece(const struct policy *policy, const struct policy_rows *piece,
                               const struct dense_draw *draw, struct error *error)
{
    const struct policy_images *net = policy->network;
    tape_begin(net->tape, TAPE_INFER, NULL);
    tape_on_progress(net->tape, NULL, NULL);
    record_outputs(policy, piece);
    const enum status status = tape_finish(net->tape, error);
    const struct head_rows rows = head_rows_of(net, piece);
    if (status == STATUS_OK)
        head_act(net->head, &rows, draw, net->log_probability);
    return status;
}

static enum status images_kind_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                                   const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += net->piece_rows) {
        const struct policy_rows piece = piece_of(net, rows, first);
        const struct dense_draw draw = {.seed = policy->seed,
                                        .episode = episode,
                                        .environment = environment + first,
                                        .step = step + first};
        status = infer_piece(policy, &piece, &draw, error);
    }
    return status;
}

static enum status images_kind_choose(struct policy *policy, const struct policy_rows *rows,
                                      struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += net->piece_rows) {
        const struct policy_rows piece = piece_of(net, rows, first);
        status = infer_piece(policy, &piece, NULL, error);
        for (uint32_t i = 0; i < piece.count && status == STATUS_OK; i++)
            if (!isfinite(net->log_probability[i]))
                status = error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    }
    return status;
}

/* ---- learning ---- */

/* The piece's part of L, and dL/d of the outputs and of log_std. Rows that fill up pull at nothing. */
static double pull_piece(const struct policy_images *net, const struct policy_rows *piece,
                         const float *coefficient)
{
    const struct head_rows rows = head_rows_of(net, piece);
    const size_t filling = (size_t)(filled_up(piece->count) - piece->count) * net->outputs;
    double loss = 0;
    head_evaluate(net->head, &rows, net->log_probability);
    for (uint32_t i = 0; i < piece->count; i++) {
        net->own[i] = -coefficient[i];
        loss -= (double)coefficient[i] * (double)net->log_probability[i];
    }
    head_pull(net->head, &rows, net->own, net->pulls, net->log_std_pulls);
    memset(net->pulls + (size_t)piece->count * net->outputs, 0, filling * sizeof *net->pulls);
    return loss;
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

/* Adds the piece's gradient, and its part of L to *loss. */
static enum status learn_piece(const struct policy *policy, const struct policy_rows *piece,
                               const float *coefficient, double *loss, policy_progress *progress,
                               void *context, struct error *error)
{
    const struct policy_images *net = policy->network;
    double part = 0, sum;
    tape_begin_adding(net->tape, net->gradients);
    tape_on_progress(net->tape, progress, context);
    struct variable *outputs = record_outputs(policy, piece);
    if (tape_status(net->tape, NULL) == STATUS_OK)
        part = pull_piece(net, piece, coefficient);
    struct variable *pull = record_pull(net->tape, outputs, "log-probabilities' pull", net->pulls);
    if (net->gaussian) {
        struct variable *log_std = tape_parameter(net->tape, params_at(net->params, 0));
        pull = tape_add(net->tape, pull,
                        record_pull(net->tape, log_std, "log-densities' pull", net->log_std_pulls), false);
    }
    tape_loss(net->tape, pull, &sum);
    if (!isfinite(part))
        tape_fail(net->tape, STATUS_INTERNAL, "the loss is %g, and no tensor holds a NaN or an infinity",
                  part);
    tape_backward(net->tape, pull);
    *loss += part;
    return tape_finish(net->tape, error);
}

/* log_std as it is now, to the head. */
static enum status load_head(const struct policy_images *net, struct error *error)
{
    if (!net->gaussian)
        return STATUS_OK;
    const enum status status =
        params_read(net->params, params_at(net->params, 0), DTYPE_F32, net->log_std, error);
    if (status == STATUS_OK)
        head_load(net->head, net->log_std);
    return status;
}

static enum status images_kind_learn(struct policy *policy, const struct policy_rows *rows,
                                     const float *coefficient, uint32_t episode, double *loss,
                                     policy_progress *progress, void *context, struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    double found = 0;
    (void)episode;
    gradients_begin(net->gradients);
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += net->piece_rows) {
        const struct policy_rows piece = piece_of(net, rows, first);
        status = learn_piece(policy, &piece, coefficient + first, &found, progress, context, error);
    }
    if (status == STATUS_OK) // a NaN in a parameter would stay
        status = gradients_check(net->gradients, error);
    if (status == STATUS_OK)
        status = optimizer_step(net->optimizer, net->gradients, error);
    if (status == STATUS_OK)
        status = load_head(net, error);
    if (status == STATUS_OK)
        *loss = found;
    return status;
}

/* ---- values ---- */

/* The optimizer's moment that an array of policy_values is. */
static struct gradients *moment_of(const struct policy_images *net, int array)
{
    return optimizer_moment(net->optimizer, array == POLICY_SECOND_MOMENT);
}

static enum status images_kind_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(net->params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            const struct parameter *parameter = params_at(net->params, i);
            float *to = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_read(net->params, parameter, DTYPE_F32, to, error)
                         : gradients_read(moment_of(net, array), parameter, DTYPE_F32, to, error);
        }
    values->steps = optimizer_steps(net->optimizer);
    return status;
}

static enum status images_kind_restore(struct policy *policy, const struct policy_values *values,
                                       struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < params_count(net->params); i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            struct parameter *parameter = params_at(net->params, i);
            const float *from = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_write(net->params, parameter, DTYPE_F32, from, error)
                         : gradients_write(moment_of(net, array), parameter, DTYPE_F32, from, error);
        }
    optimizer_steps_set(net->optimizer, values->steps);
    return status == STATUS_OK ? load_head(net, error) : status;
}

/* ---- opening ---- */

static enum status take_memory(struct policy_images *net, const struct policy *policy, struct error *error)
{
    const size_t rows = net->piece_rows;
    net->images = calloc(rows * policy->inputs, sizeof *net->images);
    net->output = calloc(2 * rows * net->outputs, sizeof *net->output);
    net->log_probability = calloc(2 * rows, sizeof *net->log_probability);
    net->log_std = calloc(2 * (size_t)policy->components, sizeof *net->log_std);
    if (net->images == NULL || net->output == NULL || net->log_probability == NULL || net->log_std == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu images", rows);
    net->pulls = net->output + rows * net->outputs;
    net->own = net->log_probability + rows;
    net->log_std_pulls = net->log_std + policy->components;
    return STATUS_OK;
}

static enum status open_learning(struct policy_images *net, const struct policy_config *config,
                                 struct backend *backend, struct error *error)
{
    const struct optimizer_settings settings = {.kind = OPTIMIZER_ADAM, .adam = config->adam};
    enum status status = params_new(&net->params, backend, error);
    if (status == STATUS_OK)
        status = policy_cnn_register(net->params, config, error);
    if (status == STATUS_OK)
        status = params_build(net->params, config->seed, error);
    if (status == STATUS_OK)
        status = optimizer_new(&net->optimizer, &settings, net->params, error);
    if (status == STATUS_OK)
        status = gradients_new(&net->gradients, net->params, error);
    return status == STATUS_OK ? tape_new(&net->tape, backend, error) : status;
}

static enum status images_kind_open(struct policy *policy, const struct policy_config *config,
                                    struct backend *backend, struct error *error)
{
    const struct dense_shape shape = policy_dense_shape(config);
    const uint32_t *size = config->observation.shape;
    struct policy_images *net = policy->network = calloc(1, sizeof *net);
    if (net == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    net->height = size[0];
    net->width = size[1];
    net->channels = size[2];
    net->outputs = dense_outputs(&shape);
    net->gaussian = shape.gaussian;
    net->piece_rows = POLICY_CHUNK_ROWS;
    while (net->piece_rows > 1 && (size_t)net->piece_rows * policy->inputs > PIECE_FLOATS)
        net->piece_rows /= 2;
    enum status status = take_memory(net, policy, error);
    if (status == STATUS_OK)
        status = head_new(&net->head, &shape, error);
    return status == STATUS_OK ? open_learning(net, config, backend, error) : status;
}

static void images_kind_free(struct policy *policy)
{
    struct policy_images *net = policy->network;
    if (net == NULL)
        return;
    tape_free(net->tape);
    gradients_free(net->gradients);
    optimizer_free(net->optimizer);
    params_free(net->params);
    head_free(net->head);
    free(net->images);
    free(net->output);
    free(net->log_probability);
    free(net->log_std);
    free(net);
}

const struct policy_kind policy_images_kind = {.open = images_kind_open,
                                               .free = images_kind_free,
                                               .act = images_kind_act,
                                               .choose = images_kind_choose,
                                               .learn = images_kind_learn,
                                               .save = images_kind_save,
                                               .restore = images_kind_restore};
