/* The loader: the samples and their order are the same for every loader, wherever it begins. */
#include "kernels/base/rng.h"
#include "kernels/lanes/normal.h"
#include "test/worker/data/data_fixture.h"
#include "test/worker/data/golden_images.h"
#include "test/workplace.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>

/* idx_write's image i begins with pixel 7 i: which sample an image is. */
static uint32_t sample_of(const float *image)
{
    return (uint32_t)lrintf(image[0] * 255) / 7;
}

/* The samples that each of `parts` trainers gets in `steps` steps, in the order of (step, part, i). */
static void collect(uint32_t *samples, uint32_t parts, uint32_t steps, uint64_t first_step)
{
    const uint32_t batch = data.job.trainers.batch;
    for (uint32_t part = 0; part < parts; part++) {
        struct loader *loader = data_loader(DATASET_TRAIN, part, parts, first_step);
        for (uint32_t s = 0; s < steps; s++) {
            const struct batch *got = data_next(loader);
            ck_assert_uint_eq(got->step, first_step + s);
            ck_assert_uint_eq(got->samples, batch);
            for (uint32_t i = 0; i < batch; i++) {
                uint32_t sample = sample_of(got->images + (size_t)16 * i);
                ck_assert_int_eq(got->labels[i], sample % 10);
                samples[(s * parts + part) * batch + i] = sample;
            }
        }
        loader_free(loader);
    }
}

START_TEST(trainers_share_an_epoch_as_one_with_their_batches_joined_would_see_it)
{
    enum { SAMPLES = 34, PARTS = 4, STEPS = 4, TAKEN = PARTS * STEPS * 4 };
    uint32_t apart[TAKEN], joined[TAKEN];
    idx_write(SAMPLES, 1);
    collect(apart, PARTS, STEPS, 0); // two epochs of two steps; two samples are left out of each
    data.job.trainers.batch *= PARTS;
    collect(joined, 1, STEPS, 0);
    ck_assert_mem_eq(apart, joined, sizeof apart);
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        bool seen[SAMPLES] = {false};
        for (uint32_t i = 0; i < TAKEN / 2; i++) {
            uint32_t sample = apart[epoch * TAKEN / 2 + i];
            ck_assert_uint_lt(sample, SAMPLES);
            ck_assert(!seen[sample]);
            seen[sample] = true;
        }
    }
    ck_assert_mem_ne(apart, apart + TAKEN / 2, sizeof apart / 2);
}
END_TEST

START_TEST(a_loader_that_begins_later_continues_the_same_order)
{
    uint32_t whole[9 * 4], late[5 * 4];
    idx_write(20, 1);
    collect(whole, 1, 9, 0);
    collect(late, 1, 5, 4);
    ck_assert_mem_eq(whole + 16, late, sizeof late);
}
END_TEST

START_TEST(evaluation_shares_are_the_samples_in_order)
{
    enum { SAMPLES = 17, PARTS = 3 };
    uint32_t next = 0;
    idx_write(4, SAMPLES);
    for (uint32_t part = 0; part < PARTS; part++) {
        struct loader *loader = data_loader(DATASET_EVALUATION, part, PARTS, 0);
        const struct batch *batch = NULL;
        for (uint64_t step = 0; (batch = data_next(loader)) != NULL; step++) {
            ck_assert_uint_eq(batch->step, step);
            ck_assert_uint_eq(loader_share_samples(loader), part == 0 ? 5 : 6);
            for (uint32_t i = 0; i < batch->samples; i++, next++)
                ck_assert_uint_eq(sample_of(batch->images + (size_t)16 * i), next);
        }
        ck_assert_uint_eq(next, SAMPLES * (part + 1) / PARTS);
        loader_free(loader);
    }
}
END_TEST

START_TEST(synthetic_batches_are_draws_of_their_place)
{
    enum { ELEMENTS = 4 * 27 };
    normal_group *lanes;
    float expected[ELEMENTS];
    data.job.data.kind = JOB_DATA_SYNTHETIC;
    data.job.data.size = 3;
    data.job.data.channels = 3;
    lanes = normal_choose();
    struct loader *loader = data_loader(DATASET_TRAIN, 2, 5, 7);
    for (uint64_t step = 7; step < 12; step++) {
        const struct rng_key key = {.seed = 543, .step = (uint32_t)step, .episode = 2};
        const struct batch *batch = data_next(loader);
        ck_assert_uint_eq(batch->step, step);
        ck_assert_uint_eq(batch->samples, 4);
        normal_fill(lanes, expected, ELEMENTS, &key, RNG_DATA, 0);
        ck_assert_mem_eq(batch->images, expected, sizeof expected);
        for (uint32_t i = 0; i < 4; i++) {
            const struct rng_key labels = {.seed = 543, .environment = i, .episode = 2};
            uint32_t words[4];
            rng_block(&labels, RNG_DATA, RNG_BLOCK_MAX, words);
            ck_assert_int_eq(batch->labels[i], (int32_t)rng_below(words[0], words[1], 10));
        }
    }
    loader_free(loader);
}
END_TEST

/* A step beyond 2^32 is another one than its lower bits, and so are another trainer's and another seed's. */
START_TEST(synthetic_images_differ_by_step_trainer_and_seed)
{
    enum { COUNT = 4 * 27, KINDS = 5 };
    static const struct {
        uint64_t seed, step;
        uint32_t trainer;
    } kinds[KINDS] = {{1, 5, 0}, {1, 6, 0}, {1, 5 + (UINT64_C(1) << 32), 0}, {1, 5, 1}, {2, 5, 0}};
    float images[KINDS][COUNT];
    data.job.data.kind = JOB_DATA_SYNTHETIC;
    data.job.data.size = 3;
    data.job.data.channels = 3;
    for (int k = 0; k < KINDS; k++) {
        data.job.seed = kinds[k].seed;
        struct loader *loader = data_loader(DATASET_TRAIN, kinds[k].trainer, 2, kinds[k].step);
        memcpy(images[k], data_next(loader)->images, sizeof images[k]);
        loader_free(loader);
        for (int other = 0; other < k; other++)
            ck_assert_mem_ne(images[k], images[other], sizeof images[k]);
    }
}
END_TEST

START_TEST(permutations_hold_each_index_once_and_differ_by_epoch_seed_and_lap)
{
    enum { COUNT = 36, KINDS = 5 };
    uint32_t order[KINDS][COUNT];
    const uint64_t seeds[KINDS] = {1, 1, 2, 1, 1}, epochs[KINDS] = {0, 1, 0, UINT64_C(1) << 32, 0};
    const uint32_t laps[KINDS] = {0, 0, 0, 0, 1};
    idx_write(COUNT, 1);
    data.job.trainers.batch = COUNT; // one step is an epoch, and trainer 1 of 1 is of lap 1
    for (int k = 0; k < KINDS; k++) {
        bool seen[COUNT] = {false};
        data.job.seed = seeds[k];
        struct loader *loader = data_loader(DATASET_TRAIN, laps[k], 1, epochs[k]);
        const struct batch *batch = data_next(loader);
        for (int i = 0; i < COUNT; i++) {
            order[k][i] = sample_of(batch->images + (size_t)16 * i);
            ck_assert_uint_lt(order[k][i], COUNT);
            ck_assert(!seen[order[k][i]]);
            seen[order[k][i]] = true;
        }
        loader_free(loader);
        for (int other = 0; other < k; other++)
            ck_assert_mem_ne(order[k], order[other], sizeof order[k]);
    }
}
END_TEST

/* All 24 orders of four, of 24,000 epochs: chi-square with 23 degrees of freedom stays under 58, which a fair
 * shuffle passes in 9,999 of 10,000 seeds (and this seed is fixed). */
START_TEST(permutations_are_even)
{
    enum { EPOCHS = 24000, ORDERS = 24 };
    unsigned count[256] = {0};
    double chi_square = 0;
    int orders = 0;
    idx_write(4, 1);
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        const struct batch *batch = data_next(loader);
        uint32_t order[4];
        for (size_t i = 0; i < 4; i++)
            order[i] = sample_of(batch->images + 16 * i);
        count[order[0] << 6 | order[1] << 4 | order[2] << 2 | order[3]]++;
    }
    loader_free(loader);
    for (int i = 0; i < 256; i++) {
        const double expected = (double)EPOCHS / ORDERS;
        orders += count[i] > 0;
        chi_square += count[i] > 0 ? (count[i] - expected) * (count[i] - expected) / expected : 0;
    }
    ck_assert_int_eq(orders, ORDERS);
    ck_assert_msg(chi_square < 58, "chi-square %g", chi_square);
}
END_TEST

START_TEST(a_loader_ends_at_any_time)
{
    idx_write(40, 4);
    for (uint32_t taken = 0; taken < 6; taken++) {
        struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, taken);
        for (uint32_t i = 0; i < taken; i++)
            data_next(loader);
        loader_free(loader);
    }
    loader_free(NULL);
}
END_TEST

/* A batch stays what it was while the thread works on others, until the next call. */
START_TEST(a_batch_is_the_callers_until_the_next_call)
{
    float kept[4 * 16];
    idx_write(40, 4);
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    for (int i = 0; i < 8; i++) {
        const struct batch *batch = data_next(loader);
        memcpy(kept, batch->images, sizeof kept);
        sleep_ms(5);
        ck_assert_mem_eq(kept, batch->images, sizeof kept);
    }
    loader_free(loader);
}
END_TEST

/* Until it is there, a batch is asked for again and again. */
START_TEST(a_call_waits_no_longer_than_it_may)
{
    const struct batch *batch = NULL;
    struct error error;
    uint64_t step = 0;
    data.job.data.kind = JOB_DATA_SYNTHETIC;
    data.job.data.size = 64;
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    while (step < 5) {
        const struct monotime until = monotime_add_us(monotime_now(), step % 2 * 100);
        enum status status = loader_next(loader, until, &batch, &error);
        ck_assert(status == STATUS_AGAIN || status == STATUS_OK);
        if (status == STATUS_OK)
            ck_assert_uint_eq(batch->step, step++);
    }
    loader_free(loader);
}
END_TEST

/* A signal to the process, which only its other threads keep out, stays pending: the loader's does too. */
START_TEST(the_thread_takes_no_signals)
{
    sigset_t one, pending;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    idx_write(40, 4);
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    ck_assert_int_eq(kill(getpid(), SIGUSR1), 0);
    data_next(loader);
    sigpending(&pending);
    ck_assert_int_eq(sigismember(&pending, SIGUSR1), 1);
    loader_free(loader);
}
END_TEST

/* ---- allocations ---- */

/* What this program does when it is started with a folder, a kind of data and a number of steps. */
static int load(const char *folder, const char *kind, const char *steps)
{
    struct error error;
    struct loader *loader = NULL;
    const struct batch *batch;
    data_set_job(folder);
    data.job.data.kind = atoi(kind);
    data.job.data.fit = JOB_FIT_RESIZE;
    const struct loader_config config = {.job = &data.job, .shares = 1};
    enum status status = loader_new(&loader, &config, &error);
    for (int i = atoi(steps); i > 0 && status == STATUS_OK; i--)
        status = loader_next(loader, MONOTIME_NEVER, &batch, &error);
    loader_free(loader);
    return status == STATUS_OK ? 0 : 1;
}

/* The count that a run of so many steps ends with. */
static long allocations(const char *steps)
{
    char counts[192], preload[4200], kind[8], path[128], program[4096] = {0};
    struct process process;
    ck_assert_int_gt(readlink("/proc/self/exe", program, sizeof program - 1), 0);
    snprintf(path, sizeof path, "%s/counts-%s", data.folder, steps);
    snprintf(counts, sizeof counts, "COUNT_ALLOCATIONS_FILE=%s", path);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", getenv("COUNT_ALLOCATIONS_SO"));
    snprintf(kind, sizeof kind, "%d", data.job.data.kind);
    const char *argv[] = {program, data.folder, kind, steps, NULL};
    struct process_options options = {.environment = (const char *[]){counts, preload, NULL}};
    ck_assert_int_eq(process_run(&process, data.folder, argv, &options, 60), 0);
    char *text = file_read(path), *last = strrchr(text, ' ');
    ck_assert_ptr_nonnull(last);
    long count = atol(last);
    free(text);
    return count;
}

START_TEST(the_steady_state_allocates_nothing)
{
    static const enum job_data kinds[] = {JOB_DATA_SYNTHETIC, JOB_DATA_IDX, JOB_DATA_FOLDER};
    const struct golden_image jpeg = golden_image("color.jpg"), png = golden_image("gray8.png");
    const char *sanitizer = getenv("SAN");
    if (getenv("COUNT_ALLOCATIONS_SO") == NULL || (sanitizer != NULL && sanitizer[0] != '\0')) {
        puts(
            "test_loader: allocations are not counted: no $COUNT_ALLOCATIONS_SO, or a sanitizer's allocator");
        return;
    }
    idx_write(16, 4);
    data_make_folder("train");
    data_make_folder("train/a");
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "train/a/%d.jpg", i);
        data_write(name, i % 2 == 0 ? jpeg.file : png.file, i % 2 == 0 ? jpeg.file_bytes : png.file_bytes);
    }
    data.job.data.kind = kinds[_i];
    long few = allocations("8"), many = allocations("80");
    ck_assert_int_gt(few, 0);
    ck_assert_int_eq(few, many);
}
END_TEST

START_TEST(fewer_samples_than_a_step_takes_are_refused)
{
    struct error error = {0};
    struct loader *loader = NULL;
    const struct loader_config config = {.job = &data.job, .shares = 3};
    idx_write(11, 4);
    ck_assert_int_eq(loader_new(&loader, &config, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(
        strstr(error.text, "11 training samples are fewer than 3 trainers take at once (4 each)"));
}
END_TEST

START_TEST(a_limit_keeps_the_first_samples)
{
    uint32_t samples[2 * 4] = {0};
    struct dataset_info info;
    struct error error;
    idx_write(30, 4);
    data.job.data.has_limit = true;
    data.job.data.limit = 8;
    collect(samples, 1, 2, 0);
    for (int i = 0; i < 8; i++)
        ck_assert_uint_lt(samples[i], 8);
    ck_assert_int_eq(dataset_probe(&info, &data.job, &error), STATUS_OK);
    ck_assert_uint_eq(info.train, 8);
    ck_assert_uint_eq(info.evaluation, 4);
    data.job.data.limit = 31;
    ck_assert_int_eq(dataset_probe(&info, &data.job, &error), STATUS_OK);
    ck_assert_uint_eq(info.train, 30);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 4)
        return load(argv[1], argv[2], argv[3]);
    Suite *suite = suite_create("loader");
    TCase *order = tcase_create("order");
    tcase_add_checked_fixture(order, data_open, data_close);
    tcase_add_test(order, trainers_share_an_epoch_as_one_with_their_batches_joined_would_see_it);
    tcase_add_test(order, a_loader_that_begins_later_continues_the_same_order);
    tcase_add_test(order, evaluation_shares_are_the_samples_in_order);
    tcase_add_test(order, synthetic_batches_are_draws_of_their_place);
    tcase_add_test(order, synthetic_images_differ_by_step_trainer_and_seed);
    tcase_add_test(order, permutations_hold_each_index_once_and_differ_by_epoch_seed_and_lap);
    tcase_add_test(order, permutations_are_even);
    tcase_add_test(order, a_loader_ends_at_any_time);
    tcase_add_test(order, a_batch_is_the_callers_until_the_next_call);
    tcase_add_test(order, a_call_waits_no_longer_than_it_may);
    tcase_add_test(order, the_thread_takes_no_signals);
    tcase_add_loop_test(order, the_steady_state_allocates_nothing, 0, 3);
    tcase_add_test(order, fewer_samples_than_a_step_takes_are_refused);
    tcase_add_test(order, a_limit_keeps_the_first_samples);
    suite_add_tcase(suite, order);
    return suite_run(suite);
}
