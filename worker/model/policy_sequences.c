/* Cuts minibatches into sequences, lays these out in grids, and carries states to a tape and back. */
#include "worker/model/policy_sequences.h"

#include "worker/model/policy_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A sequence of a minibatch. */
struct run {
    uint32_t row, length; // the first row, and how many there are
    uint32_t begin;       // where in `order` they are
    uint32_t number;      // by the first row, ascending
};

struct policy_sequences {
    uint32_t units, layers;
    uint32_t parts;        // h, and an LSTM's c
    uint32_t vectors;      // of `units` floats in a row's state: the parts of each layer of each memory
    uint32_t piece_rows;   // struct policy_tape's
    float *states;         // (vectors, count, units) before the grid, and behind it
    uint32_t steps, count; // the grid's, which was last laid out
    bool acts;             // it is one step of rows that act
    int32_t *grid, *place; // (steps, count): a row of the piece; (filled): a place in the grid
    uint32_t filled;       // rows of the piece, rounded up
    const struct policy_rows *minibatch;
    uint32_t rows_max, columns;        // of a minibatch
    uint32_t *column_run, *column_row; // (columns) the number of the column's last run so far; one more than
                                       // its last row, or 0
    uint32_t runs, laid;               // runs of the minibatch, and how many of them have been laid out
    struct run *run;                   // (runs) the longest first
    uint32_t *run_of, *order;          // (rows) by row: a run's number; the rows, run by run
};

uint32_t policy_round_up(uint32_t count)
{
    uint32_t unit = 1;
    while (count > 8 * unit)
        unit *= 2;
    return (count + unit - 1) / unit * unit;
}

/* ---- opening ---- */

static enum status take_memory(struct policy_sequences *s, size_t rows, size_t sequences, struct error *error)
{
    s->states = calloc(s->vectors * sequences * s->units, sizeof *s->states);
    s->grid = calloc(4 * rows + 1, sizeof *s->grid); // less than two elements for a row, each side rounded up
    s->place = calloc(2 * rows + 1, sizeof *s->place);
    s->column_run = calloc(s->columns, sizeof *s->column_run);
    s->column_row = calloc(s->columns, sizeof *s->column_row);
    s->run = calloc(rows + 1, sizeof *s->run);
    s->run_of = calloc(rows + 1, sizeof *s->run_of);
    s->order = calloc(rows + 1, sizeof *s->order);
    if (s->states == NULL || s->grid == NULL || s->place == NULL || s->column_run == NULL ||
        s->column_row == NULL || s->run == NULL || s->run_of == NULL || s->order == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the sequences of %zu rows", rows);
    return STATUS_OK;
}

enum status policy_sequences_new(struct policy_sequences **out, const struct policy_config *config,
                                 uint32_t act_rows, uint32_t piece_rows, struct error *error)
{
    struct policy_sequences *s = *out = calloc(1, sizeof *s);
    const uint32_t rows = policy_minibatch_rows(config);
    const uint32_t round = policy_round_up(rows);
    if (s == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's sequences");
    s->units = config->memory_units;
    s->layers = config->memory_layers;
    s->parts = config->memory == POLICY_LSTM ? 2 : 1;
    s->vectors = (uint32_t)(policy_config_state_floats(config) / s->units);
    s->piece_rows = piece_rows;
    s->rows_max = rows;
    s->columns = config->environments;
    return take_memory(s, rows, act_rows > round ? act_rows : round, error);
}

void policy_sequences_free(struct policy_sequences *s)
{
    if (s == NULL)
        return;
    free(s->states);
    free(s->grid);
    free(s->place);
    free(s->column_run);
    free(s->column_row);
    free(s->run);
    free(s->run_of);
    free(s->order);
    free(s);
}

/* ---- states ---- */

/* The state of a sequence before row `row`. */
static void recall(const struct policy_sequences *s, uint32_t sequence, const struct policy_rows *rows,
                   uint32_t row)
{
    const float *state = rows->states + (size_t)row * s->vectors * s->units;
    for (uint32_t v = 0; v < s->vectors && !policy_starts_at(rows, row); v++)
        memcpy(s->states + ((size_t)v * s->count + sequence) * s->units, state + (size_t)v * s->units,
               s->units * sizeof *state);
}

static void begin_grid(struct policy_sequences *s, uint32_t steps, uint32_t count, bool acts)
{
    s->steps = steps;
    s->count = count;
    s->acts = acts;
    memset(s->states, 0, (size_t)s->vectors * count * s->units * sizeof *s->states);
}

void policy_sequences_step(struct policy_sequences *s, const struct policy_rows *rows, const uint32_t *place,
                           uint32_t places)
{
    begin_grid(s, 1, places, true);
    for (uint32_t i = 0; i < rows->count; i++)
        recall(s, place != NULL ? place[i] : i, rows, rows->row[i]);
}

void policy_sequences_keep(const struct policy_sequences *s, const struct policy_rows *rows,
                           const uint32_t *place)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        float *state = rows->states + (size_t)(rows->row[i] + rows->next) * s->vectors * s->units;
        const size_t sequence = place != NULL ? place[i] : i;
        for (uint32_t v = 0; v < s->vectors; v++)
            memcpy(state + (size_t)v * s->units, s->states + ((size_t)v * s->count + sequence) * s->units,
                   s->units * sizeof *state);
    }
}

/* ---- a minibatch ---- */

/* The run of the minibatch's next row: the column's last one, or a new one. */
static struct run *find_run(struct policy_sequences *s, const struct policy_rows *rows, uint32_t row)
{
    const uint32_t column = row % rows->next, last = s->column_row[column];
    assert(column < s->columns);
    s->column_row[column] = row + 1;
    if (last == 0 || last - 1 + rows->next != row || policy_starts_at(rows, row)) {
        s->run[s->runs] = (struct run){.row = row, .number = s->runs};
        s->column_run[column] = s->runs++;
    }
    return &s->run[s->column_run[column]];
}

static int compare_runs(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    if (x->length != y->length)
        return x->length < y->length ? 1 : -1;
    return x->number < y->number ? -1 : 1;
}

void policy_sequences_cut(struct policy_sequences *s, const struct policy_rows *rows)
{
    uint32_t begin = 0, *end = (uint32_t *)s->grid; // by a run's number; the grid is laid out later
    assert(rows->count <= s->rows_max);
    s->runs = s->laid = 0;
    s->minibatch = rows;
    memset(s->column_row, 0, s->columns * sizeof *s->column_row);
    for (uint32_t i = 0; i < rows->count; i++) {
        struct run *run = find_run(s, rows, rows->row[i]);
        run->length++;
        s->run_of[i] = run->number;
    }
    qsort(s->run, s->runs, sizeof *s->run, compare_runs);
    for (uint32_t r = 0; r < s->runs; r++) {
        s->run[r].begin = end[s->run[r].number] = begin;
        begin += s->run[r].length;
    }
    for (uint32_t i = 0; i < rows->count; i++)
        s->order[end[s->run_of[i]]++] = rows->row[i];
}

/* How many runs, from run `first` on, make a piece. */
static uint32_t pick_runs(const struct policy_sequences *s, uint32_t first)
{
    const struct run *run = s->run + first;
    uint32_t count = 1, rows = run[0].length;
    while (first + count < s->runs && 2 * run[count].length > run[0].length &&
           rows + run[count].length <= s->piece_rows)
        rows += run[count++].length;
    return count;
}

struct policy_rows policy_sequences_piece(struct policy_sequences *s, uint32_t first)
{
    const struct run *run = s->run + s->laid;
    const uint32_t runs = pick_runs(s, s->laid);
    struct policy_rows rows = *s->minibatch;
    assert(s->laid < s->runs && run->begin == first);
    rows.row = s->order + first;
    rows.count = run[runs - 1].begin + run[runs - 1].length - first;
    begin_grid(s, policy_round_up(run->length), policy_round_up(runs), false);
    s->laid += runs;
    s->filled = policy_round_up(rows.count);
    memset(s->place, 0, s->filled * sizeof *s->place);
    for (uint32_t g = 0; g < s->steps * s->count; g++)
        s->grid[g] = (int32_t)(g % rows.count);
    for (uint32_t r = 0; r < runs; r++) {
        recall(s, r, &rows, run[r].row);
        for (uint32_t step = 0; step < run[r].length; step++) {
            const uint32_t row = run[r].begin - first + step, place = step * s->count + r;
            s->grid[place] = (int32_t)row;
            s->place[row] = (int32_t)place;
        }
    }
    return rows;
}

/* ---- on the tape ---- */

/* h, part 0, or c of a layer. */
static float *vector_at(const struct policy_sequences *s, uint32_t memory, uint32_t layer, uint32_t part)
{
    return s->states + ((size_t)(memory * s->layers + layer) * s->parts + part) * s->count * s->units;
}

static uint32_t memories_of(const struct policy_sequences *s)
{
    return s->vectors / (s->parts * s->layers);
}

struct policy_recurrence policy_sequences_input(const struct policy_sequences *s, struct tape *tape)
{
    struct policy_recurrence recurrence = {.steps = s->steps, .sequences = s->count};
    const struct shape shape = SHAPE2(s->count, s->units);
    for (uint32_t memory = 0; memory < memories_of(s); memory++)
        for (uint32_t layer = 0; layer < s->layers; layer++) {
            struct lstm_state *state = &recurrence.state[memory][layer];
            state->h = tape_input(tape, shape, DTYPE_F32, "states", vector_at(s, memory, layer, 0));
            if (s->parts > 1)
                state->c = tape_input(tape, shape, DTYPE_F32, "states", vector_at(s, memory, layer, 1));
        }
    if (s->acts)
        return recurrence;
    recurrence.row = tape_input(tape, SHAPE2(s->steps, s->count), DTYPE_I32, "rows of a grid", s->grid);
    recurrence.place = tape_input(tape, SHAPE1(s->filled), DTYPE_I32, "places in a grid", s->place);
    return recurrence;
}

void policy_sequences_read(struct policy_sequences *s, struct tape *tape,
                           const struct policy_recurrence *recurrence)
{
    for (uint32_t memory = 0; memory < memories_of(s); memory++)
        for (uint32_t layer = 0; layer < s->layers; layer++) {
            const struct lstm_state *state = &recurrence->state[memory][layer];
            tape_read_later(tape, state->h, DTYPE_F32, vector_at(s, memory, layer, 0));
            if (s->parts > 1)
                tape_read_later(tape, state->c, DTYPE_F32, vector_at(s, memory, layer, 1));
        }
}
