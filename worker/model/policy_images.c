/* A policy for images: the CNN on the tape up to its outputs, the head on the host (kernels/policy/head.h).
 *
 * Rows pass in pieces of at most 256. A piece is filled up with black images, so that the backend need not
 * plan for every number of rows: to a power of two or, of a policy with values, to one size for learning and
 * one for acting. A backend rounds a row's sums otherwise in a piece of another size, or at another place in
 * the piece. So, with values, each environment acts at its own place, whoever acts beside it, and the
 * probabilities and values that PPO begins with are those of a review (policy_images_learn.c). A greedy
 * choice is made for one image at a time: an evaluation's episodes do not depend on those that are played
 * beside. */
#include "worker/model/policy_images.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_FLOATS = 1 << 24 }; /* of a piece's images, unless one image has more */

/* ---- pieces ---- */

static uint32_t filled_up(uint32_t rows)
{
    uint32_t filled = 1;
    while (filled < rows)
        filled *= 2;
    return filled;
}

/* `filled` 0: to a power of two. */
static struct images_piece cut_piece(const struct policy_rows *rows, uint32_t first, uint32_t rows_max,
                                     uint32_t filled)
{
    const uint32_t left = rows->count - first;
    struct images_piece piece = {.rows = *rows};
    piece.rows.count = left < rows_max ? left : rows_max;
    piece.rows.row += first;
    piece.filled = filled > 0 ? filled : filled_up(piece.rows.count);
    return piece;
}

struct images_piece images_piece_of(const struct policy_images *net, const struct policy_rows *rows,
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
static void turn_image(const struct policy *policy, const void *observation, float *image)
{
    const struct policy_images *net = policy->network;
    const struct dense_normalizer *normalizer = policy_normalizer(policy);
    const size_t pixels = (size_t)net->height * net->width;
    for (size_t pixel = 0; pixel < pixels; pixel++)
        for (uint32_t c = 0; c < net->channels; c++) {
            const size_t from = pixel * net->channels + c;
            float x = policy->bytes ? (float)((const uint8_t *)observation)[from] / 255
                                    : ((const float *)observation)[from];
            if (normalizer != NULL)
                x = normalized(normalizer, from, x);
            image[c * pixels + pixel] = x;
        }
}

/* Black images from place `first` up to `end`. */
static void clear_images(const struct policy *policy, uint32_t first, uint32_t end)
{
    const struct policy_images *net = policy->network;
    memset(net->images + (size_t)first * policy->inputs, 0,
           (size_t)(end - first) * policy->inputs * sizeof *net->images);
}

/* The piece's images, as an input of the tape. */
static struct variable *record_images(const struct policy *policy, const struct images_piece *piece)
{
    const struct policy_images *net = policy->network;
    const size_t row_bytes = (size_t)policy->inputs * (policy->bytes ? 1 : sizeof(float));
    uint32_t place = 0;
    for (uint32_t i = 0; i < piece->rows.count; i++) {
        const uint32_t end = piece->place != NULL ? piece->place[i] : i;
        clear_images(policy, place, end);
        turn_image(policy, (const char *)piece->rows.observations + piece->rows.row[i] * row_bytes,
                   net->images + (size_t)end * policy->inputs);
        place = end + 1;
    }
    clear_images(policy, place, piece->filled);
    return tape_input(net->tape, SHAPE4(piece->filled, net->channels, net->height, net->width), DTYPE_F32,
                      "observations", net->images);
}

struct policy_cnn_outputs images_record(const struct policy *policy, const struct images_piece *piece,
                                        unsigned wanted)
{
    const struct policy_images *net = policy->network;
    const struct policy_cnn_outputs outputs =
        policy_cnn_forward(net->params, net->tape, record_images(policy, piece), wanted);
    if ((wanted & POLICY_CNN_ACTION) != 0)
        tape_read(net->tape, outputs.action, DTYPE_F32, net->output);
    if ((wanted & POLICY_CNN_VALUE) != 0)
        tape_read(net->tape, outputs.value, DTYPE_F32, net->value);
    return outputs;
}

struct head_rows images_head_rows(const struct policy_images *net, const struct policy_rows *rows)
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
static enum status infer_piece(const struct policy *policy, const struct images_piece *piece, unsigned wanted,
                               struct error *error)
{
    const struct policy_images *net = policy->network;
    tape_begin(net->tape, TAPE_INFER, NULL);
    tape_on_progress(net->tape, NULL, NULL);
    images_record(policy, piece, wanted);
    const enum status status = tape_finish(net->tape, error);
    for (uint32_t i = 0; i < piece->rows.count && piece->place != NULL; i++) {
        memmove(net->output + (size_t)i * net->outputs, net->output + (size_t)piece->place[i] * net->outputs,
                net->outputs * sizeof *net->output);
        net->value[i] = net->value[piece->place[i]];
    }
    return status;
}

/* `draw` NULL: greedily. */
static enum status act_piece(const struct policy *policy, const struct images_piece *piece,
                             const struct dense_draw *draw, struct error *error)
{
    const struct policy_images *net = policy->network;
    const bool keeps = piece->rows.values != NULL;
    const unsigned wanted = POLICY_CNN_ACTION | (keeps ? POLICY_CNN_VALUE : 0);
    const enum status status = infer_piece(policy, piece, wanted, error);
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

static enum status act_in_order(const struct policy *policy, const struct policy_rows *rows,
                                struct dense_draw draw, struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first += net->piece_rows) {
        const struct images_piece piece = cut_piece(rows, first, net->piece_rows, 0);
        status = act_piece(policy, &piece, &draw, error);
        draw.environment += piece.rows.count;
        draw.step += piece.rows.count;
    }
    return status;
}

/* The batch's rows of the environments from `begin` on that have places in one piece. */
static struct images_piece pick_piece(const struct policy_images *net, const struct policy_rows *rows,
                                      const struct dense_draw *draw, uint32_t begin)
{
    struct images_piece piece = {.rows = *rows, .filled = net->act_rows, .place = net->place};
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

static enum status act_in_places(const struct policy *policy, const struct policy_rows *rows,
                                 const struct dense_draw *draw, struct error *error)
{
    const struct policy_images *net = policy->network;
    uint32_t acted = 0;
    for (uint32_t begin = 0; begin < net->places; begin += net->act_rows) {
        const struct images_piece piece = pick_piece(net, rows, draw, begin);
        struct dense_draw own = *draw;
        own.environment = net->environment;
        own.step = net->step;
        const enum status status = piece.rows.count > 0 ? act_piece(policy, &piece, &own, error) : STATUS_OK;
        if (status != STATUS_OK)
            return status;
        acted += piece.rows.count;
    }
    assert(acted == rows->count); // each environment once
    (void)acted;
    return STATUS_OK;
}

static enum status images_kind_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                                   const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_images *net = policy->network;
    const struct dense_draw draw = {
        .seed = policy->seed, .episode = episode, .environment = environment, .step = step};
    return net->has_value ? act_in_places(policy, rows, &draw, error)
                          : act_in_order(policy, rows, draw, error);
}

static enum status images_kind_choose(struct policy *policy, const struct policy_rows *rows,
                                      struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK; first++) {
        struct images_piece piece = cut_piece(rows, first, 1, 1);
        piece.rows.values = NULL;
        status = act_piece(policy, &piece, NULL, error);
        if (status == STATUS_OK && !isfinite(net->log_probability[0]))
            status = error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    }
    return status;
}

static enum status images_kind_estimate(struct policy *policy, const struct policy_rows *rows,
                                        struct error *error)
{
    const struct policy_images *net = policy->network;
    enum status status = STATUS_OK;
    for (uint32_t first = 0; first < rows->count && status == STATUS_OK;) {
        const struct images_piece piece = images_piece_of(net, rows, first);
        status = infer_piece(policy, &piece, POLICY_CNN_VALUE, error);
        for (uint32_t i = 0; i < piece.rows.count && status == STATUS_OK; i++)
            rows->values[piece.rows.row[i]] = net->value[i];
        first += piece.rows.count;
    }
    return status;
}

static double images_kind_deviation(const struct policy *policy)
{
    const struct policy_images *net = policy->network;
    double sum = 0;
    for (uint32_t c = 0; c < policy->components; c++)
        sum += exp((double)net->log_std[c]);
    return sum / policy->components;
}

enum status images_load_head(struct policy_images *net, struct error *error)
{
    if (!net->gaussian)
        return STATUS_OK;
    const enum status status =
        params_read(net->params, params_at(net->params, 0), DTYPE_F32, net->log_std, error);
    if (status == STATUS_OK)
        head_load(net->head, net->log_std);
    return status;
}

/* ---- opening ---- */

static enum status take_memory(struct policy_images *net, const struct policy *policy, struct error *error)
{
    const size_t rows = net->piece_rows;
    net->images = calloc(rows * policy->inputs, sizeof *net->images);
    net->output = calloc(2 * rows * net->outputs, sizeof *net->output);
    net->value = calloc(6 * rows, sizeof *net->value);
    net->log_std = calloc(2 * (size_t)policy->components, sizeof *net->log_std);
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
    net->log_std_pulls = net->log_std + policy->components;
    net->environment = net->row + rows;
    net->step = net->row + 2 * rows;
    net->place = net->row + 3 * rows;
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
    if (status == STATUS_OK && config->has_value)
        status = policy_cnn_begin(net->params, config, error);
    if (status == STATUS_OK)
        status = images_load_head(net, error);
    if (status == STATUS_OK)
        status = optimizer_new(&net->optimizer, &settings, net->params, error);
    if (status == STATUS_OK)
        status = gradients_new(&net->gradients, net->params, error);
    if (status == STATUS_OK && config->has_value)
        status = surrogate_new(&net->surrogate, error);
    return status == STATUS_OK ? tape_new(&net->tape, backend, error) : status;
}

/* The size of pieces of at most `rows_max` that share `rows` evenly. */
static uint32_t share_evenly(uint32_t rows, uint32_t rows_max)
{
    const uint32_t pieces = rows / rows_max + (rows % rows_max != 0);
    return pieces == 0 ? 1 : rows / pieces + (rows % pieces != 0);
}

static void find_sizes(struct policy_images *net, const struct policy *policy,
                       const struct policy_config *config)
{
    const uint32_t minibatch =
        config->minibatch_rows < config->rows_max ? config->minibatch_rows : config->rows_max;
    net->piece_rows = POLICY_CHUNK_ROWS;
    while (net->piece_rows > 1 && (size_t)net->piece_rows * policy->inputs > PIECE_FLOATS)
        net->piece_rows /= 2;
    if (!config->has_value)
        return;
    net->has_value = true;
    net->places = config->environments;
    net->act_rows = share_evenly(config->environments, net->piece_rows);
    net->learn_rows = share_evenly(minibatch, net->piece_rows);
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
    find_sizes(net, policy, config);
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
    surrogate_free(net->surrogate);
    head_free(net->head);
    free(net->images);
    free(net->output);
    free(net->value);
    free(net->log_std);
    free(net->row);
    free(net);
}

const struct policy_kind policy_images_kind = {.open = images_kind_open,
                                               .free = images_kind_free,
                                               .act = images_kind_act,
                                               .choose = images_kind_choose,
                                               .learn = policy_images_learn,
                                               .estimate = images_kind_estimate,
                                               .deviation = images_kind_deviation,
                                               .review = policy_images_review,
                                               .improve = policy_images_improve,
                                               .save = policy_images_save,
                                               .restore = policy_images_restore};
