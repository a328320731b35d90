/* The permutation of an epoch of PPO: every row once, rows ascending within a minibatch, by numbers alone. */
#include "test/workplace.h"
#include "worker/reinforce/ppo.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1000, SIZE = 64 };

static struct job job = {.algorithm.batch_size = SIZE};
static struct rollout shape = {.config = {.steps_max = ROWS / 10}, .columns = 10};

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

int main(void)
{
    Suite *suite = suite_create("minibatches");
    TCase *core = tcase_create("core");
    tcase_add_test(core, each_row_comes_once_and_ascends);
    tcase_add_test(core, rows_that_are_left_out_stay_out);
    tcase_add_test(core, the_numbers_decide);
    tcase_add_test(core, it_is_fair);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
