/* Finds the sequences of a minibatch, and runs the recurrent layers over them; likewise over one step. */
#include "worker/model/policy_memory.h"

#include "worker/model/policy_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Rows, as the recurrent layers read them. */
struct sequences {
    struct recurrent_work *work;
    uint32_t *first, *slot; // (rows + 1), (rows)
    uint8_t *starts;        // (rows)
    float *states;          // (slots, floats)
    struct recurrent_rows rows;
};

struct policy_memory {
    struct recurrent *recurrent;
    uint32_t inputs;
    size_t floats;              // of a state
    size_t row_floats, offset;  // of all memories in a row's state; where this one's begins
    struct sequences step;      // a slot for each row
    struct sequences minibatch; // a slot for each sequence
    uint32_t slots, slots_max;  // of the minibatch
    uint32_t range_rows;        // that one call computes, at most, unless a step has more
    uint32_t step_next;         // where the next range begins, or, backward, ends
    struct dense_matrix features;
    uint32_t columns;
    uint32_t *column_slot; // (columns) of the sequence that has the column's last row so far
    uint32_t *column_row;  // (columns) one more than that row; 0: there is none
};

/* ---- opening ---- */

static enum status open_sequences(struct sequences *sequences, const struct policy_memory *memory,
                                  uint32_t rows, uint32_t slots, struct error *error)
{
    sequences->first = calloc(rows + 1, sizeof *sequences->first);
    sequences->slot = calloc(rows, sizeof *sequences->slot);
    sequences->starts = calloc(rows, sizeof *sequences->starts);
    sequences->states = calloc(slots * memory->floats + 1, sizeof *sequences->states);
    if (sequences->first == NULL || sequences->slot == NULL || sequences->starts == NULL ||
        sequences->states == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the sequences of %u rows", rows);
    sequences->rows = (struct recurrent_rows){
        .first = sequences->first, .slot = sequences->slot, .starts = sequences->starts};
    return recurrent_work_new(&sequences->work, memory->recurrent, rows, slots, error);
}

static void close_sequences(struct sequences *sequences)
{
    recurrent_work_free(sequences->work);
    free(sequences->first);
    free(sequences->slot);
    free(sequences->starts);
    free(sequences->states);
}

/* A minibatch is a part of the rollout, or goes round from its end to its begin: then one environment may
 * have a sequence at each end. */
static enum status open_minibatch(struct policy_memory *memory, const struct policy_config *config,
                                  struct error *error)
{
    const uint32_t rows = policy_minibatch_rows(config);
    if (rows == 0) // the policy does not learn
        return STATUS_OK;
    memory->columns = config->environments;
    memory->slots_max = config->environments < rows ? config->environments + 1 : rows;
    memory->column_slot = calloc(memory->columns, sizeof *memory->column_slot);
    memory->column_row = calloc(memory->columns, sizeof *memory->column_row);
    if (memory->column_slot == NULL || memory->column_row == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the sequences of %u environments",
                         memory->columns);
    return open_sequences(&memory->minibatch, memory, rows, memory->slots_max, error);
}

enum status policy_memory_new(struct policy_memory **out, const struct policy_config *config, uint32_t number,
                              struct error *error)
{
    struct policy_memory *memory = *out = calloc(1, sizeof *memory);
    const struct recurrent_shape shape = policy_memory_shape(config, number);
    if (memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's recurrent layers");
    const size_t rows = POLICY_MEMORY_PRODUCTS / recurrent_products(&shape);
    memory->range_rows = rows == 0 ? 1 : (uint32_t)rows;
    memory->inputs = shape.inputs;
    memory->floats = recurrent_state_floats(&shape);
    memory->row_floats = policy_config_state_floats(config);
    memory->offset = number == 0 ? 0 : memory->row_floats - memory->floats;
    enum status status = recurrent_new(&memory->recurrent, &shape, error);
    if (status == STATUS_OK)
        status = open_sequences(&memory->step, memory, POLICY_CHUNK_ROWS, POLICY_CHUNK_ROWS, error);
    return status == STATUS_OK ? open_minibatch(memory, config, error) : status;
}

void policy_memory_free(struct policy_memory *memory)
{
    if (memory == NULL)
        return;
    close_sequences(&memory->step);
    close_sequences(&memory->minibatch);
    recurrent_free(memory->recurrent);
    free(memory->column_slot);
    free(memory->column_row);
    free(memory);
}

void policy_memory_load_parameter(struct policy_memory *memory, const float *parameters, uint32_t number)
{
    recurrent_load_parameter(memory->recurrent, parameters, number);
}

/* ---- rows ---- */

/* This memory's part of the state before row `row`. */
static float *memory_state_at(const struct policy_memory *memory, const struct policy_rows *rows,
                              uint32_t row)
{
    return rows->states + row * memory->row_floats + memory->offset;
}

static void recall(const struct policy_memory *memory, const struct sequences *sequences, uint32_t slot,
                   const struct policy_rows *rows, uint32_t row)
{
    memcpy(sequences->states + slot * memory->floats, memory_state_at(memory, rows, row),
           memory->floats * sizeof(float));
}

static void read_inputs(const struct policy_memory *memory, const struct sequences *sequences,
                        const struct dense_batch *batch)
{
    const struct dense_matrix inputs = recurrent_inputs(sequences->work);
    dense_gather(batch, memory->inputs, 0, memory->inputs, inputs.at, inputs.stride);
}

struct dense_matrix policy_memory_step(struct policy_memory *memory, const struct policy_rows *rows,
                                       const struct dense_batch *batch, bool keeps)
{
    struct sequences *step = &memory->step;
    assert(rows->count <= POLICY_CHUNK_ROWS);
    for (uint32_t i = 0; i < rows->count; i++) {
        step->slot[i] = i;
        step->starts[i] = policy_starts_at(rows, rows->row[i]);
        recall(memory, step, i, rows, rows->row[i]);
    }
    step->first[1] = rows->count;
    step->rows.steps = 1;
    read_inputs(memory, step, batch);
    const struct dense_matrix features = recurrent_forward(memory->recurrent, step->work, &step->rows,
                                                           (struct recurrent_range){0, 1}, step->states);
    for (uint32_t i = 0; i < rows->count && keeps; i++)
        memcpy(memory_state_at(memory, rows, rows->row[i] + rows->next), step->states + i * memory->floats,
               memory->floats * sizeof(float));
    return features;
}

/* The slot of the minibatch's next row. */
static uint32_t find_slot(struct policy_memory *memory, const struct policy_rows *rows, uint32_t row)
{
    const uint32_t column = row % rows->next, last = memory->column_row[column];
    const bool follows = last > 0 && (last - 1 + rows->next == row || policy_starts_at(rows, row));
    assert(column < memory->columns);
    memory->column_row[column] = row + 1;
    if (follows)
        return memory->column_slot[column];
    assert(memory->slots < memory->slots_max);
    recall(memory, &memory->minibatch, memory->slots, rows, row);
    return memory->column_slot[column] = memory->slots++;
}

void policy_memory_begin(struct policy_memory *memory, const struct policy_rows *rows,
                         const struct dense_batch *batch)
{
    struct sequences *all = &memory->minibatch;
    uint32_t steps = 0;
    memory->slots = 0;
    memory->step_next = 0;
    memset(memory->column_row, 0, memory->columns * sizeof *memory->column_row);
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint32_t row = rows->row[i];
        if (i > 0 && row / rows->next != rows->row[i - 1] / rows->next)
            all->first[++steps] = i;
        all->slot[i] = find_slot(memory, rows, row);
        all->starts[i] = policy_starts_at(rows, row);
    }
    all->first[++steps] = rows->count;
    all->rows.steps = steps;
    read_inputs(memory, all, batch);
}

bool policy_memory_forward(struct policy_memory *memory)
{
    const struct sequences *all = &memory->minibatch;
    struct recurrent_range range = {memory->step_next, memory->step_next + 1};
    while (range.end < all->rows.steps &&
           all->first[range.end + 1] - all->first[range.begin] <= memory->range_rows)
        range.end++;
    const struct dense_matrix features =
        recurrent_forward(memory->recurrent, all->work, &all->rows, range, all->states);
    if (range.begin == 0)
        memory->features = features;
    memory->step_next = range.end;
    return range.end < all->rows.steps;
}

struct dense_matrix policy_memory_features(const struct policy_memory *memory)
{
    return memory->features;
}

struct dense_matrix policy_memory_pulls(const struct policy_memory *memory)
{
    return recurrent_pulls(memory->minibatch.work);
}

bool policy_memory_backward(struct policy_memory *memory, float *gradient)
{
    const struct sequences *all = &memory->minibatch;
    struct recurrent_range range = {memory->step_next - 1, memory->step_next};
    while (range.begin > 0 && all->first[range.end] - all->first[range.begin - 1] <= memory->range_rows)
        range.begin--;
    recurrent_backward(memory->recurrent, all->work, &all->rows, range, gradient,
                       range.end < all->rows.steps);
    memory->step_next = range.begin;
    return range.begin > 0;
}
