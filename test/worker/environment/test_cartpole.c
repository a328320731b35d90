/* CartPole's physics against Gymnasium's record (test/golden/cartpole.bin, by cartpole.py beside it). */
#include "test/workplace.h"
#include "worker/environment/cartpole.h"

#include <check.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char golden_path[] = "test/golden/cartpole.bin";

enum { HEADER_BYTES = 128, NO_ACTION = 255, TERMINATED = 1, TRUNCATED = 2, TRANSITIONS_MIN = 10000 };

struct record {
    struct cartpole_state state;
    float observation[CARTPOLE_STATE_SIZE];
    uint16_t episode;
    uint16_t step;
    uint8_t action; /* taken next; NO_ACTION in an episode's last record */
    uint8_t flags;  /* how the step that led here ended */
    uint8_t zero[2];
};
_Static_assert(sizeof(struct record) == 56, "as cartpole.py packs it");

static struct record *records;
static size_t record_count;

static void golden_read(void)
{
    FILE *file = fopen(golden_path, "rb");
    ck_assert_msg(file != NULL, "%s: cannot be opened", golden_path);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    ck_assert_int_gt(bytes, HEADER_BYTES);
    ck_assert_int_eq((bytes - HEADER_BYTES) % (long)sizeof *records, 0);
    record_count = (size_t)(bytes - HEADER_BYTES) / sizeof *records;
    records = malloc(record_count * sizeof *records);
    ck_assert_ptr_nonnull(records);
    ck_assert_int_eq(fseek(file, HEADER_BYTES, SEEK_SET), 0);
    ck_assert_uint_eq(fread(records, sizeof *records, record_count, file), record_count);
    fclose(file);
}

static void golden_release(void)
{
    free(records);
}

/* Record `i` and record i + 1 are the two ends of one transition. */
static bool is_transition(size_t i)
{
    return records[i].action != NO_ACTION;
}

/* The distance of two floats in units in the last place: the count of floats from one to the other. */
static int64_t ulps_between(float a, float b)
{
    int32_t bits[2];
    memcpy(&bits[0], &a, sizeof a);
    memcpy(&bits[1], &b, sizeof b);
    int64_t place[2];
    for (int i = 0; i < 2; i++)
        place[i] = bits[i] < 0 ? (int64_t)INT32_MIN - bits[i] : bits[i];
    return llabs(place[0] - place[1]);
}

/* The larger of `difference` and |a - b|; NaN counts as larger than everything. */
static double worse(double difference, double a, double b)
{
    return fabs(a - b) <= difference ? difference : fabs(a - b);
}

static double largest_difference(struct cartpole_state a, struct cartpole_state b)
{
    double difference = worse(0, a.x, b.x);
    difference = worse(difference, a.x_dot, b.x_dot);
    difference = worse(difference, a.theta, b.theta);
    return worse(difference, a.theta_dot, b.theta_dot);
}

START_TEST(golden_covers_every_ending)
{
    size_t transitions = 0;
    unsigned right = 0, left = 0, clockwise = 0, counter_clockwise = 0, truncated = 0;
    for (size_t i = 0; i < record_count; i++) {
        if (is_transition(i)) {
            transitions++;
            ck_assert_uint_eq(records[i].flags, 0);
            ck_assert_uint_eq(records[i + 1].episode, records[i].episode);
            ck_assert_uint_eq(records[i + 1].step, records[i].step + 1);
            continue;
        }
        ck_assert_uint_ne(records[i].flags, 0);
        ck_assert_uint_eq((records[i].flags & TRUNCATED) != 0, records[i].step == CARTPOLE_STEPS_MAX);
        right += records[i].state.x > CARTPOLE_X_MAX_M;
        left += records[i].state.x < -CARTPOLE_X_MAX_M;
        clockwise += records[i].state.theta > CARTPOLE_THETA_MAX_RAD;
        counter_clockwise += records[i].state.theta < -CARTPOLE_THETA_MAX_RAD;
        truncated += (records[i].flags & TRUNCATED) != 0;
    }
    ck_assert_uint_ge(transitions, TRANSITIONS_MIN);
    ck_assert_uint_ge(right, 3);
    ck_assert_uint_ge(left, 3);
    ck_assert_uint_ge(clockwise, 10);
    ck_assert_uint_ge(counter_clockwise, 10);
    ck_assert_uint_ge(truncated, 10);
}
END_TEST

static void observe(struct cartpole_state state, float observation[CARTPOLE_STATE_SIZE])
{
    const double values[] = {state.x, state.x_dot, state.theta, state.theta_dot};
    for (int value = 0; value < CARTPOLE_STATE_SIZE; value++)
        observation[value] = (float)values[value];
}

/* Flags and float32 observations are equal; of the float64 states only the last bits differ. */
START_TEST(one_step_is_gymnasiums)
{
    for (size_t i = 0; i < record_count; i++) {
        if (!is_transition(i))
            continue;
        struct cartpole_state next = cartpole_transition(records[i].state, records[i].action);
        double difference = largest_difference(next, records[i + 1].state);
        float observation[CARTPOLE_STATE_SIZE];
        observe(next, observation);
        for (uint32_t k = 0; k < CARTPOLE_STATE_SIZE; k++)
            ck_assert_msg(observation[k] == records[i + 1].observation[k],
                          "episode %u step %u: observation %u differs", records[i].episode, records[i].step,
                          k);
        ck_assert_msg(difference <= 1e-12, "episode %u step %u: off by %g", records[i].episode,
                      records[i].step, difference);
        ck_assert_msg(cartpole_terminated(next) == ((records[i + 1].flags & TERMINATED) != 0),
                      "episode %u step %u: terminated differs", records[i].episode, records[i].step);
    }
}
END_TEST

START_TEST(trajectory_agrees_for_100_steps)
{
    struct cartpole_state state = {0};
    unsigned long compared = 0;
    for (size_t i = 0; i < record_count; i++) {
        if (records[i].step == 0)
            state = records[i].state;
        if (records[i].step <= 100) {
            const double ours[] = {state.x, state.x_dot, state.theta, state.theta_dot};
            for (int value = 0; value < CARTPOLE_STATE_SIZE; value++)
                ck_assert_msg(ulps_between((float)ours[value], records[i].observation[value]) <= 1,
                              "episode %u step %u value %d: %.9g, recorded %.9g", records[i].episode,
                              records[i].step, value, ours[value], (double)records[i].observation[value]);
            compared += records[i].step == 100;
        }
        if (is_transition(i))
            state = cartpole_transition(state, records[i].action);
    }
    ck_assert_uint_ge(compared, 30); /* episodes that lived so long */
}
END_TEST

START_TEST(observation_is_the_state_as_float32)
{
    for (size_t i = 0; i < record_count; i++) {
        float observation[CARTPOLE_STATE_SIZE];
        observe(records[i].state, observation);
        ck_assert_mem_eq(observation, records[i].observation, sizeof observation);
    }
}
END_TEST

START_TEST(sine_and_cosine_are_within_an_ulp)
{
    for (int i = -25000; i <= 25000; i++) {
        double theta = i * 1e-5;
        ck_assert_double_le(fabs(cartpole_sin(theta) - sin(theta)), DBL_EPSILON * fabs(sin(theta)));
        ck_assert_double_le(fabs(cartpole_cos(theta) - cos(theta)), DBL_EPSILON);
    }
}
END_TEST

START_TEST(thresholds_belong_to_the_episode)
{
    const double x = 2.4, theta = 12 * 2 * M_PI / 360;
    for (int sign = -1; sign <= 1; sign += 2) {
        ck_assert(!cartpole_terminated((struct cartpole_state){.x = sign * x}));
        ck_assert(cartpole_terminated((struct cartpole_state){.x = sign * nextafter(x, 9)}));
        ck_assert(!cartpole_terminated((struct cartpole_state){.theta = sign * theta}));
        ck_assert(cartpole_terminated((struct cartpole_state){.theta = sign * nextafter(theta, 9)}));
    }
    ck_assert(!cartpole_terminated((struct cartpole_state){.x_dot = 1e9, .theta_dot = -1e9}));
    ck_assert(cartpole_terminated((struct cartpole_state){.x = NAN}));
    ck_assert(cartpole_terminated((struct cartpole_state){.theta = NAN}));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cartpole");
    TCase *golden = tcase_create("golden");
    tcase_add_checked_fixture(golden, golden_read, golden_release);
    tcase_add_test(golden, golden_covers_every_ending);
    tcase_add_test(golden, one_step_is_gymnasiums);
    tcase_add_test(golden, trajectory_agrees_for_100_steps);
    tcase_add_test(golden, observation_is_the_state_as_float32);
    suite_add_tcase(suite, golden);
    TCase *pure = tcase_create("pure");
    tcase_add_test(pure, sine_and_cosine_are_within_an_ulp);
    tcase_add_test(pure, thresholds_belong_to_the_episode);
    suite_add_tcase(suite, pure);
    return suite_run(suite);
}
