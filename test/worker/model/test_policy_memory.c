/* The memories of a policy on the CPU: what acts step by step is what learns from a minibatch, to the last
 * bit, however the minibatch is cut; and where the states go. */
#include "worker/model/policy_memory.h"

#include "test/kernels/policy/load_parameters.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/worker/model/policy_hidden.h"
#include "test/workplace.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 3, UNITS = 5, STEPS = 7, COLUMNS = 4, MANY = 300 };

static const uint32_t choices[] = {3};

static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- a rollout ---- */

/* Row (step, column) is step * columns + column. */
struct rows {
    struct policy_config config;
    uint32_t columns, rows;
    size_t floats;                // of a state
    float *observations, *states; // (rows, INPUTS), (rows + columns, floats)
    uint8_t *starts;              // (rows)
    uint32_t *row;                // (rows) of a batch
    uint32_t count;               // in the batch
};

static struct policy_config config_of(enum policy_cell cell, uint32_t layers, enum policy_critic critic,
                                      uint32_t columns)
{
    return (struct policy_config){
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {INPUTS}},
        .action = {.dtype = ENVIRONMENT_I32, .rank = 1, .shape = {1}, .choices = choices},
        .has_value = true,
        .shared_value = critic == POLICY_CRITIC_SHARED,
        POLICY_HIDDEN(6),
        .memory = cell,
        .memory_units = UNITS,
        .memory_layers = layers,
        .critic = critic,
        .seed = 5,
        .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
        .rows_max = columns * STEPS,
        .minibatch_rows = columns * STEPS,
        .environments = columns,
        .threads = 1,
    };
}

static void *memory_for(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void draw(uint64_t *state, float *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = mlp_problem_number(state);
}

/* Some rows are starts. The first states are no zeros. */
static void open_rows(struct rows *r, struct policy_config config)
{
    uint64_t state = 3;
    *r = (struct rows){.config = config, .columns = config.environments, .rows = config.rows_max};
    r->floats = policy_config_state_floats(&config);
    r->observations = memory_for((size_t)r->rows * INPUTS, sizeof *r->observations);
    r->states = memory_for((r->rows + r->columns) * r->floats, sizeof *r->states);
    r->starts = memory_for(r->rows, sizeof *r->starts);
    r->row = memory_for(r->rows, sizeof *r->row);
    draw(&state, r->observations, (size_t)r->rows * INPUTS);
    draw(&state, r->states, r->columns * r->floats);
    for (uint32_t row = 0; row < r->rows; row++)
        r->starts[row] = row % 9 == 5;
}

static void close_rows(struct rows *r)
{
    free(r->observations);
    free(r->states);
    free(r->starts);
    free(r->row);
}

/* Column 3 is away in the steps 2 and 3, and comes back with a start. */
static bool is_missing(const struct rows *r, uint32_t row)
{
    const uint32_t step = row / r->columns;
    return row % r->columns == 3 && (step == 2 || step == 3);
}

static struct policy_rows batch_of(const struct rows *r)
{
    return (struct policy_rows){.count = r->count,
                                .row = r->row,
                                .observations = r->observations,
                                .states = r->states,
                                .next = r->columns,
                                .starts = r->starts};
}

static struct dense_batch dense_of(const struct rows *r)
{
    return (struct dense_batch){.count = r->count, .row = r->row, .observations = r->observations};
}

/* The rows of a step, the last column first. */
static void gather_step(struct rows *r, uint32_t step)
{
    r->count = 0;
    for (uint32_t column = r->columns; column-- > 0;)
        if (!is_missing(r, step * r->columns + column))
            r->row[r->count++] = step * r->columns + column;
}

static float *draw_parameters(const struct rows *r, uint32_t number, size_t *floats)
{
    const struct recurrent_shape shape = policy_memory_shape(&r->config, number);
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const uint32_t count = recurrent_parameters(&shape, list);
    uint64_t state = 11 + number;
    *floats = list[count - 1].offset + list[count - 1].count;
    float *parameters = memory_for(*floats, sizeof *parameters);
    draw(&state, parameters, *floats);
    return parameters;
}

static struct policy_memory *open_memory(const struct rows *r, uint32_t number)
{
    struct policy_memory *memory;
    size_t floats;
    float *parameters = draw_parameters(r, number, &floats);
    const struct recurrent_shape shape = policy_memory_shape(&r->config, number);
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    must(policy_memory_new(&memory, &r->config, number, &error));
    for (uint32_t p = 0; p < recurrent_parameters(&shape, list); p++)
        policy_memory_load_parameter(memory, parameters, p);
    free(parameters);
    return memory;
}

static void copy_features(const struct rows *r, struct dense_matrix from, float *features)
{
    const uint32_t units = r->config.memory_units;
    for (uint32_t i = 0; i < r->count; i++)
        memcpy(features + (size_t)r->row[i] * units, from.at + i * from.stride, units * sizeof *features);
}

static float *features_for(const struct rows *r)
{
    return memory_for((size_t)r->rows * r->config.memory_units, sizeof(float));
}

/* The batch's rows. Returns in how many pieces they were computed. */
static uint32_t learn(const struct rows *r, struct policy_memory *memory, float *features)
{
    const struct policy_rows rows = batch_of(r);
    const struct dense_batch batch = dense_of(r);
    uint32_t pieces = 1;
    policy_memory_begin(memory, &rows, &batch);
    while (policy_memory_forward(memory))
        pieces++;
    copy_features(r, policy_memory_features(memory), features);
    return pieces;
}

/* The features (rows, units) that acting finds, step by step; writes the states. */
static float *act(struct rows *r, struct policy_memory *memory)
{
    float *features = features_for(r);
    for (uint32_t row = 0; row < r->rows; row++)
        r->starts[row] |= row >= r->columns && is_missing(r, row - r->columns);
    for (uint32_t step = 0; step < STEPS; step++) {
        gather_step(r, step);
        const struct policy_rows rows = batch_of(r);
        const struct dense_batch batch = dense_of(r);
        copy_features(r, policy_memory_step(memory, &rows, &batch, true), features);
    }
    return features;
}

/* ---- the same bits ---- */

static const struct memory_case {
    enum policy_cell cell;
    uint32_t layers;
    enum policy_critic critic;
    uint32_t number; // of the memory
} cases[] = {
    {POLICY_LSTM, 1, POLICY_CRITIC_OWN, 0},      {POLICY_LSTM, 1, POLICY_CRITIC_OWN, 1},
    {POLICY_GRU, 1, POLICY_CRITIC_OWN, 0},       {POLICY_GRU, 1, POLICY_CRITIC_OWN, 1},
    {POLICY_LSTM, 2, POLICY_CRITIC_DETACHED, 0}, {POLICY_GRU, 3, POLICY_CRITIC_OWN, 1},
    {POLICY_LSTM, 1, POLICY_CRITIC_LINEAR, 0},   {POLICY_LSTM, 1, POLICY_CRITIC_LINEAR, 1},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* What a minibatch has of each column: steps from `first` to `last`, and of one column that goes round also
 * those from 0 to `round`. */
static const struct cut {
    uint32_t first[COLUMNS], last[COLUMNS], round; // steps; the column that goes round is 2; 0: it does not
} cuts[] = {
    {{0, 0, 0, 0}, {7, 7, 7, 7}, 0}, // whole
    {{0, 7, 0, 7}, {7, 7, 7, 7}, 0}, // two columns
    {{3, 0, 2, 7}, {7, 7, 3, 7}, 0}, // pieces from the middle
    {{0, 0, 5, 0}, {7, 7, 7, 7}, 2}, // all columns, and one of them twice
    {{6, 7, 4, 1}, {7, 7, 7, 2}, 4}, // the two pieces of column 2 meet
    {{7, 7, 3, 7}, {7, 7, 4, 7}, 0}, // one row
};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

static void gather_cut(struct rows *r, const struct cut *cut)
{
    r->count = 0;
    for (uint32_t row = 0; row < r->rows; row++) {
        const uint32_t step = row / r->columns, column = row % r->columns;
        const bool is_in = (step >= cut->first[column % COLUMNS] && step < cut->last[column % COLUMNS]) ||
                           (column == 2 && step < cut->round);
        if (is_in && !is_missing(r, row))
            r->row[r->count++] = row;
    }
}

static void expect_rows(const struct rows *r, const float *learned, const float *acted)
{
    const size_t units = r->config.memory_units;
    for (uint32_t i = 0; i < r->count; i++)
        ck_assert_mem_eq(learned + r->row[i] * units, acted + r->row[i] * units, units * sizeof *learned);
}

START_TEST(a_minibatch_has_the_bits_of_acting)
{
    const struct memory_case *of = &cases[_i / CUTS];
    struct rows r;
    open_rows(&r, config_of(of->cell, of->layers, of->critic, COLUMNS));
    struct policy_memory *memory = open_memory(&r, of->number);
    float *acted = act(&r, memory), *learned = features_for(&r);
    for (int twice = 0; twice < 2; twice++) { // nothing is left of the minibatch before
        gather_cut(&r, &cuts[_i % CUTS]);
        memset(learned, 0, (size_t)r.rows * UNITS * sizeof *learned);
        learn(&r, memory, learned);
        expect_rows(&r, learned, acted);
    }
    free(acted);
    free(learned);
    policy_memory_free(memory);
    close_rows(&r);
}
END_TEST

static void draw_pulls(struct dense_matrix to, uint32_t rows, uint32_t units)
{
    uint64_t state = 17;
    for (uint32_t i = 0; i < rows; i++)
        draw(&state, to.at + i * to.stride, units);
}

/* dL/d parameters of whole columns, of which the batch has the rows, by one call of the kernel. */
static void find_gradient(const struct rows *r, const float *parameters, float *gradient)
{
    const struct recurrent_shape shape = policy_memory_shape(&r->config, 0);
    const struct dense_batch batch = dense_of(r);
    const struct recurrent_range all = {0, STEPS};
    uint32_t first[STEPS + 1] = {0}, *slot = memory_for(r->count, sizeof *slot);
    uint8_t *starts = memory_for(r->count, 1);
    float *states = memory_for(r->columns * r->floats, sizeof *states);
    struct recurrent *recurrent;
    struct recurrent_work *work;
    memcpy(states, r->states, r->columns * r->floats * sizeof *states);
    for (uint32_t i = 0; i < r->count; i++) {
        slot[i] = r->row[i] % r->columns;
        starts[i] = r->starts[r->row[i]];
        first[r->row[i] / r->columns + 1] = i + 1;
    }
    const struct recurrent_rows rows = {STEPS, first, slot, starts};
    must(recurrent_new(&recurrent, &shape, &error));
    must(recurrent_work_new(&work, recurrent, r->count, r->columns, &error));
    load_recurrent(recurrent, &shape, parameters);
    const struct dense_matrix inputs = recurrent_inputs(work);
    dense_gather(&batch, INPUTS, 0, INPUTS, inputs.at, inputs.stride);
    recurrent_forward(recurrent, work, &rows, all, states);
    draw_pulls(recurrent_pulls(work), r->count, shape.hidden);
    recurrent_backward(recurrent, work, &rows, all, gradient, false);
    recurrent_work_free(work);
    recurrent_free(recurrent);
    free(slot);
    free(starts);
    free(states);
}

/* The gradient by pieces is that of one piece, but for the order of its sums. */
static void expect_gradient(const struct rows *r, struct policy_memory *memory)
{
    size_t floats;
    float *parameters = draw_parameters(r, 0, &floats);
    float *got = memory_for(floats, sizeof *got), *expected = memory_for(floats, sizeof *expected);
    double distance = 0, norm = 0;
    got[0] = 1e9F; // is replaced
    draw_pulls(policy_memory_pulls(memory), r->count, r->config.memory_units);
    ck_assert(policy_memory_backward(memory, got));
    while (policy_memory_backward(memory, got))
        ;
    find_gradient(r, parameters, expected);
    for (size_t i = 0; i < floats; i++) {
        distance += ((double)got[i] - (double)expected[i]) * ((double)got[i] - (double)expected[i]);
        norm += (double)expected[i] * (double)expected[i];
    }
    ck_assert_double_gt(norm, 0);
    ck_assert_double_le(sqrt(distance), 1e-6 * sqrt(norm));
    free(parameters);
    free(got);
    free(expected);
}

/* So many units that the minibatch is computed in pieces. */
START_TEST(pieces_change_no_bit)
{
    struct rows r;
    struct policy_config config = config_of(POLICY_LSTM, 1, POLICY_CRITIC_DETACHED, 60);
    config.memory_units = RECURRENT_HIDDEN_MAX;
    open_rows(&r, config);
    struct policy_memory *memory = open_memory(&r, 0);
    float *acted = act(&r, memory), *learned = features_for(&r);
    gather_cut(&r, &cuts[0]);
    ck_assert_uint_gt(learn(&r, memory, learned), 1);
    expect_rows(&r, learned, acted);
    expect_gradient(&r, memory);
    free(acted);
    free(learned);
    policy_memory_free(memory);
    close_rows(&r);
}
END_TEST

/* A minibatch does not write what the policy remembers. */
START_TEST(learning_changes_no_state)
{
    const struct memory_case *of = &cases[_i];
    struct rows r;
    open_rows(&r, config_of(of->cell, of->layers, of->critic, COLUMNS));
    struct policy_memory *memory = open_memory(&r, of->number);
    free(act(&r, memory));
    const size_t bytes = (r.rows + r.columns) * r.floats * sizeof *r.states;
    float *before = memory_for(1, bytes);
    memcpy(before, r.states, bytes);
    float *learned = features_for(&r);
    gather_cut(&r, &cuts[0]);
    learn(&r, memory, learned);
    ck_assert_mem_eq(r.states, before, bytes);
    free(before);
    free(learned);
    policy_memory_free(memory);
    close_rows(&r);
}
END_TEST

/* ---- states ---- */

/* A memory writes its own part of a row's state, behind the row; and nothing where it does not keep. */
START_TEST(a_state_is_behind_its_row)
{
    static const enum policy_cell cells[] = {POLICY_LSTM, POLICY_GRU};
    struct rows r;
    open_rows(&r, config_of(cells[_i / 2], 2, POLICY_CRITIC_OWN, COLUMNS));
    const uint32_t number = (uint32_t)_i % 2;
    struct policy_memory *memory = open_memory(&r, number);
    const size_t bytes = (r.rows + r.columns) * r.floats * sizeof *r.states, half = r.floats / 2;
    float *before = memory_for(1, bytes);
    memcpy(before, r.states, bytes);
    gather_step(&r, 0);
    const struct policy_rows rows = batch_of(&r);
    const struct dense_batch batch = dense_of(&r);
    policy_memory_step(memory, &rows, &batch, false);
    ck_assert_mem_eq(r.states, before, bytes);
    policy_memory_step(memory, &rows, &batch, true);
    for (size_t i = 0; i < (r.rows + r.columns) * r.floats; i++) {
        const bool is_behind = i / r.floats / r.columns == 1, is_mine = i % r.floats / half == number;
        ck_assert_msg((r.states[i] != before[i]) == (is_behind && is_mine), "%zu", i);
    }
    free(before);
    policy_memory_free(memory);
    close_rows(&r);
}
END_TEST

/* An evaluation has one state for each environment. */
START_TEST(a_state_may_take_the_place_of_the_one_before)
{
    struct rows r;
    open_rows(&r, config_of(cases[_i].cell, cases[_i].layers, cases[_i].critic, COLUMNS));
    struct policy_memory *memory = open_memory(&r, cases[_i].number);
    float *states = memory_for(r.columns * r.floats + 1, sizeof *states);
    float *observations = memory_for(COLUMNS * INPUTS, sizeof *observations);
    memcpy(states, r.states, r.columns * r.floats * sizeof *states);
    memset(r.starts, 0, r.rows);
    float *acted = act(&r, memory);
    for (uint32_t step = 0; step < 2; step++) { // before a row is missing
        static const uint32_t row[] = {0, 1, 2, 3};
        memcpy(observations, r.observations + (size_t)step * COLUMNS * INPUTS,
               COLUMNS * INPUTS * sizeof *observations);
        const struct policy_rows rows = {
            .count = COLUMNS, .row = row, .observations = observations, .states = states};
        const struct dense_batch batch = {.count = COLUMNS, .row = row, .observations = observations};
        const struct dense_matrix found = policy_memory_step(memory, &rows, &batch, true);
        for (uint32_t c = 0; c < COLUMNS; c++)
            ck_assert_mem_eq(found.at + c * found.stride, acted + ((size_t)step * COLUMNS + c) * UNITS,
                             UNITS * sizeof *acted);
    }
    free(acted);
    free(states);
    free(observations);
    policy_memory_free(memory);
    close_rows(&r);
}
END_TEST

/* ---- a policy ---- */

/* Rows of more columns than a chunk has, on which the policy has acted. */
struct world {
    struct rows r;
    struct policy *policy;
    int32_t *actions;
    float *log_probabilities, *values;
    uint32_t *environment, *step; // (columns)
};

static struct policy_rows world_batch(const struct world *w)
{
    struct policy_rows rows = batch_of(&w->r);
    rows.actions = w->actions;
    rows.log_probabilities = w->log_probabilities;
    rows.values = w->values;
    return rows;
}

static void gather_columns(struct world *w, uint32_t step, uint32_t first, uint32_t count)
{
    w->r.count = count;
    for (uint32_t i = 0; i < count; i++) {
        w->r.row[i] = step * MANY + first + i;
        w->environment[i] = first + i;
        w->step[i] = step;
    }
}

/* `count` columns at a time. */
static void world_act(struct world *w, uint32_t count)
{
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t first = 0; first < MANY; first += count) {
            gather_columns(w, step, first, count);
            const struct policy_rows rows = world_batch(w);
            must(policy_act(w->policy, &rows, 1, w->environment, w->step, &error));
        }
}

static void open_world(struct world *w, enum policy_cell cell, enum policy_critic critic)
{
    open_rows(&w->r, config_of(cell, 1, critic, MANY));
    must(policy_new(&w->policy, &w->r.config, NULL, &error));
    ck_assert_uint_eq(policy_state_floats(w->policy), w->r.floats);
    w->actions = memory_for(w->r.rows, sizeof *w->actions);
    w->log_probabilities = memory_for(w->r.rows, sizeof *w->log_probabilities);
    w->values = memory_for(w->r.rows, sizeof *w->values);
    w->environment = memory_for(MANY, sizeof *w->environment);
    w->step = memory_for(MANY, sizeof *w->step);
}

static void close_world(struct world *w)
{
    policy_free(w->policy);
    close_rows(&w->r);
    free(w->actions);
    free(w->log_probabilities);
    free(w->values);
    free(w->environment);
    free(w->step);
}

static const struct {
    enum policy_cell cell;
    enum policy_critic critic;
} policies[] = {
    {POLICY_LSTM, POLICY_CRITIC_OWN},    {POLICY_LSTM, POLICY_CRITIC_DETACHED},
    {POLICY_LSTM, POLICY_CRITIC_LINEAR}, {POLICY_LSTM, POLICY_CRITIC_SHARED},
    {POLICY_GRU, POLICY_CRITIC_OWN},     {POLICY_GRU, POLICY_CRITIC_SHARED},
};
enum { POLICIES = sizeof policies / sizeof policies[0] };

START_TEST(the_batch_has_no_say)
{
    struct world together, apart;
    open_world(&together, policies[_i].cell, policies[_i].critic);
    open_world(&apart, policies[_i].cell, policies[_i].critic);
    world_act(&together, MANY);
    world_act(&apart, 30);
    const size_t rows = together.r.rows;
    ck_assert_mem_eq(together.actions, apart.actions, rows * sizeof *apart.actions);
    ck_assert_mem_eq(together.values, apart.values, rows * sizeof *apart.values);
    ck_assert_mem_eq(together.log_probabilities, apart.log_probabilities,
                     rows * sizeof *apart.log_probabilities);
    ck_assert_mem_eq(together.r.states, apart.r.states, (rows + MANY) * apart.r.floats * sizeof(float));
    close_world(&together);
    close_world(&apart);
}
END_TEST

START_TEST(an_estimate_is_the_value_and_changes_no_state)
{
    struct world w;
    open_world(&w, policies[_i].cell, policies[_i].critic);
    world_act(&w, MANY);
    const size_t bytes = (w.r.rows + MANY) * w.r.floats * sizeof(float);
    float *before = memory_for(1, bytes), *values = memory_for(w.r.rows, sizeof *values);
    memcpy(before, w.r.states, bytes);
    for (uint32_t step = 0; step < STEPS; step++) {
        gather_columns(&w, step, 0, MANY);
        struct policy_rows rows = world_batch(&w);
        rows.values = values;
        rows.next = 0; // a state that it kept would take the place of the one before
        must(policy_estimate(w.policy, &rows, &error));
    }
    ck_assert_mem_eq(values, w.values, w.r.rows * sizeof *values);
    ck_assert_mem_eq(w.r.states, before, bytes);
    free(values);
    free(before);
    close_world(&w);
}
END_TEST

/* The policy's own memory goes on as when it draws. */
START_TEST(choosing_writes_the_states_of_the_policy)
{
    struct world drawn, chosen;
    open_world(&drawn, policies[_i].cell, policies[_i].critic);
    open_world(&chosen, policies[_i].cell, policies[_i].critic);
    const struct recurrent_shape shape = policy_memory_shape(&drawn.r.config, 0);
    const size_t own = recurrent_state_floats(&shape);
    world_act(&drawn, MANY);
    for (uint32_t step = 0; step < STEPS; step++) {
        gather_columns(&chosen, step, 0, MANY);
        const struct policy_rows rows = world_batch(&chosen);
        must(policy_choose(chosen.policy, &rows, &error));
    }
    for (size_t row = 0; row < drawn.r.rows + MANY; row++)
        ck_assert_mem_eq(chosen.r.states + row * drawn.r.floats, drawn.r.states + row * drawn.r.floats,
                         own * sizeof(float));
    close_world(&drawn);
    close_world(&chosen);
}
END_TEST

/* Before the first step every ratio is 1, and every value is what acting found: of minibatches of more rows
 * than a chunk has, which also begin in the middle. */
START_TEST(learning_finds_what_acting_found)
{
    struct world w;
    struct surrogate_losses losses;
    open_world(&w, policies[_i / 2].cell, policies[_i / 2].critic);
    world_act(&w, MANY);
    float *advantages = memory_for(w.r.rows, sizeof *advantages);
    uint64_t state = 9;
    draw(&state, advantages, w.r.rows);
    w.r.count = 0;
    for (uint32_t row = 0; row < w.r.rows; row++) // every third column, from another step on
        if (_i % 2 == 0 || (row % 3 == 0 && row / MANY >= row % MANY % 5))
            w.r.row[w.r.count++] = row;
    const struct policy_rows rows = world_batch(&w);
    const struct policy_targets targets = {advantages, w.values, true};
    const struct policy_step step = {
        .objective = {.clip = 0.2, .value_clip = (double)INFINITY, .value_coefficient = 0.5},
        .max_norm = (double)INFINITY,
        .lr = 0.01,
        .kl_max = (double)INFINITY};
    must(policy_improve(w.policy, &rows, &targets, &step, &losses, &error));
    ck_assert_double_eq(losses.kl, 0);
    ck_assert_double_eq(losses.value, 0);
    ck_assert(losses.stepped && losses.gradient_norm > 0);
    must(policy_improve(w.policy, &rows, &targets, &step, &losses, &error));
    ck_assert_double_gt(losses.kl, 0);
    free(advantages);
    close_world(&w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_memory");
    TCase *core = tcase_create("core");
    tcase_add_loop_test(core, a_minibatch_has_the_bits_of_acting, 0, CASES * CUTS);
    tcase_add_test(core, pieces_change_no_bit);
    tcase_add_loop_test(core, learning_changes_no_state, 0, CASES);
    tcase_add_loop_test(core, a_state_is_behind_its_row, 0, 4);
    tcase_add_loop_test(core, a_state_may_take_the_place_of_the_one_before, 0, CASES);
    tcase_add_loop_test(core, the_batch_has_no_say, 0, POLICIES);
    tcase_add_loop_test(core, an_estimate_is_the_value_and_changes_no_state, 0, POLICIES);
    tcase_add_loop_test(core, choosing_writes_the_states_of_the_policy, 0, POLICIES);
    tcase_add_loop_test(core, learning_finds_what_acting_found, 0, 2 * POLICIES);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
