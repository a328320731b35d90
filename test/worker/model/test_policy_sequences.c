/* Sequences of minibatches: what a piece's grid holds, and what stays of each row. */
#include "test/oracle/ref.h"
#include "test/values.h"
#include "test/workplace.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_sequences.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 6, STEPS = 64, ROWS = COLUMNS * STEPS, UNITS = 3, LAYERS = 2, FLOATS = 2 * LAYERS * UNITS };

static struct policy_config config;
static struct policy_rows rows;
static struct policy_sequences *sequences;
static struct backend *backend;
static struct tape *tape;
static uint32_t row[ROWS];
static uint8_t starts[ROWS];
static float states[(ROWS + COLUMNS) * FLOATS];
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* Some rows of the rollout, ascending, by a pattern. */
static void setup(uint32_t pattern, uint32_t piece_rows)
{
    static const uint32_t choices[] = {2};
    config = (struct policy_config){.observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {2}},
                                    .action = {.dtype = ENVIRONMENT_I32, .choices = choices},
                                    .memory = POLICY_LSTM,
                                    .memory_units = UNITS,
                                    .memory_layers = LAYERS,
                                    .critic = POLICY_CRITIC_SHARED,
                                    .has_value = true,
                                    .shared_value = true,
                                    .rows_max = ROWS,
                                    .minibatch_rows = ROWS,
                                    .environments = COLUMNS};
    rows = (struct policy_rows){.row = row, .states = states, .next = COLUMNS, .starts = starts};
    for (uint32_t r = 0; r < ROWS; r++) {
        starts[r] = pattern > 0 && (r * 37 + r / COLUMNS) % (7 * pattern) == 0;
        if (pattern < 2 || (r * 13 + r / 11) % (5 * pattern) != 0)
            row[rows.count++] = r;
    }
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        states[i] = (float)i + 1;
    must(backend_open(&backend, &ref_ops, &(struct backend_settings){.threads = 1}, &error));
    must(tape_new(&tape, backend, &error));
    must(policy_sequences_new(&sequences, &config, COLUMNS, piece_rows, &error));
}

static void teardown(void)
{
    policy_sequences_free(sequences);
    tape_free(tape);
    backend_close(backend);
}

/* ---- pieces ---- */

static void expect_state(const struct variable *variable, uint32_t sequence, const float *expected)
{
    const struct shape *shape = &variable_tensor(variable)->shape;
    float *got = values_memory(shape_elements(shape), sizeof *got);
    ck_assert_int_eq(tape_read(tape, variable, DTYPE_F32, got), STATUS_OK);
    ck_assert_uint_eq(shape->size[1], UNITS);
    for (uint32_t u = 0; u < UNITS; u++)
        ck_assert_float_eq(got[sequence * UNITS + u], expected != NULL ? expected[u] : 0);
    free(got);
}

/* The states before the sequence are those of its first row; those of a start are zeros. */
static void expect_states(const struct policy_recurrence *recurrence, uint32_t sequence, uint32_t first)
{
    const float *state = starts[first] ? NULL : states + (size_t)first * FLOATS;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct lstm_state *of = &recurrence->state[0][layer];
        expect_state(of->h, sequence, state != NULL ? state + (size_t)2 * layer * UNITS : NULL);
        expect_state(of->c, sequence, state != NULL ? state + (size_t)(2 * layer + 1) * UNITS : NULL);
    }
}

/* Row i of the piece is at a place of its own, below the row before it in its environment, or it begins a
 * sequence. Returns how many sequences there are. */
static uint32_t expect_grid(const struct policy_rows *piece, const struct policy_recurrence *recurrence,
                            const int32_t *place, const int32_t *grid)
{
    uint32_t begun = 0;
    for (uint32_t i = 0; i < piece->count; i++) {
        const uint32_t at = (uint32_t)place[i], step = at / recurrence->sequences,
                       sequence = at % recurrence->sequences, r = piece->row[i];
        ck_assert_uint_lt(step, recurrence->steps);
        ck_assert_int_eq(grid[at], (int32_t)i);
        if (step == 0) {
            ck_assert_uint_eq(sequence, begun++);
            expect_states(recurrence, sequence, r);
            continue;
        }
        ck_assert_uint_eq(piece->row[grid[at - recurrence->sequences]], r - COLUMNS);
        ck_assert(!starts[r]);
    }
    return begun;
}

/* Whether a row of the minibatch has the one before it in front of it. */
static bool goes_on(uint32_t r)
{
    bool has = false;
    for (uint32_t i = 0; i < rows.count; i++)
        has |= row[i] + COLUMNS == r;
    return has && !starts[r];
}

/* Adds the piece's rows to `seen`. */
static void expect_piece(const struct policy_rows *piece, uint32_t piece_rows, bool *seen)
{
    const uint32_t filled = policy_round_up(piece->count);
    tape_begin(tape, TAPE_INFER, NULL);
    const struct policy_recurrence recurrence = policy_sequences_input(sequences, tape);
    const uint32_t places = recurrence.steps * recurrence.sequences;
    int32_t *place = values_memory(filled, sizeof *place), *grid = values_memory(places, sizeof *grid);
    ck_assert_int_eq(tape_read(tape, recurrence.place, DTYPE_I32, place), STATUS_OK);
    ck_assert_int_eq(tape_read(tape, recurrence.row, DTYPE_I32, grid), STATUS_OK);
    const uint32_t begun = expect_grid(piece, &recurrence, place, grid);
    ck_assert(piece->count <= piece_rows || begun == 1);
    ck_assert_uint_eq(recurrence.sequences, policy_round_up(begun));
    for (uint32_t g = 0; g < places; g++)
        ck_assert(grid[g] >= 0 && (uint32_t)grid[g] < piece->count);
    ck_assert_uint_le(places, 4 * piece->count);
    for (uint32_t i = 0; i < piece->count; i++) {
        ck_assert(!seen[piece->row[i]]);
        seen[piece->row[i]] = true;
        ck_assert(((uint32_t)place[i] >= recurrence.sequences) == goes_on(piece->row[i]));
    }
    for (uint32_t i = piece->count; i < filled; i++)
        ck_assert_int_eq(place[i], 0);
    free(place);
    free(grid);
    must(tape_finish(tape, &error));
}

/* Without starts, with short and long episodes and gaps; and small pieces. */
START_TEST(each_row_is_behind_the_one_before_it)
{
    const uint32_t piece_rows = _i % 2 == 0 ? ROWS : 50;
    bool seen[ROWS] = {false};
    uint32_t pieces = 0;
    setup((uint32_t)_i / 2, piece_rows);
    for (int again = 0; again < 2; again++) {
        memset(seen, 0, sizeof seen);
        policy_sequences_cut(sequences, &rows);
        for (uint32_t first = 0; first < rows.count; pieces++) {
            const struct policy_rows piece = policy_sequences_piece(sequences, first);
            expect_piece(&piece, piece_rows, seen);
            first += piece.count;
        }
        for (uint32_t i = 0; i < rows.count; i++)
            ck_assert(seen[row[i]]);
    }
    ck_assert(_i > 0 || pieces == 2); // sequences of one length make one piece
    teardown();
}
END_TEST

/* ---- a step ---- */

/* States go to the rows' places and come back behind the rows. */
START_TEST(a_step_keeps_each_rows_state)
{
    static const uint32_t places[] = {0, 2, 5};
    setup(0, ROWS);
    struct policy_rows some = rows;
    some.row = row + COLUMNS;
    some.count = 3;
    starts[some.row[1]] = 1;
    policy_sequences_step(sequences, &some, places, COLUMNS);
    tape_begin(tape, TAPE_INFER, NULL);
    const struct policy_recurrence recurrence = policy_sequences_input(sequences, tape);
    ck_assert(recurrence.steps == 1 && recurrence.sequences == COLUMNS && recurrence.row == NULL);
    for (uint32_t i = 0; i < 3; i++)
        expect_states(&recurrence, places[i], some.row[i]);
    expect_state(recurrence.state[0][1].c, 1, NULL);
    policy_sequences_read(sequences, tape, &recurrence);
    must(tape_finish(tape, &error));
    memset(states + (size_t)2 * COLUMNS * FLOATS, 0, COLUMNS * FLOATS * sizeof *states);
    policy_sequences_keep(sequences, &some, places);
    for (uint32_t i = 0; i < COLUMNS; i++)
        for (uint32_t f = 0; f < FLOATS; f++) {
            const bool kept = i < 3 && i != 1;
            ck_assert_float_eq(states[(2 * COLUMNS + i) * FLOATS + f],
                               kept ? states[(COLUMNS + i) * FLOATS + f] : 0);
        }
    starts[some.row[1]] = 0;
    teardown();
}
END_TEST

START_TEST(sizes_are_rounded_up_by_a_quarter_at_most)
{
    uint32_t sizes = 0;
    for (uint32_t n = 1, last = 0; n <= 4096; n++) {
        const uint32_t up = policy_round_up(n);
        ck_assert(up >= n && 4 * up <= 5 * n + 3 && policy_round_up(up) == up && up >= last);
        sizes += up != last;
        last = up;
    }
    ck_assert_uint_le(sizes, 8 + 4 * 9);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_sequences");
    TCase *tests = tcase_create("policy_sequences");
    tcase_add_loop_test(tests, each_row_is_behind_the_one_before_it, 0, 10);
    tcase_add_test(tests, a_step_keeps_each_rows_state);
    tcase_add_test(tests, sizes_are_rounded_up_by_a_quarter_at_most);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
