/* Cuts batches into pieces, and reads their observations. */
#include "worker/model/policy_pieces.h"

#include "worker/environment/environment_spec.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

uint32_t policy_share_evenly(uint32_t rows, uint32_t rows_max)
{
    const uint32_t pieces = rows / rows_max + (rows % rows_max != 0);
    return pieces == 0 ? 1 : rows / pieces + (rows % pieces != 0);
}

void policy_pieces_describe(struct policy_pieces *pieces, const struct policy_config *config,
                            const struct dense_normalizer *normalizer)
{
    const struct environment_space *seen = &config->observation;
    const bool images = config->network == POLICY_CNN;
    *pieces = (struct policy_pieces){.normalizer = normalizer,
                                     .images = images,
                                     .bytes = seen->dtype == ENVIRONMENT_U8,
                                     .inputs = (uint32_t)environment_space_elements(seen),
                                     .piece_rows = POLICY_CHUNK_ROWS,
                                     .places = config->environments};
    pieces->height = images ? seen->shape[0] : 1;
    pieces->width = images ? seen->shape[1] : 1;
    pieces->channels = images ? seen->shape[2] : pieces->inputs;
    while (pieces->piece_rows > 1 && (size_t)pieces->piece_rows * pieces->inputs > POLICY_PIECE_FLOATS)
        pieces->piece_rows /= 2;
    for (uint32_t byte = 0; byte < 256; byte++)
        pieces->parts[byte] = (float)byte / 255;
    pieces->rows_max = pieces->piece_rows;
    pieces->act_rows = policy_share_evenly(config->environments, pieces->piece_rows);
}

enum status policy_pieces_open(struct policy_pieces *pieces, struct error *error)
{
    const size_t rows = pieces->rows_max;
    pieces->read = calloc(rows * pieces->inputs, sizeof *pieces->read);
    pieces->row = calloc(4 * rows, sizeof *pieces->row);
    if (pieces->read == NULL || pieces->row == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %zu observations", rows);
    pieces->environment = pieces->row + rows;
    pieces->step = pieces->row + 2 * rows;
    pieces->place = pieces->row + 3 * rows;
    return STATUS_OK;
}

void policy_pieces_close(struct policy_pieces *pieces)
{
    free(pieces->read);
    free(pieces->row);
}

/* ---- cutting ---- */

static uint32_t filled_up(uint32_t rows)
{
    uint32_t filled = 1;
    while (filled < rows)
        filled *= 2;
    return filled;
}

struct policy_piece policy_piece_cut(const struct policy_rows *rows, uint32_t first, uint32_t rows_max,
                                     uint32_t filled)
{
    const uint32_t left = rows->count - first;
    struct policy_piece piece = {.rows = *rows};
    piece.rows.count = left < rows_max ? left : rows_max;
    piece.rows.row += first;
    piece.filled = filled > 0 ? filled : filled_up(piece.rows.count);
    return piece;
}

struct policy_piece policy_pieces_pick(const struct policy_pieces *pieces, const struct policy_rows *rows,
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
static void read_bytes(const struct policy_pieces *pieces, const uint8_t *from, float *to)
{
    const size_t pixels = (size_t)pieces->height * pieces->width;
    for (uint32_t c = 0; c < pieces->channels; c++)
        for (size_t pixel = 0; pixel < pixels; pixel++)
            *to++ = pieces->parts[from[pixel * pieces->channels + c]];
}

static void read_floats(const struct policy_pieces *pieces, const float *from, float *to)
{
    const size_t pixels = (size_t)pieces->height * pieces->width;
    for (uint32_t c = 0; c < pieces->channels; c++)
        for (size_t pixel = 0; pixel < pixels; pixel++) {
            const size_t at = pixel * pieces->channels + c;
            *to++ = pieces->normalizer != NULL ? normalized(pieces->normalizer, at, from[at]) : from[at];
        }
}

/* Zeros from place `first` up to `end`. */
static void clear_places(const struct policy_pieces *pieces, uint32_t first, uint32_t end)
{
    memset(pieces->read + (size_t)first * pieces->inputs, 0,
           (size_t)(end - first) * pieces->inputs * sizeof *pieces->read);
}

void policy_pieces_read(const struct policy_pieces *pieces, const struct policy_piece *piece)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < piece->rows.count; i++) {
        const uint32_t end = piece->place != NULL ? piece->place[i] : i;
        const size_t from = (size_t)piece->rows.row[i] * pieces->inputs;
        float *to = pieces->read + (size_t)end * pieces->inputs;
        clear_places(pieces, place, end);
        if (pieces->bytes)
            read_bytes(pieces, (const uint8_t *)piece->rows.observations + from, to);
        else
            read_floats(pieces, (const float *)piece->rows.observations + from, to);
        place = end + 1;
    }
    clear_places(pieces, place, piece->filled);
}

struct variable *policy_pieces_input(const struct policy_pieces *pieces, struct tape *tape, uint32_t filled)
{
    const struct shape shape = pieces->images
                                   ? SHAPE4(filled, pieces->channels, pieces->height, pieces->width)
                                   : SHAPE2(filled, pieces->inputs);
    return tape_input(tape, shape, DTYPE_F32, "observations", pieces->read);
}
