/* Adam and RMSprop against torch.optim (test/golden/adam.txt, by adam.py beside it). */
#include "kernels/adam.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 64 };

static FILE *golden;

static void golden_open(void)
{
    golden = fopen("test/golden/adam.txt", "r");
    ck_assert_msg(golden != NULL, "test/golden/adam.txt: cannot be opened");
    ck_assert_int_ne(fscanf(golden, "#%*[^\n]\n"), EOF);
}

static void golden_close(void)
{
    fclose(golden);
}

static void golden_gradient(uint64_t *state, float *gradient, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float number = mlp_problem_number(state);
        gradient[i] = i % 7 == 0 ? 0 : number * ldexpf(1, 2 * ((int)(i % 5) - 2));
    }
}

/* Runs one case of the file; *furthest grows to the largest distance a parameter went. Five times what
 * PyTorch's own float32 run deviates from its float64, and never less than 1e-6 of the value. */
static void run_case(uint64_t number, const struct adam_settings *settings, size_t count, int recorded,
                     double *furthest)
{
    float parameters[COUNT_MAX], begin[COUNT_MAX], gradient[COUNT_MAX];
    float first[COUNT_MAX] = {0}, second[COUNT_MAX] = {0};
    uint64_t state = number, made = 0;
    ck_assert_int_eq(adam_check(settings, NULL), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        begin[i] = parameters[i] = mlp_problem_number(&state);
    for (int record = 0; record < recorded; record++) {
        unsigned long step;
        double deviation, expected;
        ck_assert_int_eq(fscanf(golden, "%lu %lf", &step, &deviation), 2);
        while (made < step) {
            golden_gradient(&state, gradient, count);
            adam_update(settings, ++made, parameters, first, second, gradient, count);
        }
        for (size_t i = 0; i < count; i++) {
            ck_assert_int_eq(fscanf(golden, "%lf", &expected), 1);
            double bound = fmax(5 * deviation, 1e-6 * fabs(expected));
            ck_assert_msg(fabs((double)parameters[i] - expected) <= bound,
                          "case %llu, step %lu, element %zu: got %.9g, expected %.9g within %.2g",
                          (unsigned long long)number, step, i, (double)parameters[i], expected, bound);
            *furthest = fmax(*furthest, fabs((double)(parameters[i] - begin[i])));
        }
    }
}

START_TEST(steps_are_pytorchs)
{
    struct adam_settings settings;
    size_t count;
    int recorded, is_rmsprop;
    uint64_t cases = 0;
    while (fscanf(golden, " case %lf %lf %lf %lf %d %zu %d", &settings.lr, &settings.beta1, &settings.beta2,
                  &settings.epsilon, &is_rmsprop, &count, &recorded) == 7) {
        double furthest = 0;
        settings.uncorrected = is_rmsprop != 0;
        ck_assert_uint_le(count, COUNT_MAX);
        run_case(++cases, &settings, count, recorded, &furthest);
        ck_assert_double_gt(furthest, 10 * settings.lr); // far beyond the bounds: standing still would fail
    }
    ck_assert_uint_eq(cases, 5);
    ck_assert(feof(golden));
}
END_TEST

START_TEST(a_step_moves_by_the_learning_rate)
{
    float parameters[3] = {1, 1, 1}, first[3] = {0}, second[3] = {0};
    const float gradient[3] = {123.0f, -0.001f, 0};
    adam_update(&ADAM_DEFAULTS, 1, parameters, first, second, gradient, 3);
    ck_assert_float_eq_tol(parameters[0], 0.999f, 1e-6f);
    ck_assert_float_eq_tol(parameters[1], 1.001f, 1e-6f);
    ck_assert(parameters[2] == 1);
}
END_TEST

/* A slab may be cut anywhere: the parts' bits are the whole's. */
START_TEST(parts_of_a_slab_move_as_the_whole)
{
    enum { COUNT = 37 };
    float whole[3][COUNT] = {{0}}, parts[3][COUNT] = {{0}}, gradient[COUNT];
    uint64_t state = 4;
    for (uint64_t step = 1; step <= 3; step++) {
        golden_gradient(&state, gradient, COUNT);
        adam_update(&ADAM_DEFAULTS, step, whole[0], whole[1], whole[2], gradient, COUNT);
        for (size_t from = 0; from < COUNT; from += 5) {
            size_t count = COUNT - from < 5 ? COUNT - from : 5;
            adam_update(&ADAM_DEFAULTS, step, parts[0] + from, parts[1] + from, parts[2] + from,
                        gradient + from, count);
        }
    }
    ck_assert_mem_eq(whole, parts, sizeof whole);
    ck_assert(whole[0][1] != 0);
}
END_TEST

START_TEST(every_instruction_set_gives_the_same_bits)
{
    enum { COUNT = 53 };
    static const char *const sets[] = {"baseline", "avx2", "avx512"};
    float first[3][COUNT], now[3][COUNT], gradient[COUNT];
    for (int set = 0; set < 3; set++) { /* one that this processor lacks falls back to the baseline */
        uint64_t state = 9;
        memset(now, 0, sizeof now);
        setenv("COALESCED_ISA", sets[set], 1);
        for (uint64_t step = 1; step <= 3; step++) {
            golden_gradient(&state, gradient, COUNT);
            adam_update(&ADAM_DEFAULTS, step, now[0], now[1], now[2], gradient, COUNT);
        }
        if (set == 0)
            memcpy(first, now, sizeof first);
        ck_assert_mem_eq(now, first, sizeof now);
    }
    unsetenv("COALESCED_ISA");
}
END_TEST

static void refused(struct adam_settings settings, const char *expected)
{
    struct error error = {0};
    ck_assert_int_eq(adam_check(&settings, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, expected) != NULL, "\"%s\" does not say \"%s\"", error.text, expected);
}

START_TEST(settings_out_of_range_are_refused_by_name)
{
    refused((struct adam_settings){0, 0.9, 0.999, 1e-8, false}, "lr > 0, got 0");
    refused((struct adam_settings){INFINITY, 0.9, 0.999, 1e-8, false}, "lr > 0, got inf");
    refused((struct adam_settings){0.1, 1, 0.999, 1e-8, false}, "beta1 < 1, got 1");
    refused((struct adam_settings){0.1, 0.9, -0.5, 1e-8, false}, "beta2 < 1, got -0.5");
    refused((struct adam_settings){0.1, 0.9, 0.999, NAN, false}, "epsilon > 0, got nan");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("adam");
    TCase *steps = tcase_create("steps");
    tcase_add_checked_fixture(steps, golden_open, golden_close);
    tcase_add_test(steps, steps_are_pytorchs);
    tcase_add_test(steps, a_step_moves_by_the_learning_rate);
    tcase_add_test(steps, parts_of_a_slab_move_as_the_whole);
    tcase_add_test(steps, every_instruction_set_gives_the_same_bits);
    tcase_add_test(steps, settings_out_of_range_are_refused_by_name);
    suite_add_tcase(suite, steps);
    return suite_run(suite);
}
