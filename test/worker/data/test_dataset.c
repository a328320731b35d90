/* The interface that all kinds of data share, and the real Fashion-MNIST where it is installed. */
#include "test/worker/data/data_fixture.h"
#include "test/workplace.h"

#include <math.h>

START_TEST(synthetic_data_has_no_samples_and_nothing_to_evaluate_on)
{
    struct dataset_info info = {.train = 9, .evaluation = 9};
    struct dataset *dataset = NULL;
    struct error error = {0};
    data.job.data.kind = JOB_DATA_SYNTHETIC;
    ck_assert_int_eq(dataset_probe(&info, &data.job, &error), STATUS_OK);
    ck_assert_uint_eq(info.train, 0);
    ck_assert_uint_eq(info.evaluation, 0);
    ck_assert_int_eq(dataset_open(&dataset, &data.job, DATASET_TRAIN, &error), STATUS_OK);
    ck_assert_uint_eq(dataset_count(dataset), 0);
    dataset_free(dataset);
    ck_assert_int_eq(dataset_open(&dataset, &data.job, DATASET_EVALUATION, &error), STATUS_INVALID);
    ck_assert_str_eq(error.text, "/data/kind: synthetic data has nothing to evaluate on");
    dataset_free(NULL);
}
END_TEST

/* The mean and the deviation of its pixels are in every book: 0.2860 and 0.3530. */
START_TEST(fashion_mnist_is_what_it_is_known_to_be)
{
    static const char folder[] = "/usr/share/datasets/fashion-mnist";
    struct dataset_info info;
    struct dataset *dataset = NULL;
    struct image image = {0};
    struct error error = {0};
    uint64_t sum = 0, squares = 0, read = 0, labels[10] = {0};
    if (access(folder, F_OK) != 0) {
        puts("test_dataset: Fashion-MNIST is not tested: the Debian package dataset-fashion-mnist is absent");
        return;
    }
    snprintf(data.job.data.path, sizeof data.job.data.path, "%s", folder);
    ck_assert_msg(dataset_probe(&info, &data.job, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(info.train, 60000);
    ck_assert_uint_eq(info.evaluation, 10000);
    ck_assert_int_eq(dataset_open(&dataset, &data.job, DATASET_TRAIN, &error), STATUS_OK);
    ck_assert_uint_eq(dataset_count(dataset), 60000);
    for (uint32_t i = 0; i < 60000; i++) {
        int32_t label = 0;
        read += dataset_read(dataset, i, &image, &label, &error) == STATUS_OK; // an assert each would be slow
        labels[label]++;
        for (uint32_t p = 0; p < 28 * 28; p++) {
            sum += image.pixels[p];
            squares += (uint64_t)image.pixels[p] * image.pixels[p];
        }
    }
    ck_assert_uint_eq(read, 60000);
    const double pixels = 60000.0 * 28 * 28, mean = (double)sum / pixels / 255;
    const double deviation = sqrt((double)squares / pixels / 65025 - mean * mean);
    ck_assert_msg(fabs(mean - 0.2860) <= 0.00005, "mean %.6f", mean);
    ck_assert_msg(fabs(deviation - 0.3530) <= 0.00005, "deviation %.6f", deviation);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(labels[i], 6000);
    image_fini(&image);
    dataset_free(dataset);
    ck_assert_int_eq(dataset_open(&dataset, &data.job, DATASET_EVALUATION, &error), STATUS_OK);
    ck_assert_uint_eq(dataset_count(dataset), 10000);
    dataset_free(dataset);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dataset");
    TCase *kinds = tcase_create("kinds");
    tcase_add_checked_fixture(kinds, data_open, data_close);
    tcase_set_timeout(kinds, 60);
    tcase_add_test(kinds, synthetic_data_has_no_samples_and_nothing_to_evaluate_on);
    tcase_add_test(kinds, fashion_mnist_is_what_it_is_known_to_be);
    suite_add_tcase(suite, kinds);
    return suite_run(suite);
}
