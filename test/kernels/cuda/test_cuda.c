/* Tests that need a GPU and are not in the conformance table: the captured policy, whose replays must draw
 * anew, the optimizers' bits, and copies. Without a GPU the program prints one line. */
#include "kernels/params/gradients.h"
#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "test/kernels/cuda/mlp_launch.h"
#include "test/oracle/mlp_ref.h"
#include "test/values.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* ---- copies that do not wait ---- */

static float *page_of_numbers(size_t count, uint64_t state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float *numbers = aligned_alloc(page, (count * sizeof *numbers + page - 1) / page * page);
    ck_assert_ptr_nonnull(numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = mlp_problem_number(&state);
    return numbers;
}

/* More uploads than the staging buffers hold, while nothing waits: each has its own numbers. The callers'
 * memory changes at once. */
START_TEST(an_upload_leaves_its_source)
{
    enum { COUNT = 100003, UPLOADS = 60 };
    float *numbers = page_of_numbers(COUNT, 3), *got = values_memory(COUNT, sizeof *got);
    struct tensor tensors[UPLOADS];
    for (int i = 0; i < UPLOADS; i++) {
        numbers[1] = (float)i;
        tensors[i] = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, numbers);
    }
    for (int i = 0; i < UPLOADS; i++) {
        numbers[1] = (float)i;
        must(backend_download(gpu, &tensors[i], DTYPE_F32, got, &error));
        ck_assert_mem_eq(got, numbers, COUNT * sizeof *got);
    }
    free(numbers);
    free(got);
}
END_TEST

/* Some fit in a staging buffer and some do not; the tensors are overwritten at once. */
START_TEST(downloads_share_a_wait)
{
    enum { DOWNLOADS = 70, SMALL = 200, LARGE = 300001 };
    float *numbers = page_of_numbers(LARGE, 4), *large = values_memory(LARGE, sizeof *large);
    double *small = values_memory(LARGE, sizeof *small), sum = 0;
    struct tensor few = upload(SHAPE1(SMALL), DTYPE_F32, DTYPE_F32, numbers);
    struct tensor many = upload(SHAPE1(LARGE), DTYPE_F32, DTYPE_F32, numbers);
    for (size_t i = 0; i < DOWNLOADS; i++) {
        must(backend_fill(gpu, &few, (double)i, &error));
        must(backend_download_later(gpu, &few, DTYPE_F64, small + i * SMALL, &error));
        if (i == DOWNLOADS / 2)
            must(backend_download_later(gpu, &many, DTYPE_F32, large, &error));
    }
    must(backend_upload(gpu, &many, DTYPE_F64, small, &error));
    must(backend_square_sum(gpu, &few, &sum, &error));
    for (size_t i = 0; i < DOWNLOADS; i++)
        ck_assert(small[i * SMALL] == (double)i && small[(i + 1) * SMALL - 1] == (double)i);
    ck_assert_mem_eq(large, numbers, LARGE * sizeof *large);
    free(numbers);
    free(large);
    free(small);
}
END_TEST

/* With a tensor between both, so that what is read late or written early shows. */
START_TEST(pinned_memory_is_copied_as_a_whole)
{
    enum { COUNT = 300017 };
    float *from = page_of_numbers(COUNT, 5), *to = page_of_numbers(COUNT, 6);
    must(backend_pin(gpu, from, COUNT * sizeof *from, &error));
    must(backend_pin(gpu, to, COUNT * sizeof *to, &error));
    must(backend_pin(gpu, to + 5, 17 * sizeof *to, &error)); // is pinned already
    struct tensor tensor = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, from);
    must(backend_download_later(gpu, &tensor, DTYPE_F32, to, &error));
    must(backend_scale(gpu, &tensor, 2, &error));
    must(backend_wait(gpu, &error));
    ck_assert_mem_eq(to, from, COUNT * sizeof *to);
    must(backend_download(gpu, &tensor, DTYPE_F32, to, &error));
    for (size_t i = 0; i < COUNT; i++)
        from[i] *= 2;
    ck_assert_mem_eq(to, from, COUNT * sizeof *to);
    must(backend_wait(gpu, &error)); // nothing is under way
    gpu_close();                     // before the memory is freed
    free(from);
    free(to);
    gpu_open();
}
END_TEST

/* Memory that cannot be pinned is copied all the same. */
START_TEST(read_only_memory_is_not_pinned)
{
    enum { COUNT = 5000 };
    float *numbers = page_of_numbers(COUNT, 7), got[COUNT];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (sizeof got + page - 1) / page * page;
    ck_assert_int_eq(mprotect(numbers, bytes, PROT_READ), 0);
    ck_assert_int_eq(backend_pin(gpu, numbers, sizeof got, &error), STATUS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(error.text, "cudaHostRegister of 20000 bytes failed: "));
    struct tensor tensor = upload(SHAPE1(COUNT), DTYPE_F32, DTYPE_F32, numbers);
    must(backend_fill(gpu, &(struct tensor){.shape = SHAPE1(1), .dtype = DTYPE_F32, .data = tensor.data}, 1,
                      &error)); // no error is left behind
    must(backend_download(gpu, &tensor, DTYPE_F32, got, &error));
    ck_assert_float_eq(got[0], 1);
    ck_assert_mem_eq(got + 1, numbers + 1, (COUNT - 1) * sizeof *got);
    ck_assert_int_eq(mprotect(numbers, bytes, PROT_READ | PROT_WRITE), 0);
    free(numbers);
}
END_TEST

/* ---- the loss and the gradient: read once, behind the walk ---- */

static struct params *params;
static struct gradients *gradients;
static struct tape *tape;

static enum status step_of(float weight, double *loss)
{
    const float x[] = {1, 2}, weights[] = {weight, 1};
    struct parameter *parameter = params_at(params, 0);
    must(params_write(params, parameter, DTYPE_F32, weights, &error));
    tape_begin(tape, TAPE_TRAIN, gradients);
    struct variable *in = tape_input(tape, SHAPE2(1, 2), DTYPE_F32, "x", x);
    struct variable *out = tape_linear(tape, in, tape_parameter(tape, parameter), NULL);
    struct variable *sum = tape_sum(tape, tape_relu(tape, out), NULL, 1);
    tape_loss(tape, sum, loss);
    ck_assert_double_eq(*loss, -1); // nothing has waited
    tape_backward(tape, sum);
    return tape_finish(tape, &error);
}

START_TEST(a_loss_is_read_behind_the_walk)
{
    struct parameter *parameter;
    const struct init init = {INIT_CONSTANT, 0};
    double loss = -1, squares = 0;
    must(params_new(&params, gpu, &error));
    must(params_add(params, "w", PARAMETER_TRAINED, SHAPE2(1, 2), init, &parameter, &error));
    must(params_add(params, "unused", PARAMETER_TRAINED, SHAPE1(3), init, &parameter, &error));
    must(params_build(params, 1, &error));
    must(gradients_new(&gradients, params, &error));
    must(tape_new(&tape, gpu, &error));
    must(step_of(3, &loss));
    ck_assert_double_eq(loss, 5);
    must(gradients_check(gradients, &error));
    must(gradients_squares(gradients, &squares, &error));
    ck_assert_double_eq(squares, 5);
    loss = -1;
    ck_assert_int_eq(step_of(NAN, &loss), STATUS_INTERNAL);
    ck_assert_double_eq(loss, -1);
    ck_assert_str_eq(error.text, "the loss is nan; of the tensors that are left, the first that holds a NaN "
                                 "or an infinity is the parameter w");
    gradients_begin(gradients);
    must(gradients_write(gradients, parameter, DTYPE_F32, (float[]){0, INFINITY, 0}, &error));
    ck_assert_int_eq(gradients_check(gradients, &error), STATUS_INTERNAL);
    ck_assert_ptr_nonnull(strstr(error.text, "the gradient of unused holds"));
    tape_free(tape);
    gradients_free(gradients);
    params_free(params);
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

/* The caller refuses such an index. The kernel stays inside of the table. */
START_TEST(an_index_out_of_range_stays_in_the_table)
{
    static const int32_t indices[] = {-1, INT32_MIN, 4, 5, INT32_MAX};
    static const float rows[] = {10, 11, 12, 13, 14}, expected[] = {10, 10, 14, 14, 14};
    float got[5];
    struct tensor index = upload(SHAPE1(5), DTYPE_I32, DTYPE_I32, indices), y = {0};
    struct tensor table = upload(SHAPE2(5, 1), DTYPE_F32, DTYPE_F32, rows);
    struct op_call call = {.op = OP_EMBEDDING, .arena = arena, .in = {&index, &table}, .out = {&y}};
    must(op_forward(gpu, &call, &error));
    must(backend_download(gpu, &y, DTYPE_F32, got, &error));
    ck_assert_mem_eq(got, expected, sizeof got);
}
END_TEST

/* One pass, beside two in double: values far from zero, and the first value far from the others. */
START_TEST(statistics_lose_nothing_far_from_zero)
{
    enum { COUNT = 4096 };
    static float x[COUNT];
    double sum = 0, squares = 0, mean, variance;
    for (uint32_t i = 0; i < COUNT; i++)
        sum += (double)(x[i] = 1e6f + (float)(i * 7919 % 17));
    if (_i == 1) {
        sum -= (double)x[0];
        x[0] = 0;
    }
    for (uint32_t i = 0; i < COUNT; i++)
        squares += ((double)x[i] - sum / COUNT) * ((double)x[i] - sum / COUNT);
    struct tensor in = upload(SHAPE4(4, 1, 32, 32), DTYPE_F32, DTYPE_F32, x);
    struct tensor one = upload(SHAPE1(1), DTYPE_F32, DTYPE_F32, (float[]){1}), out[3] = {{.data = NULL}};
    struct op_call call = {.op = OP_BATCH_NORM,
                           .attributes = {.training = true, .epsilon = 1e-5},
                           .arena = arena,
                           .in = {&in, &one, &one},
                           .out = {&out[0], &out[1], &out[2]}};
    must(op_forward(gpu, &call, &error));
    must(backend_download(gpu, &out[1], DTYPE_F64, &mean, &error));
    must(backend_download(gpu, &out[2], DTYPE_F64, &variance, &error));
    ck_assert_double_eq_tol(mean, sum / COUNT, 0.0625);
    ck_assert_double_eq_tol(variance / (squares / (COUNT - 1)), 1, 1e-6);
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
    tcase_add_test(tests, an_upload_leaves_its_source);
    tcase_add_test(tests, downloads_share_a_wait);
    tcase_add_test(tests, pinned_memory_is_copied_as_a_whole);
    tcase_add_test(tests, read_only_memory_is_not_pinned);
    tcase_add_test(tests, a_loss_is_read_behind_the_walk);
    tcase_add_test(tests, an_embedding_of_many_tokens_sums_each_row);
    tcase_add_test(tests, an_index_out_of_range_stays_in_the_table);
    tcase_add_loop_test(tests, statistics_lose_nothing_far_from_zero, 0, 2);
    tcase_add_test(tests, numbers_of_devices_begin_anew);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
