/* Tests that need a GPU and are not in the conformance table: the captured policy, whose replays must draw
 * anew, and the optimizers' bits. Without a GPU the program prints one line. */
#include "test/kernels/cuda/mlp_launch.h"
#include "test/oracle/mlp_ref.h"
#include "test/values.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static struct backend *gpu;
static struct arena *arena;
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void gpu_open(void)
{
    must(backend_load(&gpu, "cuda", &(struct backend_settings){0}, &error));
    must(arena_new(&arena, &gpu->source, &error));
}

static void gpu_close(void)
{
    arena_free(arena);
    backend_close(gpu);
}

static struct tensor upload(struct shape shape, enum dtype dtype, enum dtype from, const void *values)
{
    struct tensor tensor;
    must(tensor_new(&tensor, arena, shape, dtype, "uploaded", &error));
    must(backend_upload(gpu, &tensor, from, values, &error));
    return tensor;
}

/* ---- the captured policy ---- */

static const struct mlp_case policies[] = {
    {{4, 128, 2}, 0.6, 64}, {{1, 1, 1}, 0.5, 33},     {{2, 15, 3}, 0.1, 50},      {{4, 129, 2}, 0.6, 16},
    {{3, 300, 5}, 0.9, 31}, {{16, 1024, 16}, 0.3, 9}, {{7, 128, 11}, 0.0001, 40}, {{4, 64, 2}, 0, 21},
};
enum { POLICIES = sizeof policies / sizeof *policies };

static struct mlp_problem problem;
static struct mlp_launch launch;

static void launch_open(int number, uint32_t rows_max, bool fixed)
{
    mlp_problem_init(&problem, policies[number].shape, policies[number].dropout, policies[number].rows,
                     (uint64_t)number + 1);
    must(mlp_launch_open(&launch, gpu, arena, &problem, rows_max, fixed, &error));
}

static void launch_close(void)
{
    mlp_launch_close(&launch, gpu);
    mlp_problem_fini(&problem);
}

static void act(uint32_t count)
{
    must(mlp_launch_act(&launch, gpu, &problem, count, &error));
}

/* The first `count` rows against the oracle: the same actions wherever the uniform is not on a border. */
static void check_rows(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const size_t row = problem.row[i];
        const struct rng_key key = {.seed = problem.seed,
                                    .environment = problem.environment[i],
                                    .step = problem.step[i],
                                    .episode = problem.episode};
        uint16_t mask[MLP_HIDDEN_MAX / 16];
        double expected[MLP_ACTIONS_MAX], margin;
        mlp_ref_draw(&problem.shape, problem.dropout, &key, mask);
        mlp_ref_forward(&problem.shape, problem.dropout, problem.exact,
                        problem.batch.observations + row * problem.shape.inputs, mask, expected, NULL);
        const uint32_t sampled = mlp_ref_sample(&problem.shape, expected, &key, &margin);
        ck_assert(problem.batch.actions[row] == (int32_t)sampled || margin < 1e-5);
    }
}

START_TEST(a_launch_is_the_policys_act)
{
    launch_open(_i, policies[_i].rows, false);
    for (uint32_t count = 1; count <= problem.rows; count = count * 2 + 1) {
        act(count);
        check_rows(count);
    }
    act(problem.rows);
    check_rows(problem.rows);
    launch_close();
}
END_TEST

/* The same graph, other keys: what a captured argument would freeze. */
START_TEST(a_replay_draws_by_its_own_keys)
{
    launch_open(0, policies[0].rows, false);
    act(problem.rows);
    for (uint32_t change = 0; change < 3; change++) {
        problem.episode += change == 0;
        for (uint32_t i = 0; i < problem.rows; i++) {
            problem.step[i] += change == 1;
            problem.environment[i] += change == 2;
        }
        act(problem.rows);
        check_rows(problem.rows);
    }
    launch_close();
}
END_TEST

START_TEST(weights_are_read_at_each_launch)
{
    launch_open(0, policies[0].rows, false);
    act(problem.rows);
    for (size_t i = 0; i < problem.count; i++) {
        problem.parameters[i] *= -1.5f;
        problem.exact[i] = (double)problem.parameters[i];
    }
    must(mlp_launch_load(&launch, gpu, &problem, &error));
    act(problem.rows);
    check_rows(problem.rows);
    launch_close();
}
END_TEST

/* A ReLU that makes 0 of a NaN leaves the second layer's bias, which has the first action drawn. A NaN has
 * the last one drawn, as on the CPU. */
START_TEST(a_nan_reaches_the_actions)
{
    launch_open(0, policies[0].rows, false);
    float *bias = problem.parameters + problem.count - 2;
    bias[0] = 1000;
    bias[1] = -1000;
    must(mlp_launch_load(&launch, gpu, &problem, &error));
    act(1);
    ck_assert_int_eq(problem.batch.actions[problem.row[0]], 0);
    for (uint32_t unit = 0; unit < 128; unit++)
        problem.parameters[4 * 128 + unit] = NAN; // affine1.bias
    must(mlp_launch_load(&launch, gpu, &problem, &error));
    act(1);
    ck_assert_int_eq(problem.batch.actions[problem.row[0]], 1);
    launch_close();
}
END_TEST

/* Other operations make the backend's workspace grow between two launches: the graphs have their own. */
START_TEST(a_policy_lives_beside_other_work)
{
    launch_open(0, policies[0].rows, false);
    struct values image = values_drawn(SHAPE4(8, 64, 56, 56), 1),
                  kernel = values_drawn(SHAPE4(64, 64, 3, 3), 2);
    struct tensor x, weight, y = {0};
    must(values_upload(&image, gpu, arena, "image", &x, &error));
    must(values_upload(&kernel, gpu, arena, "kernel", &weight, &error));
    struct op_call call = {.op = OP_CONV2D,
                           .attributes = {.stride = {1, 1}, .padding = {1, 1}},
                           .arena = arena,
                           .in = {&x, &weight},
                           .out = {&y}};
    must(op_forward(gpu, &call, &error));
    act(problem.rows);
    check_rows(problem.rows);
    values_free(&image);
    values_free(&kernel);
    launch_close();
}
END_TEST

/* A place of a launch of one size has the same action, whatever is at the other places. */
START_TEST(with_one_size_a_row_stands_alone)
{
    enum { ROWS = 64 };
    int32_t together[ROWS];
    launch_open(0, ROWS, true);
    act(ROWS);
    check_rows(ROWS);
    memcpy(together, launch.actions, sizeof together);
    for (uint32_t i = 0; i < ROWS; i += 7) {
        memset(launch.observations, 0, ROWS * problem.shape.inputs * sizeof(float));
        mlp_launch_put(&launch, &problem, i, i);
        launch.actions[i] = -1;
        must(mlp_launch_run(&launch, gpu, i + 1, &error));
        ck_assert_int_eq(launch.actions[i], together[i]);
    }
    launch_close();
}
END_TEST

/* ---- bits ---- */

START_TEST(adam_has_the_cpus_bits)
{
    enum { COUNT = 4099, STEPS = 4 };
    static float p[COUNT], m[COUNT], v[COUNT], g[COUNT], got[COUNT];
    uint64_t state = 5;
    for (size_t i = 0; i < COUNT; i++)
        p[i] = mlp_problem_number(&state);
    struct tensor parameters = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, p);
    struct tensor first = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, m);
    struct tensor second = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, v);
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (size_t i = 0; i < COUNT; i++)
            g[i] = mlp_problem_number(&state);
        struct tensor gradient = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, g);
        adam_update(&ADAM_DEFAULTS, step, p, m, v, g, COUNT);
        must(backend_adam(gpu, &ADAM_DEFAULTS, step, &parameters, &gradient, &first, &second, &error));
        must(backend_download(gpu, &parameters, DTYPE_F32, got, &error));
        ck_assert_mem_eq(got, p, sizeof p);
    }
}
END_TEST

/* More than the pinned buffer holds, and not a multiple of it. */
START_TEST(large_tensors_come_back_as_they_went)
{
    enum { COUNT = 700001 };
    double *real = values_memory(COUNT, sizeof *real), *real_back = values_memory(COUNT, sizeof *real);
    int32_t *whole = values_memory(COUNT, sizeof *whole), *whole_back = values_memory(COUNT, sizeof *whole);
    uint64_t state = 11;
    for (size_t i = 0; i < COUNT; i++) {
        real[i] = (double)mlp_problem_number(&state);
        whole[i] = (int32_t)(state >> 32);
    }
    struct tensor floats = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F64, real);
    struct tensor integers = upload(SHAPE1(COUNT), DTYPE_I32, DTYPE_I32, whole);
    must(backend_download(gpu, &floats, DTYPE_F64, real_back, &error));
    must(backend_download(gpu, &integers, DTYPE_I32, whole_back, &error));
    ck_assert_mem_eq(real_back, real, COUNT * sizeof *real);
    ck_assert_mem_eq(whole_back, whole, COUNT * sizeof *whole);
    free(real);
    free(real_back);
    free(whole);
    free(whole_back);
}
END_TEST

/* So many tokens that one block does not sort them. Sums of numbers with few bits are exact in any order. */
START_TEST(an_embedding_of_many_tokens_sums_each_row)
{
    enum { TOKENS = 20011, VOCABULARY = 97, WIDTH = 3 };
    static int32_t indices[TOKENS];
    static float dy[TOKENS * WIDTH], expected[VOCABULARY * WIDTH], got[VOCABULARY * WIDTH];
    uint64_t state = 13;
    for (size_t i = 0; i < TOKENS; i++) {
        mlp_problem_number(&state);
        indices[i] = (int32_t)((state >> 33) % VOCABULARY);
        for (size_t k = 0; k < WIDTH; k++) {
            dy[i * WIDTH + k] = rintf(64 * mlp_problem_number(&state));
            expected[(size_t)indices[i] * WIDTH + k] += dy[i * WIDTH + k];
        }
    }
    struct tensor index = upload(SHAPE1(TOKENS), DTYPE_I32, DTYPE_I32, indices);
    struct tensor weight = upload(SHAPE2(VOCABULARY, WIDTH), DTYPE_F32, DTYPE_F32, expected);
    struct tensor gradient = upload(SHAPE2(TOKENS, WIDTH), DTYPE_F32, DTYPE_F32, dy);
    struct tensor y = {0}, dweight = {0};
    struct op_call call = {
        .op = OP_EMBEDDING, .arena = arena, .in = {&index, &weight}, .out = {&y}, .keep = true};
    must(op_forward(gpu, &call, &error));
    call.dout[0] = &gradient;
    call.din[1] = &dweight;
    must(op_backward(gpu, &call, &error));
    must(backend_download(gpu, &dweight, DTYPE_F32, got, &error));
    ck_assert_mem_eq(got, expected, sizeof got);
}
END_TEST

/* Each worker asks for the device of its own number. */
START_TEST(numbers_of_devices_begin_anew)
{
    struct backend *other;
    must(backend_load(&other, "cuda", &(struct backend_settings){.device = UINT32_MAX}, &error));
    backend_close(other);
    must(backend_load(&other, "cuda", &(struct backend_settings){.device = 0}, &error));
    backend_close(other);
}
END_TEST

/* In a child: a CUDA context does not survive the forks of the test runner. */
static bool have_gpu(void)
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        enum status opened = backend_load(&gpu, "cuda", &(struct backend_settings){0}, &error);
        if (opened != STATUS_OK)
            printf("skipped: %s\n", error.text);
        else
            printf("on %s\n", gpu->text);
        fflush(stdout);
        _exit(opened == STATUS_OK ? EXIT_SUCCESS : SKIPPED);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void)
{
    if (!have_gpu())
        return SKIPPED;
    Suite *suite = suite_create("cuda");
    TCase *tests = tcase_create("cuda");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, gpu_open, gpu_close);
    tcase_add_loop_test(tests, a_launch_is_the_policys_act, 0, POLICIES);
    tcase_add_test(tests, a_replay_draws_by_its_own_keys);
    tcase_add_test(tests, weights_are_read_at_each_launch);
    tcase_add_test(tests, a_nan_reaches_the_actions);
    tcase_add_test(tests, a_policy_lives_beside_other_work);
    tcase_add_test(tests, with_one_size_a_row_stands_alone);
    tcase_add_test(tests, adam_has_the_cpus_bits);
    tcase_add_test(tests, large_tensors_come_back_as_they_went);
    tcase_add_test(tests, an_embedding_of_many_tokens_sums_each_row);
    tcase_add_test(tests, numbers_of_devices_begin_anew);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
