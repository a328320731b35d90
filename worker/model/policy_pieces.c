/* Cuts batches into pieces, and reads their observations. */
#include "worker/model/policy_pieces.h"

#include "worker/environment/environment_spec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

uint32_t policy_share_evenly(uint32_t rows, uint32_t rows_max)
{
    const uint32_t pieces = rows / rows_max + (rows % rows_max != 0);
    return pieces == 0 ? 1 : rows / pieces + (rows % pieces != 0);
}

/* An observation that is one thing. */
static void describe_whole(struct policy_pieces *pieces, const struct policy_config *config)
{
    const struct environment_space *seen = &config->observation;
    const bool images = config->network == POLICY_CNN;
    const uint32_t elements = (uint32_t)environment_space_elements(seen);
    pieces->sources = 1;
    pieces->source[0] = (struct policy_source){.image = images,
                                               .elements = elements,
                                               .height = images ? seen->shape[0] : 1,
                                               .width = images ? seen->shape[1] : 1,
                                               .channels = images ? seen->shape[2] : elements};
}

/* A source for each image, and behind them one for all floats. */
static void describe_parts(struct policy_pieces *pieces, const struct policy_config *config)
{
    struct policy_source floats = {.height = 1, .width = 1};
    for (uint32_t i = 0; i < config->part_count; i++) {
        const struct environment_part *part = &config->parts[i];
        const uint32_t elements = (uint32_t)environment_space_elements(&part->space);
        if (!environment_part_is_image(part)) {
            floats.elements = floats.channels = floats.features += elements;
            continue;
        }
        pieces->source[pieces->sources++] =
            (struct policy_source){.part = part->name,
                                   .image = true,
                                   .offset = environment_part_offset(config->parts, i),
                                   .elements = elements,
                                   .height = part->space.shape[0],
                                   .width = part->space.shape[1],
                                   .channels = part->space.shape[2],
                                   .features = policy_part_features(part)};
    }
    if (floats.elements > 0)
        pieces->source[pieces->sources++] = floats;
    pieces->part_count = config->part_count;
    pieces->parts = config->parts;
    pieces->features = policy_features(config);
}

void policy_pieces_describe(struct policy_pieces *pieces, const struct policy_config *config,
                            const struct dense_normalizer *normalizer)
{
    *pieces = (struct policy_pieces){.normalizer = normalizer,
                                     .bytes = config->observation.dtype == ENVIRONMENT_U8,
                                     .row_bytes = environment_space_bytes(&config->observation),
                                     .piece_rows = POLICY_CHUNK_ROWS,
                                     .places = config->environments};
    if (policy_joins_parts(config))
        describe_parts(pieces, config);
    else
        describe_whole(pieces, config);
    for (uint32_t i = 0; i < pieces->sources; i++)
        pieces->inputs += pieces->source[i].elements;
    while (pieces->piece_rows > 1 && (size_t)pieces->piece_rows * pieces->inputs > POLICY_PIECE_FLOATS)
        pieces->piece_rows /= 2;
    for (uint32_t byte = 0; byte < 256; byte++)
        pieces->parts_of_255[byte] = (float)byte / 255;
    pieces->rows_max = pieces->piece_rows;
    pieces->act_rows = policy_share_evenly(config->environments, pieces->piece_rows);
}

/* Puts ones where the features of a part, which begin at `column`, stand in all of them. */
static void place_part(const struct policy_source *source, uint32_t column, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        source->place[(size_t)(column + i) * source->features + first + i] = 1;
}

static void place_parts(struct policy_pieces *pieces)
{
    struct policy_source *image = pieces->source, *floats = &pieces->source[pieces->sources - 1];
    uint32_t column = 0, first = 0;
    for (uint32_t i = 0; i < pieces->part_count; i++) {
        const uint32_t features = policy_part_features(&pieces->parts[i]);
        if (environment_part_is_image(&pieces->parts[i])) {
            place_part(image++, column, 0, features);
        } else {
            place_part(floats, column, first, features);
            first += features;
        }
        column += features;
    }
}

enum status policy_pieces_open(struct policy_pieces *pieces, struct error *error)
{
    const size_t rows = pieces->rows_max;
    bool has_memory = (pieces->row = calloc(4 * rows, sizeof *pieces->row)) != NULL;
    for (uint32_t i = 0; i < pieces->sources; i++) {
        struct policy_source *source = &pieces->source[i];
        source->read = calloc(rows * source->elements, sizeof *source->read);
        if (pieces->part_count > 0)
            source->place = calloc((size_t)pieces->features * source->features, sizeof *source->place);
        has_memory = has_memory && source->read != NULL && (pieces->part_count == 0 || source->place != NULL);
    }
    if (!has_memory)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu observations", rows);
    if (pieces->part_count > 0)
        place_parts(pieces);
    pieces->environment = pieces->row + rows;
    pieces->step = pieces->row + 2 * rows;
    pieces->place = pieces->row + 3 * rows;
    return STATUS_OK;
}

void policy_pieces_close(struct policy_pieces *pieces)
{
    for (uint32_t i = 0; i < pieces->sources; i++) {
        free(pieces->source[i].read);
        free(pieces->source[i].place);
    }
    free(pieces->row);
}

/* ---- cutting ---- */

struct policy_piece policy_piece_cut(const struct policy_rows *rows, uint32_t first, uint32_t rows_max,
                                     uint32_t filled)
{
    const uint32_t left = rows->count - first;
    struct policy_piece piece = {.rows = *rows};
    piece.rows.count = left < rows_max ? left : rows_max;
    piece.rows.row += first;
    piece.filled = filled > 0 ? filled : policy_filled_up(piece.rows.count, 1);
    return piece;
}

/* The rows of the batch that environments `begin` … begin + act_rows - 1 have, each at its own place.
 * pieces->environment and ->step are theirs. */
static struct policy_piece pick(const struct policy_pieces *pieces, const struct policy_rows *rows,
                                const uint32_t *environment, const uint32_t *step, uint32_t begin)
{
    struct policy_piece piece = {.rows = *rows, .filled = pieces->act_rows, .place = pieces->place};
    uint32_t count = 0;
    memset(pieces->place, 0xff, pieces->act_rows * sizeof *pieces->place);
    for (uint32_t i = 0; i < rows->count; i++)
        if (environment[i] - begin < pieces->act_rows)
            pieces->place[environment[i] - begin] = i;
    for (uint32_t place = 0; place < pieces->act_rows; place++) {
        const uint32_t i = pieces->place[place];
        if (i == UINT32_MAX)
            continue;
        pieces->row[count] = rows->row[i];
        pieces->environment[count] = environment[i];
        pieces->step[count] = step[i];
        pieces->place[count++] = place;
    }
    piece.rows.row = pieces->row;
    piece.rows.count = count;
    return piece;
}

enum status policy_pieces_act(const struct policy_pieces *pieces, const struct policy_rows *rows,
                              const struct dense_draw *draw, policy_piece_act *act, const void *self,
                              struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t acted = 0;
    for (uint32_t first = 0; draw == NULL && first < rows->count && status == STATUS_OK; first++) {
        const struct policy_piece piece = policy_piece_cut(rows, first, 1, 1);
        status = act(self, &piece, NULL, error);
    }
    for (uint32_t begin = 0; draw != NULL && begin < pieces->places && status == STATUS_OK;
         begin += pieces->act_rows) {
        const struct policy_piece piece = pick(pieces, rows, draw->environment, draw->step, begin);
        struct dense_draw own = *draw;
        own.environment = pieces->environment;
        own.step = pieces->step;
        status = piece.rows.count > 0 ? act(self, &piece, &own, error) : STATUS_OK;
        acted += piece.rows.count;
    }
    assert(draw == NULL || status != STATUS_OK || acted == rows->count); // each environment once
    (void)acted;
    return status;
}

void policy_piece_gather(const struct policy_piece *piece, float *rows, uint32_t columns)
{
    for (uint32_t i = 0; i < piece->rows.count && piece->place != NULL; i++) // which is not before i
        memmove(rows + (size_t)i * columns, rows + (size_t)piece->place[i] * columns, columns * sizeof *rows);
}

void policy_piece_clear(const struct policy_piece *piece, float *pulls, uint32_t columns)
{
    const size_t filling = (size_t)(piece->filled - piece->rows.count) * columns;
    memset(pulls + (size_t)piece->rows.count * columns, 0, filling * sizeof *pulls);
}

/* ---- reading ---- */

/* What the network reads in place of element `at` of an observation. */
static float normalized(const struct dense_normalizer *normalizer, size_t at, float x)
{
    const float limit = normalizer->limit, scaled = (x - normalizer->mean[at]) * normalizer->scale[at];
    return scaled > limit ? limit : scaled < -limit ? -limit : scaled; // a NaN stays
}

/* One observation (height, width, channels) as the network reads it: (channels, height, width). */
static void read_bytes(const struct policy_pieces *pieces, const struct policy_source *source,
                       const uint8_t *from, float *to)
{
    const size_t pixels = (size_t)source->height * source->width;
    for (uint32_t c = 0; c < source->channels; c++)
        for (size_t pixel = 0; pixel < pixels; pixel++)
            *to++ = pieces->parts_of_255[from[pixel * source->channels + c]];
}

static void read_floats(const struct policy_pieces *pieces, const struct policy_source *source,
                        const float *from, float *to)
{
    const size_t pixels = (size_t)source->height * source->width;
    for (uint32_t c = 0; c < source->channels; c++)
        for (size_t pixel = 0; pixel < pixels; pixel++) {
            const size_t at = pixel * source->channels + c;
            *to++ = pieces->normalizer != NULL ? normalized(pieces->normalizer, at, from[at]) : from[at];
        }
}

/* The floats among the parts of a row, normalized. */
static void read_part_floats(const struct policy_pieces *pieces, const void *row, float *to)
{
    const size_t count = environment_part_floats(pieces->parts, pieces->part_count, row, to);
    for (size_t i = 0; pieces->normalizer != NULL && i < count; i++)
        to[i] = normalized(pieces->normalizer, i, to[i]);
}

static void read_row(const struct policy_pieces *pieces, const void *row, uint32_t place)
{
    for (uint32_t i = 0; i < pieces->sources; i++) {
        const struct policy_source *source = &pieces->source[i];
        float *to = source->read + (size_t)place * source->elements;
        if (pieces->part_count > 0 && !source->image)
            read_part_floats(pieces, row, to);
        else if (pieces->bytes)
            read_bytes(pieces, source, (const uint8_t *)row + source->offset, to);
        else
            read_floats(pieces, source, row, to);
    }
}

/* Zeros from place `first` up to `end`. */
static void clear_places(const struct policy_pieces *pieces, uint32_t first, uint32_t end)
{
    for (uint32_t i = 0; i < pieces->sources; i++) {
        const struct policy_source *source = &pieces->source[i];
        memset(source->read + (size_t)first * source->elements, 0,
               (size_t)(end - first) * source->elements * sizeof *source->read);
    }
}

void policy_pieces_read(const struct policy_pieces *pieces, const struct policy_piece *piece)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < piece->rows.count; i++) {
        const uint32_t end = piece->place != NULL ? piece->place[i] : i;
        clear_places(pieces, place, end);
        read_row(pieces, (const char *)piece->rows.observations + piece->rows.row[i] * pieces->row_bytes,
                 end);
        place = end + 1;
    }
    clear_places(pieces, place, piece->filled);
}

struct policy_inputs policy_pieces_input(const struct policy_pieces *pieces, struct tape *tape,
                                         uint32_t filled)
{
    struct policy_inputs inputs = {.count = pieces->sources};
    for (uint32_t i = 0; i < pieces->sources; i++) {
        const struct policy_source *source = &pieces->source[i];
        const struct shape shape = source->image
                                       ? SHAPE4(filled, source->channels, source->height, source->width)
                                       : SHAPE2(filled, source->elements);
        inputs.of[i].part = source->part;
        inputs.of[i].x = tape_input(tape, shape, DTYPE_F32, "observations", source->read);
        if (source->place != NULL)
            inputs.of[i].place = tape_input(tape, SHAPE2(pieces->features, source->features), DTYPE_F32,
                                            "places of features", source->place);
    }
    return inputs;
}
