/* A parameter server's update, on each backend that has it: against ref within a bound; to the bit against
 * the same operations written as a plain loop here, for every number of threads, wherever a range is cut
 * and on each instruction set; elements that are not finite, in any contribution and at any place. */
#include "test/kernels/conformance.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 40007 }; /* three pieces of a thread's, and a rest */
/* A sanitizer takes long, and fewer show it the same code. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { CONTRIBUTIONS_MAX = 40 };
#else
enum { CONTRIBUTIONS_MAX = 256 };
#endif

static const uint32_t lengths[] = {1, 7, 16, 31, 1023, 1024, 1041, LARGE};
static const uint32_t contributions[] = {1, 2, 3, 5, 8, 9, 17, CONTRIBUTIONS_MAX};
enum { LENGTHS = sizeof lengths / sizeof *lengths, COUNTS = sizeof contributions / sizeof *contributions };

/* Without momentum, with it at the first step, and later. */
enum { KINDS = 3 };
static const double momentum_of[KINDS] = {0, 0.9, 0.9};
static const bool first_of[KINDS] = {false, true, false};

/* Exactly that many bytes, at a multiple of 64, so that a look beyond them is seen. */
static void *memory(size_t bytes)
{
    void *block = NULL;
    ck_assert_int_eq(posix_memalign(&block, 64, bytes), 0);
    memset(block, 0x5a, bytes);
    return block;
}

/* ---- one update's numbers, in a backend's dtype ---- */

struct problem {
    enum dtype dtype;
    struct sgd_round round;
    void *gradient[CONTRIBUTIONS_MAX], *parameters, *velocity, *parameters_out, *velocity_out;
};

static void *drawn(enum dtype dtype, uint32_t count, uint64_t seed)
{
    struct values values = values_drawn(SHAPE1(count), seed);
    void *numbers = memory(count * dtype_bytes(dtype));
    for (uint32_t i = 0; i < count; i++)
        if (dtype == DTYPE_F64)
            ((double *)numbers)[i] = values.real[i];
        else
            ((float *)numbers)[i] = (float)values.real[i];
    values_free(&values);
    return numbers;
}

static struct problem *problem_new(enum dtype dtype, uint32_t count, uint32_t n, int kind)
{
    struct problem *problem = calloc(1, sizeof *problem);
    ck_assert_ptr_nonnull(problem);
    problem->dtype = dtype;
    for (uint32_t k = 0; k < n; k++)
        problem->gradient[k] = drawn(dtype, count, 100 + k);
    problem->parameters = drawn(dtype, count, 1);
    problem->velocity = drawn(dtype, count, 2);
    problem->parameters_out = memory(count * dtype_bytes(dtype));
    problem->velocity_out = memory(count * dtype_bytes(dtype));
    const bool moves = momentum_of[kind] != 0;
    problem->round = (struct sgd_round){
        .sgd = {.lr = 0.3, .momentum = momentum_of[kind]},
        .first = first_of[kind],
        .count = count,
        .contributions = n,
        .gradients = (const void *const *)problem->gradient,
        .parameters = problem->parameters,
        .velocity = moves && !first_of[kind] ? problem->velocity : NULL,
        .parameters_out = problem->parameters_out,
        .velocity_out = moves ? problem->velocity_out : NULL,
        .threads = 1,
    };
    return problem;
}

static void problem_free(struct problem *problem)
{
    for (uint32_t k = 0; k < problem->round.contributions; k++)
        free(problem->gradient[k]);
    free(problem->parameters);
    free(problem->velocity);
    free(problem->parameters_out);
    free(problem->velocity_out);
    free(problem);
}

static uint32_t run(struct conformance *pair, struct sgd_round *round)
{
    struct error error = {0};
    ck_assert_msg(backend_sgd_round(pair->backend, round, &error) == STATUS_OK, "%s", error.text);
    return round->not_finite;
}

/* ---- against ref ---- */

static void compare_doubles(struct conformance *pair, const char *what, const double *expected,
                            const void *got, size_t count, double bound)
{
    const bool wide = pair->backend->ops->dtype == DTYPE_F64;
    double largest = 0, apart = 0;
    for (size_t i = 0; i < count; i++) {
        const double mine = wide ? ((const double *)got)[i] : (double)((const float *)got)[i];
        largest = fmax(largest, fabs(expected[i]));
        apart = isfinite(mine) ? fmax(apart, fabs(mine - expected[i])) : INFINITY;
    }
    if (!(apart <= bound * largest))
        conformance_complain(pair, "%s of %zu: deviates by %.2g of %.2g, bound %.2g", what, count, apart,
                             largest, bound);
}

static void check_against_ref(struct conformance *pair, uint32_t count, uint32_t n, int kind)
{
    struct problem *expected = problem_new(DTYPE_F64, count, n, kind),
                   *got = problem_new(pair->backend->ops->dtype, count, n, kind);
    struct error error = {0};
    const double bound = (8 + n) * 0x1p-24; // a rounding for each term of the sum, and few beside it
    ck_assert_int_eq(backend_sgd_round(pair->ref, &expected->round, &error), STATUS_OK);
    ck_assert_uint_eq(run(pair, &got->round), UINT32_MAX);
    compare_doubles(pair, "parameters", expected->parameters_out, got->parameters_out, count, bound);
    if (expected->round.velocity_out != NULL)
        compare_doubles(pair, "velocity", expected->velocity_out, got->velocity_out, count, bound);
    problem_free(expected);
    problem_free(got);
}

/* False, and said, where the backend has no such pass or is not there. */
static bool open_pair(struct conformance *pair, int number)
{
    if (!conformance_open(pair, (unsigned)number, true))
        return false;
    if (pair->backend->ops->sgd_round != NULL)
        return true;
    printf("%s has no pass for a server's round\n", pair->name);
    conformance_close(pair);
    return false;
}

START_TEST(it_agrees_with_ref)
{
    struct conformance pair;
    if (!open_pair(&pair, _i))
        return;
    for (int l = 0; l < LENGTHS; l++)
        for (int c = 0; c < COUNTS; c++)
            for (int kind = 0; kind < KINDS; kind++)
                if (lengths[l] < LARGE || contributions[c] <= 9)
                    check_against_ref(&pair, lengths[l], contributions[c], kind);
    ck_assert_uint_eq(pair.complaints, 0);
    conformance_close(&pair);
}
END_TEST

/* ---- to the bit, in float32 ---- */

/* kernels/kernels.h's operations, one after the other. */
static void plain(const struct problem *problem, float *parameters, float *velocity)
{
    const struct sgd_round *round = &problem->round;
    const float *const *gradient = (const float *const *)round->gradients;
    const float lr = (float)round->sgd.lr, momentum = (float)round->sgd.momentum;
    for (size_t i = 0; i < round->count; i++) {
        float g = gradient[0][i];
        for (uint32_t k = 1; k < round->contributions; k++)
            g = g + gradient[k][i];
        g = g / (float)round->contributions; // by 1 it flushes a denormal number, as the pass does
        velocity[i] =
            momentum == 0 || round->first ? g : momentum * ((const float *)problem->velocity)[i] + g;
        parameters[i] = ((const float *)problem->parameters)[i] - lr * velocity[i];
    }
}

/* Numbers that a shortcut would change: zeros with both signs, denormals, the largest. */
static void make_strange(struct problem *problem)
{
    static const float strange[] = {0.0f, -0.0f, 1e-45f, -3e-39f, 1.1754944e-38f, 1e38f, -1e38f, 1e-30f};
    enum { STRANGE = sizeof strange / sizeof *strange };
    for (uint32_t i = 0; i < problem->round.count; i++) {
        for (uint32_t k = 0; k < problem->round.contributions && i % 3 != 0; k++)
            ((float *)problem->gradient[k])[i] = strange[(i + (i % 2) * k) % STRANGE];
        if (i % 5 != 0) {
            ((float *)problem->parameters)[i] = strange[i / 3 % STRANGE] * 0.5f;
            ((float *)problem->velocity)[i] = strange[i / 7 % STRANGE] * 0.5f;
        }
    }
}

/* In ranges of the image as a server has them, each with its own call. */
static void run_cut(struct conformance *pair, const struct problem *problem, uint32_t threads, size_t cut)
{
    const void *gradient[CONTRIBUTIONS_MAX];
    for (size_t first = 0; first < problem->round.count; first += cut) {
        struct sgd_round part = problem->round;
        const size_t bytes = first * sizeof(float), left = part.count - first;
        part.count = left < cut ? left : cut;
        part.threads = threads;
        for (uint32_t k = 0; k < part.contributions; k++)
            gradient[k] = (const char *)problem->gradient[k] + bytes;
        part.gradients = gradient;
        part.parameters = (const char *)problem->parameters + bytes;
        part.velocity = part.velocity == NULL ? NULL : (const char *)problem->velocity + bytes;
        part.parameters_out = (char *)problem->parameters_out + bytes;
        part.velocity_out = part.velocity_out == NULL ? NULL : (char *)problem->velocity_out + bytes;
        ck_assert_uint_ge(run(pair, &part), part.contributions); // the largest numbers may make an infinity
    }
}

static void check_bits(struct conformance *pair, uint32_t count, uint32_t n, int kind)
{
    static const struct {
        uint32_t threads;
        size_t cut;
    } ways[] = {{1, SIZE_MAX}, {2, SIZE_MAX}, {0, SIZE_MAX}, {3, 16384 + 16}, {1, 1040}};
    struct problem *problem = problem_new(DTYPE_F32, count, n, kind);
    const size_t bytes = count * sizeof(float);
    float *parameters = memory(bytes), *velocity = memory(bytes);
    make_strange(problem);
    plain(problem, parameters, velocity);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        memset(problem->parameters_out, 0xff, bytes);
        memset(problem->velocity_out, 0xff, bytes);
        run_cut(pair, problem, ways[w].threads, ways[w].cut < count ? ways[w].cut : count);
        const bool same = memcmp(problem->parameters_out, parameters, bytes) == 0 &&
                          (kind == 0 || memcmp(problem->velocity_out, velocity, bytes) == 0);
        if (!same)
            conformance_complain(pair, "%u contributions of %u, kind %d, way %zu: other bits", n, count, kind,
                                 w);
    }
    free(parameters);
    free(velocity);
    problem_free(problem);
}

START_TEST(the_bits_are_a_plain_loops)
{
    struct conformance pair;
    if (!open_pair(&pair, _i))
        return;
    if (pair.backend->ops->dtype == DTYPE_F32) { // ref is not what it is held to
        for (int l = 0; l < LENGTHS; l++)
            for (int c = 0; c < COUNTS; c++)
                for (int kind = 0; kind < KINDS; kind++)
                    if (lengths[l] < LARGE || contributions[c] <= 9)
                        check_bits(&pair, lengths[l], contributions[c], kind);
    }
    ck_assert_uint_eq(pair.complaints, 0);
    conformance_close(&pair);
}
END_TEST

/* One contribution over three steps is the optimizer. */
static void check_is_sgd(struct conformance *pair, uint32_t count, double momentum)
{
    struct problem *problem = problem_new(DTYPE_F32, count, 1, momentum == 0 ? 0 : 1);
    const size_t bytes = count * sizeof(float);
    struct error error = {0};
    struct tensor p = {.shape = SHAPE1(count), .dtype = DTYPE_F32, .bytes = bytes}, g = p, v = p;
    p.data = drawn(DTYPE_F32, count, 1);
    v.data = memory(bytes);
    g.data = problem->gradient[0];
    problem->round.sgd.momentum = momentum;
    for (uint64_t step = 1; step <= 3; step++) {
        problem->round.first = step == 1;
        problem->round.velocity = step == 1 || momentum == 0 ? NULL : problem->velocity;
        run(pair, &problem->round);
        ck_assert_int_eq(
            backend_sgd(pair->backend, &problem->round.sgd, step, &p, &g, momentum == 0 ? NULL : &v, &error),
            STATUS_OK);
        ck_assert_mem_eq(problem->parameters_out, p.data, bytes);
        if (momentum != 0)
            ck_assert_mem_eq(problem->velocity_out, v.data, bytes);
        memcpy(problem->parameters, problem->parameters_out, bytes);
        memcpy(problem->velocity, problem->velocity_out, bytes);
    }
    free(p.data);
    free(v.data);
    problem_free(problem);
}

START_TEST(one_contribution_is_the_optimizers_step)
{
    struct conformance pair;
    if (!open_pair(&pair, _i))
        return;
    if (pair.backend->ops->dtype == DTYPE_F32) {
        check_is_sgd(&pair, 1003, 0.9);
        check_is_sgd(&pair, 1003, 0);
    }
    conformance_close(&pair);
}
END_TEST

/* ---- what is not finite ---- */

static void put(const struct problem *problem, uint32_t contribution, size_t at, double value)
{
    if (problem->dtype == DTYPE_F64)
        ((double *)problem->gradient[contribution])[at] = value;
    else
        ((float *)problem->gradient[contribution])[at] = (float)value;
}

START_TEST(the_first_contribution_at_fault_is_named)
{
    enum { N = 5 };
    static const double strange[] = {NAN, INFINITY, -INFINITY};
    const size_t places[] = {0, 15, 1023, 1024, 20000, LARGE - 8, LARGE - 1};
    struct conformance pair;
    if (!open_pair(&pair, _i))
        return;
    for (int kind = 0; kind < KINDS; kind++) {
        struct problem *problem = problem_new(pair.backend->ops->dtype, LARGE, N, kind);
        problem->round.threads = 2;
        for (size_t place = 0; place < sizeof places / sizeof *places; place++)
            for (uint32_t k = 0; k < N; k++) {
                put(problem, k, places[place], strange[(place + k) % 3]);
                ck_assert_uint_eq(run(&pair, &problem->round), k);
                put(problem, N - 1, LARGE / 2, NAN); // another one, elsewhere: the lower counts
                put(problem, k, LARGE / 3, strange[k % 3]);
                ck_assert_uint_eq(run(&pair, &problem->round), k);
                put(problem, N - 1, LARGE / 2, 0.5);
                put(problem, k, LARGE / 3, 0.5);
                put(problem, k, places[place], -0.25);
                ck_assert_uint_eq(run(&pair, &problem->round), UINT32_MAX);
            }
        problem_free(problem);
    }
    conformance_close(&pair);
}
END_TEST

/* Opposite infinities make a NaN; a sum too large for float32 is no contribution's fault, nor is what was
 * there, but neither may pass for a model. */
START_TEST(what_no_contribution_is_at_fault_of_is_told_too)
{
    struct conformance pair;
    if (!open_pair(&pair, _i))
        return;
    struct problem *problem = problem_new(pair.backend->ops->dtype, 300, 3, 2);
    put(problem, 1, 40, INFINITY);
    put(problem, 2, 40, -INFINITY);
    ck_assert_uint_eq(run(&pair, &problem->round), 1);
    for (uint32_t k = 0; k < 3; k++)
        put(problem, k, 40, 3e38);
    ck_assert_uint_eq(run(&pair, &problem->round), pair.backend->ops->dtype == DTYPE_F32 ? 3 : UINT32_MAX);
    memset(problem->parameters, 0xff, 64);
    ck_assert_uint_eq(run(&pair, &problem->round), 3);
    problem_free(problem);
    conformance_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sgd_round");
    TCase *pass = tcase_create("pass");
    tcase_add_loop_test(pass, it_agrees_with_ref, 0, CONFORMANCE_BACKENDS);
    tcase_add_loop_test(pass, the_bits_are_a_plain_loops, 0, CONFORMANCE_BACKENDS);
    tcase_add_loop_test(pass, one_contribution_is_the_optimizers_step, 0, CONFORMANCE_BACKENDS);
    suite_add_tcase(suite, pass);
    TCase *faults = tcase_create("faults");
    tcase_add_loop_test(faults, the_first_contribution_at_fault_is_named, 0, CONFORMANCE_BACKENDS);
    tcase_add_loop_test(faults, what_no_contribution_is_at_fault_of_is_told_too, 0, CONFORMANCE_BACKENDS);
    suite_add_tcase(suite, faults);
    return suite_run(suite);
}
