/* The permutation of an epoch of PPO: every row once, rows ascending within a minibatch, by numbers alone. */
#include "test/workplace.h"
#include "worker/reinforce/ppo.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1000, SIZE = 64, COLUMNS = 10, STEPS = ROWS / COLUMNS };

static struct job job = {.algorithm.batch_size = SIZE};
static struct rollout shape = {.config = {.steps_max = STEPS}, .columns = COLUMNS};

static struct ppo drawn(const uint32_t *order, uint32_t count, uint64_t seed, uint32_t update, uint32_t epoch)
{
    struct ppo ppo;
    job.seed = seed;
    ck_assert_int_eq(ppo_open(&ppo, &job, &shape, NULL), STATUS_OK);
    memcpy(ppo.advantages.order, order, count * sizeof *order);
    ppo_draw(&ppo, count, update, epoch);
    return ppo;
}

static void fill(uint32_t order[ROWS])
{
    for (uint32_t i = 0; i < ROWS; i++)
        order[i] = i * 7 % ROWS;
}

START_TEST(each_row_comes_once_and_ascends)
{
    uint32_t order[ROWS];
    uint8_t seen[ROWS] = {0};
    fill(order);
    struct ppo m = drawn(order, ROWS, 1, 2, 3);
    for (uint32_t i = 0; i < ROWS; i++) {
        ck_assert_uint_lt(m.drawn[i], ROWS);
        ck_assert(!seen[m.drawn[i]]);
        seen[m.drawn[i]] = 1;
        ck_assert(i % SIZE == 0 || m.drawn[i] > m.drawn[i - 1]);
    }
    ppo_close(&m);
}
END_TEST

START_TEST(rows_that_are_left_out_stay_out)
{
    uint32_t order[ROWS];
    fill(order);
    struct ppo m = drawn(order, ROWS / 2, 1, 2, 3);
    for (uint32_t i = 0; i < ROWS / 2; i++) {
        bool is_in = false;
        for (uint32_t k = 0; k < ROWS / 2; k++)
            is_in = is_in || order[k] == m.drawn[i];
        ck_assert(is_in);
    }
    ppo_close(&m);
}
END_TEST

/* The order in which the rows are given has no say; seed, update and epoch have. */
START_TEST(the_numbers_decide)
{
    static const struct {
        uint64_t seed;
        uint32_t update, epoch;
    } others[] = {{2, 2, 3}, {1, 3, 3}, {1, 2, 4}};
    uint32_t order[ROWS], ascending[ROWS];
    fill(order);
    for (uint32_t i = 0; i < ROWS; i++)
        ascending[i] = i;
    struct ppo m = drawn(order, ROWS, 1, 2, 3), same = drawn(ascending, ROWS, 1, 2, 3);
    ck_assert_mem_eq(m.drawn, same.drawn, sizeof order);
    for (int i = 0; i < 3; i++) {
        struct ppo other = drawn(order, ROWS, others[i].seed, others[i].update, others[i].epoch);
        ck_assert(memcmp(m.drawn, other.drawn, sizeof order) != 0);
        ppo_close(&other);
    }
    ppo_close(&same);
    ppo_close(&m);
}
END_TEST

/* A fair permutation puts a row into each of 15 whole minibatches about as often: 300 draws of 1,000 rows, of
 * which one minibatch gets 6.4 %. */
START_TEST(it_is_fair)
{
    uint32_t order[ROWS], firsts = 0;
    fill(order);
    for (uint32_t epoch = 0; epoch < 300; epoch++) {
        struct ppo m = drawn(order, ROWS, 5, 1, epoch);
        for (uint32_t i = 0; i < SIZE; i++)
            firsts += m.drawn[i] < 100;
        ppo_close(&m);
    }
    ck_assert_uint_ge(firsts, 1760); /* expected 1,920; the deviation of one draw is 2.35, of 300 it is 41 */
    ck_assert_uint_le(firsts, 2080);
}
END_TEST

/* ---- a policy with memory ---- */

/* The rows by (column, step), but those of column 4, which have failed. Returns how many there are. */
static uint32_t fill_columns(uint32_t order[ROWS])
{
    uint32_t count = 0;
    for (uint32_t column = 0; column < COLUMNS; column++)
        for (uint32_t step = 0; step < STEPS && column != 4; step++)
            order[count++] = step * COLUMNS + column;
    return count;
}

static void with_memory(uint32_t batch_size)
{
    job.policy.has_recurrent = true;
    job.rollout.steps = STEPS;
    job.algorithm.batch_size = batch_size;
}

static void without_memory(void)
{
    job.policy.has_recurrent = false;
    job.algorithm.batch_size = SIZE;
}

/* Three columns a minibatch: all of a column's rows come together. */
START_TEST(columns_stay_whole)
{
    uint32_t order[ROWS], seen[COLUMNS] = {0}, rows = 0;
    with_memory(3 * STEPS);
    struct ppo m = drawn(order, fill_columns(order), 1, 2, 3);
    ck_assert_uint_eq(m.minibatches, 4);
    for (uint32_t minibatch = 0; minibatch < 4; minibatch++) {
        uint32_t own[COLUMNS] = {0};
        for (uint32_t i = m.begins[minibatch]; i < m.begins[minibatch + 1]; i++, rows++) {
            own[m.drawn[i] % COLUMNS]++;
            ck_assert(i == m.begins[minibatch] || m.drawn[i] > m.drawn[i - 1]);
        }
        for (uint32_t column = 0; column < COLUMNS; column++) {
            ck_assert(own[column] == 0 || own[column] == STEPS);
            seen[column] += own[column];
        }
    }
    ck_assert_uint_eq(rows, ROWS - STEPS);
    for (uint32_t column = 0; column < COLUMNS; column++)
        ck_assert_uint_eq(seen[column], column == 4 ? 0 : STEPS);
    ppo_close(&m);
    without_memory();
}
END_TEST

/* A batch size that divides into no columns cuts them: each minibatch is a stretch of the rows by (column,
 * step), which is a circle. */
START_TEST(pieces_are_stretches_of_a_circle)
{
    enum { PIECE = 130 };
    uint32_t order[ROWS], place[ROWS], begins[2] = {0};
    with_memory(PIECE);
    const uint32_t count = fill_columns(order);
    for (uint32_t i = 0; i < count; i++)
        place[order[i]] = i;
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        struct ppo m = drawn(order, count, 1, 2, epoch);
        ck_assert_uint_eq(m.minibatches, (count + PIECE - 1) / PIECE);
        for (uint32_t minibatch = 0; minibatch < m.minibatches; minibatch++) {
            const uint32_t *row = m.drawn + m.begins[minibatch];
            const uint32_t size = m.begins[minibatch + 1] - m.begins[minibatch];
            uint32_t ends = 0; /* rows whose next one on the circle is not in the minibatch */
            for (uint32_t i = 0; i < size; i++) {
                bool goes_on = false;
                for (uint32_t k = 0; k < size; k++)
                    goes_on = goes_on || place[row[k]] == (place[row[i]] + 1) % count;
                ends += !goes_on;
            }
            ck_assert_uint_eq(ends, 1);
            ck_assert_uint_eq(size, minibatch + 1 < m.minibatches ? PIECE : count % PIECE);
        }
        begins[epoch] = m.drawn[0];
        ppo_close(&m);
    }
    ck_assert_uint_ne(begins[0], begins[1]);
    without_memory();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("minibatches");
    TCase *core = tcase_create("core");
    tcase_add_test(core, each_row_comes_once_and_ascends);
    tcase_add_test(core, rows_that_are_left_out_stay_out);
    tcase_add_test(core, the_numbers_decide);
    tcase_add_test(core, it_is_fair);
    tcase_add_test(core, columns_stay_whole);
    tcase_add_test(core, pieces_are_stretches_of_a_circle);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
