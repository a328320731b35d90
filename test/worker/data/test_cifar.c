/* CIFAR's binary files: both variants, and every way in which they can be wrong. */
#include "test/worker/data/data_fixture.h"
#include "test/workplace.h"

enum { PIXELS = 3072, RECORDS = 2, RECORD_MAX = PIXELS + 2 };

static struct error error;

/* `records` of them: label first + i (behind a coarse one of 19), pixel p of plane c of record i is
 * 50 c + i + p mod 50. */
static void write_file(const char *name, uint32_t records, uint32_t first, uint32_t label_bytes, size_t more)
{
    static uint8_t bytes[RECORDS * RECORD_MAX + 16];
    const size_t record = PIXELS + label_bytes;
    ck_assert_uint_le(records * record + more, sizeof bytes);
    memset(bytes, 0, sizeof bytes);
    for (uint32_t i = 0; i < records; i++) {
        uint8_t *at = bytes + i * record;
        at[0] = 19;
        at[label_bytes - 1] = (uint8_t)(first + i);
        for (uint32_t p = 0; p < PIXELS; p++)
            at[label_bytes + p] = (uint8_t)(50 * (p / 1024) + i + p % 1024 % 50);
    }
    data_write(name, bytes, records * record + more);
}

static void write_cifar10(void)
{
    for (uint32_t batch = 0; batch < 5; batch++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%u.bin", batch + 1);
        write_file(name, RECORDS, 2 * batch, 1, 0);
    }
    write_file("test_batch.bin", 1, 3, 1, 0);
}

static void set_up(void)
{
    data_open();
    data.job.data.kind = JOB_DATA_CIFAR;
    data.job.data.size = 32;
    data.job.data.channels = 3;
}

static enum status open_split(enum dataset_split split)
{
    struct dataset *dataset = NULL;
    error = (struct error){0};
    enum status status = dataset_open(&dataset, &data.job, split, &error);
    dataset_free(dataset);
    return status;
}

static enum status probe(void)
{
    struct dataset_info info;
    error = (struct error){0};
    return dataset_probe(&info, &data.job, &error);
}

static void expect_text(const char *name, const char *text)
{
    ck_assert_msg(strstr(error.text, data_path(name)) != NULL, "expected the name in: %s", error.text);
    ck_assert_msg(strstr(error.text, text) != NULL, "expected \"%s\" in: %s", text, error.text);
}

static void check_samples(enum dataset_split split, uint32_t count, int32_t first)
{
    struct image image = {0};
    struct dataset *dataset = NULL;
    ck_assert_msg(dataset_open(&dataset, &data.job, split, &error) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(dataset_count(dataset), count);
    for (uint32_t i = 0; i < count; i++) {
        int32_t label;
        ck_assert_int_eq(dataset_read(dataset, i, &image, &label, &error), STATUS_OK);
        ck_assert_int_eq(label, first + (int32_t)i);
        ck_assert(image.width == 32 && image.height == 32 && image.channels == 3);
        for (uint32_t p = 0; p < PIXELS; p++)
            ck_assert_uint_eq(image.pixels[p], 50 * (p % 3) + i % RECORDS + p / 3 % 50);
    }
    dataset_free(dataset);
    image_fini(&image);
}

START_TEST(cifar10_is_read)
{
    struct dataset_info info;
    write_cifar10();
    ck_assert_int_eq(dataset_probe(&info, &data.job, &error), STATUS_OK);
    ck_assert_uint_eq(info.train, 5 * RECORDS);
    ck_assert_uint_eq(info.evaluation, 1);
    check_samples(DATASET_TRAIN, 5 * RECORDS, 0);
    check_samples(DATASET_EVALUATION, 1, 3);
}
END_TEST

START_TEST(cifar100_is_read_by_its_fine_labels)
{
    data.job.model.classes = 100;
    write_file("train.bin", 2, 98, 2, 0);
    write_file("test.bin", 1, 0, 2, 0);
    check_samples(DATASET_TRAIN, 2, 98);
    check_samples(DATASET_EVALUATION, 1, 0);
}
END_TEST

START_TEST(neither_is_said)
{
    ck_assert_int_eq(probe(), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(
        strstr(error.text, "neither data_batch_1.bin (CIFAR-10) nor train.bin (CIFAR-100)"));
    ck_assert_int_eq(open_split(DATASET_TRAIN), STATUS_NOT_FOUND);
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    static const char *const names[] = {"data_batch_2.bin", "data_batch_5.bin", "test_batch.bin"};
    const enum dataset_split split = _i < 2 ? DATASET_TRAIN : DATASET_EVALUATION;
    write_cifar10();
    unlink(data_path(names[_i]));
    ck_assert_int_eq(probe(), STATUS_NOT_FOUND);
    expect_text(names[_i], "No such file");
    ck_assert_int_eq(open_split(split), STATUS_NOT_FOUND);
    expect_text(names[_i], "No such file");
}
END_TEST

static const struct {
    uint32_t records;
    size_t more;
    const char *text;
} sizes[] = {{0, 0, "ends at offset 0, 0 bytes into a record of 3073"},
             {0, 1, "ends at offset 1, 1 bytes into"},
             {1, 1, "ends at offset 3074, 1 bytes into"},
             {2, 15, "ends at offset 6161, 15 bytes into"}};

START_TEST(a_torn_record_is_corrupt)
{
    write_cifar10();
    write_file("data_batch_3.bin", sizes[_i].records, 0, 1, sizes[_i].more);
    ck_assert_int_eq(probe(), STATUS_CORRUPT);
    expect_text("data_batch_3.bin", sizes[_i].text);
    ck_assert_int_eq(open_split(DATASET_TRAIN), STATUS_CORRUPT);
    expect_text("data_batch_3.bin", sizes[_i].text);
}
END_TEST

START_TEST(a_label_beyond_the_classes_is_named)
{
    write_cifar10();
    write_file("data_batch_5.bin", 2, 9, 1, 0);
    ck_assert_int_eq(open_split(DATASET_TRAIN), STATUS_CORRUPT);
    expect_text("data_batch_5.bin", "offset 3073: label 10, where /model/classes is 10");
    for (int batch = 1; batch <= 5; batch++) {
        char name[32];
        snprintf(name, sizeof name, "data_batch_%d.bin", batch);
        unlink(data_path(name));
    }
    write_file("train.bin", 2, 9, 2, 0);
    ck_assert_int_eq(open_split(DATASET_TRAIN), STATUS_CORRUPT);
    expect_text("train.bin", "offset 3075: label 10, where /model/classes is 10");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cifar");
    TCase *reading = tcase_create("reading");
    tcase_add_checked_fixture(reading, set_up, data_close);
    tcase_add_test(reading, cifar10_is_read);
    tcase_add_test(reading, cifar100_is_read_by_its_fine_labels);
    tcase_add_test(reading, neither_is_said);
    tcase_add_loop_test(reading, a_missing_file_is_named, 0, 3);
    tcase_add_loop_test(reading, a_torn_record_is_corrupt, 0, sizeof sizes / sizeof *sizes);
    tcase_add_test(reading, a_label_beyond_the_classes_is_named);
    suite_add_tcase(suite, reading);
    return suite_run(suite);
}
