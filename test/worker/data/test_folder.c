/* Folders of images: the files that are listed, and their order; errors in a folder; and a loader's
 * handling of files that cannot be decoded. */
#include "test/worker/data/data_fixture.h"
#include "test/worker/data/golden_images.h"
#include "test/workplace.h"

static struct error error;
static struct golden_image gray, color;

static void put(const char *name, const struct golden_image *golden)
{
    data_write(name, golden->file, golden->file_bytes);
}

static void set_up(void)
{
    data_open();
    data.job.data.kind = JOB_DATA_FOLDER;
    data.job.data.channels = 3;
    data.job.data.fit = JOB_FIT_RESIZE;
    gray = golden_image("gray8.png");
    color = golden_image("color.jpg");
    data_make_folder("train");
    data_make_folder("train/cat");
    data_make_folder("train/bird");
}

static void fill_train(void)
{
    put("train/cat/2.jpg", &color);
    put("train/cat/10.PNG", &gray);
    put("train/bird/a.jpeg", &color);
}

static enum status probe(struct dataset_info *info)
{
    error = (struct error){0};
    return dataset_probe(info, &data.job, &error);
}

static enum status open_split(enum dataset_split split)
{
    struct dataset *dataset = NULL;
    error = (struct error){0};
    enum status status = dataset_open(&dataset, &data.job, split, &error);
    dataset_free(dataset);
    return status;
}

static void expect_refusal(enum dataset_split split, enum status status, const char *text)
{
    struct dataset_info info;
    ck_assert_int_eq(probe(&info), status);
    ck_assert_msg(strstr(error.text, text) != NULL, "expected \"%s\" in: %s", text, error.text);
    ck_assert_int_eq(open_split(split), status);
    ck_assert_msg(strstr(error.text, text) != NULL, "expected \"%s\" in: %s", text, error.text);
}

/* ---- listing ---- */

START_TEST(classes_and_files_are_in_order_of_their_bytes)
{
    static const struct {
        int32_t label;
        uint32_t channels;
    } expected[] = {{0, 3}, {1, 1}, {1, 3}}; // bird/a.jpeg, cat/10.PNG, cat/2.jpg
    struct dataset *dataset = NULL;
    struct image image = {0};
    fill_train();
    ck_assert_int_eq(dataset_open(&dataset, &data.job, DATASET_TRAIN, &error), STATUS_OK);
    ck_assert_uint_eq(dataset_count(dataset), 3);
    for (uint32_t i = 0; i < 3; i++) {
        int32_t label;
        ck_assert_int_eq(dataset_read(dataset, i, &image, &label, &error), STATUS_OK);
        ck_assert_int_eq(label, expected[i].label);
        ck_assert_uint_eq(image.channels, expected[i].channels);
        ck_assert(image.width == 13 && image.height == 9);
    }
    dataset_free(dataset);
    image_fini(&image);
}
END_TEST

START_TEST(what_is_no_image_is_passed_over)
{
    struct dataset_info info;
    fill_train();
    data_write("train/README.md", "", 0);
    data_write("train/cat.png", "", 0);
    data_write("train/cat/notes.txt", "", 0);
    data_write("train/cat/.hidden.jpg", "", 0);
    data_write("train/cat/.jpg", "", 0);
    data_write("train/cat/jpg", "", 0);
    data_write("train/cat/3.jpg.part", "", 0);
    data_make_folder("train/.cache");
    data_make_folder("train/cat/folder.jpg");
    ck_assert_int_eq(symlink("cat", data_path("train/bird/link.jpg")), 0); // leads nowhere: named when read
    ck_assert_int_eq(symlink("../cat", data_path("train/bird/folder-link.jpg")), 0);
    ck_assert_msg(probe(&info) == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(info.train, 4);
    ck_assert_uint_eq(info.evaluation, 0);
}
END_TEST

START_TEST(a_class_folder_may_be_a_link)
{
    struct dataset_info info;
    fill_train();
    ck_assert_int_eq(symlink("cat", data_path("train/dog")), 0);
    ck_assert_int_eq(probe(&info), STATUS_OK);
    ck_assert_uint_eq(info.train, 5);
}
END_TEST

START_TEST(test_may_be_absent_or_there)
{
    struct dataset_info info;
    fill_train();
    ck_assert_int_eq(probe(&info), STATUS_OK);
    ck_assert_uint_eq(info.train, 3);
    ck_assert_uint_eq(info.evaluation, 0);
    ck_assert_int_eq(open_split(DATASET_EVALUATION), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "/test: no such folder: nothing to evaluate on"));
    data_make_folder("test");
    data_make_folder("test/bird");
    data_make_folder("test/cat");
    put("test/bird/1.png", &gray);
    put("test/cat/1.png", &gray);
    ck_assert_int_eq(probe(&info), STATUS_OK);
    ck_assert_uint_eq(info.evaluation, 2);
    ck_assert_int_eq(open_split(DATASET_EVALUATION), STATUS_OK);
}
END_TEST

START_TEST(no_folder_is_refused)
{
    fill_train();
    snprintf(data.job.data.path, sizeof data.job.data.path, "%s/cat", data.folder);
    expect_refusal(DATASET_TRAIN, STATUS_NOT_FOUND, "/cat/train: No such file");
}
END_TEST

START_TEST(no_class_folder_is_refused)
{
    ck_assert_int_eq(rmdir(data_path("train/cat")), 0);
    ck_assert_int_eq(rmdir(data_path("train/bird")), 0);
    put("train/1.jpg", &color);
    expect_refusal(DATASET_TRAIN, STATUS_INVALID,
                   "/train: expected a folder of images for each class, found none");
}
END_TEST

START_TEST(an_empty_class_folder_is_refused)
{
    put("train/bird/1.jpg", &color);
    data_write("train/cat/1.txt", "", 0);
    expect_refusal(DATASET_TRAIN, STATUS_INVALID,
                   "/train/cat: a class folder without a .jpg, .jpeg or .png file");
}
END_TEST

START_TEST(more_classes_than_the_model_has_are_refused)
{
    struct dataset_info info;
    fill_train();
    data.job.model.classes = 2;
    ck_assert_int_eq(probe(&info), STATUS_OK);
    data.job.model.classes = 1;
    expect_refusal(DATASET_TRAIN, STATUS_INVALID, "/train: 2 class folders, where /model/classes is 1");
}
END_TEST

static const struct {
    const char *folders[3];
    const char *text;
} others[] = {{{"bird"}, "number 2 is cat in train, nothing in test"},
              {{"bird", "dog"}, "number 2 is cat in train, dog in test"},
              {{"bird", "cat", "dog"}, "number 3 is nothing in train, dog in test"},
              {{"\x1b[2J", "cat"}, "number 1 is bird in train, \\u001b[2J in test"}};

START_TEST(other_classes_in_test_are_refused)
{
    fill_train();
    data_make_folder("test");
    for (int i = 0; i < 3 && others[_i].folders[i] != NULL; i++) {
        char name[64];
        snprintf(name, sizeof name, "test/%s", others[_i].folders[i]);
        data_make_folder(name);
        snprintf(name, sizeof name, "test/%s/1.png", others[_i].folders[i]);
        put(name, &gray);
    }
    expect_refusal(DATASET_EVALUATION, STATUS_INVALID, others[_i].text);
}
END_TEST

/* ---- files that cannot be decoded ---- */

/* From here on the process's messages go into a file, which this returns. */
static const char *catch_messages(void)
{
    static char path[256];
    snprintf(path, sizeof path, "%s", data_path("messages"));
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    unsetenv("JOURNAL_STREAM");
    return path;
}

static void expect_skipped(unsigned count)
{
    char *messages = file_read(data_path("messages"));
    ck_assert_uint_eq(text_count(messages, ": skipped, "), count);
    free(messages);
}

/* `good` and `bad` files in one class; the bad ones are cut. Names are in this order. */
static void write_class(const char *folder, int good, int bad)
{
    for (int i = 0; i < good + bad; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s/%03d.jpg", folder, i);
        data_write(name, color.file, i < good ? color.file_bytes : color.file_bytes - 10);
    }
}

/* The labels and first pixels of `steps` batches into `got`. */
static void collect(float *got, uint32_t steps)
{
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    for (uint32_t s = 0; s < steps; s++) {
        const struct batch *batch = data_next(loader);
        ck_assert_uint_eq(batch->samples, 4);
        for (uint32_t i = 0; i < 4; i++) {
            *got++ = (float)batch->labels[i];
            *got++ = batch->images[(size_t)i * 48];
        }
    }
    loader_free(loader);
}

START_TEST(a_corrupt_image_among_good_ones_is_replaced_and_named_once)
{
    enum { STEPS = 9, PLACES = 8 * STEPS }; // three epochs of three
    float first[PLACES], again[PLACES];
    write_class("train/bird", 6, 0);
    write_class("train/cat", 5, 1);
    const char *path = catch_messages();
    collect(first, STEPS);
    char *messages = file_read(path);
    char expected[256];
    snprintf(expected, sizeof expected,
             "%s/train/cat/005.jpg cannot be decoded (Premature end of JPEG file): skipped, 1 so far\n",
             data.folder);
    ck_assert_uint_eq(text_count(messages, "\n"), 1);
    ck_assert_msg(strstr(messages, expected) != NULL, "expected %s in: %s", expected, messages);
    free(messages);
    collect(again, STEPS);
    ck_assert_mem_eq(first, again, sizeof first);
}
END_TEST

START_TEST(an_undecodable_sample_is_named_once_in_two_passes)
{
    struct loader *loader;
    uint32_t samples[2] = {0};
    fill_train();
    data_make_folder("test");
    data_make_folder("test/bird");
    data_make_folder("test/cat");
    write_class("test/bird", 6, 0);
    write_class("test/cat", 5, 1);
    const char *path = catch_messages();
    loader = data_loader(DATASET_EVALUATION, 0, 1, 0);
    for (int pass = 0; pass < 2; pass++) {
        for (const struct batch *batch; (batch = data_next(loader)) != NULL;)
            samples[pass] += batch->samples;
        if (pass == 0)
            ck_assert_int_eq(loader_restart(loader, 0, &error), STATUS_OK);
    }
    ck_assert_uint_gt(samples[0], 0);
    ck_assert_uint_eq(samples[0], samples[1]);
    loader_free(loader);
    expect_skipped(1);
    char *messages = file_read(path);
    ck_assert_uint_eq(text_count(messages, "skipped, 1 so far"), 1);
    free(messages);
}
END_TEST

/* The replacement is the permutation's next one. Here every cat is corrupt, so that labels tell. */
START_TEST(a_bad_samples_place_goes_to_the_next_good_one)
{
    enum { STEPS = 3 };
    float got[8 * STEPS];
    put("train/bird/0.png", &gray);
    write_class("train/bird", 9, 0);
    write_class("train/cat", 0, 3);
    catch_messages();
    collect(got, STEPS);
    expect_skipped(3);
    for (int i = 0; i < 4 * STEPS; i++)
        ck_assert(got[2 * i] == 0);
}
END_TEST

START_TEST(a_vanished_or_strange_file_is_skipped)
{
    write_class("train/bird", 4, 0);
    ck_assert_int_eq(symlink("nowhere", data_path("train/cat/gone.jpg")), 0);
    ck_assert_int_eq(mkfifo(data_path("train/cat/pipe.jpg"), 0600), 0);
    data_write("train/cat/empty.png", "", 0);
    data.job.trainers.batch = 7;
    const char *path = catch_messages();
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    data_next(loader);
    loader_free(loader);
    expect_skipped(3);
    char *messages = file_read(path);
    ck_assert_ptr_nonnull(
        strstr(messages, "gone.jpg cannot be decoded (No such file or directory): skipped"));
    ck_assert_ptr_nonnull(strstr(messages, "pipe.jpg cannot be decoded (expected a regular file"));
    ck_assert_ptr_nonnull(strstr(messages, "empty.png cannot be decoded (neither a JPEG nor a PNG file)"));
    ck_assert_ptr_nonnull(strstr(messages, "3 so far"));
    free(messages);
}
END_TEST

START_TEST(a_file_that_may_not_be_read_is_skipped)
{
    if (geteuid() == 0) {
        puts("test_folder: unreadable files are not tested: root reads them all");
        return;
    }
    write_class("train/bird", 4, 0);
    write_class("train/cat", 1, 0);
    ck_assert_int_eq(chmod(data_path("train/cat/000.jpg"), 0), 0);
    data.job.trainers.batch = 5;
    catch_messages();
    struct loader *loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    data_next(loader);
    loader_free(loader);
    expect_skipped(1);
}
END_TEST

START_TEST(nothing_but_bad_samples_is_an_error)
{
    const struct batch *batch;
    struct loader *loader;
    write_class("train/bird", 0, 3);
    write_class("train/cat", 0, 3);
    catch_messages();
    loader = data_loader(DATASET_TRAIN, 0, 1, 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(loader_next(loader, MONOTIME_NEVER, &batch, &error), STATUS_CORRUPT);
        ck_assert_ptr_nonnull(strstr(error.text, ": 6 samples in a row cannot be decoded"));
    }
    loader_free(loader);
    expect_skipped(6);
}
END_TEST

/* The limit is a batch's samples when it is larger than LOADER_BAD_MIN. */
START_TEST(so_many_bad_samples_in_a_row_are_an_error)
{
    const struct batch *batch;
    const int bad = (int)(_i == 0 ? LOADER_BAD_MIN : 20);
    data_make_folder("test");
    data_make_folder("test/bird");
    data_make_folder("test/cat");
    fill_train();
    write_class("test/bird", 1, bad - 1);
    write_class("test/cat", 5, 0);
    data.job.evaluation.batch = (uint32_t)(_i == 0 ? 2 : 20);
    catch_messages();
    struct loader *loader = data_loader(DATASET_EVALUATION, 0, 1, 0);
    uint32_t samples = data_next(loader)->samples;
    while (loader_next(loader, MONOTIME_NEVER, &batch, &error) == STATUS_OK && batch != NULL)
        samples += batch->samples;
    ck_assert_uint_eq(samples, 6);
    loader_free(loader);
    expect_skipped((unsigned)bad - 1);

    write_class("test/bird", 1, bad);
    loader = data_loader(DATASET_EVALUATION, 0, 1, 0);
    enum status status = STATUS_OK;
    while (status == STATUS_OK) {
        status = loader_next(loader, MONOTIME_NEVER, &batch, &error);
        ck_assert(status != STATUS_OK || batch != NULL);
    }
    ck_assert_int_eq(status, STATUS_CORRUPT);
    loader_free(loader);
}
END_TEST

START_TEST(evaluation_leaves_bad_samples_out)
{
    const struct batch *batch = NULL;
    int32_t labels[9];
    uint32_t count = 0;
    fill_train();
    data_make_folder("test");
    data_make_folder("test/bird");
    data_make_folder("test/cat");
    write_class("test/bird", 2, 2);
    write_class("test/cat", 3, 0);
    catch_messages();
    struct loader *loader = data_loader(DATASET_EVALUATION, 0, 1, 0);
    while (loader_next(loader, MONOTIME_NEVER, &batch, &error) == STATUS_OK && batch != NULL)
        for (uint32_t i = 0; i < batch->samples; i++)
            labels[count++] = batch->labels[i];
    ck_assert_uint_eq(count, 5);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_int_eq(labels[i], i >= 2);
    loader_free(loader);
    expect_skipped(2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("folder");
    TCase *listing = tcase_create("listing");
    tcase_add_checked_fixture(listing, set_up, data_close);
    tcase_add_test(listing, classes_and_files_are_in_order_of_their_bytes);
    tcase_add_test(listing, what_is_no_image_is_passed_over);
    tcase_add_test(listing, a_class_folder_may_be_a_link);
    tcase_add_test(listing, test_may_be_absent_or_there);
    tcase_add_test(listing, no_folder_is_refused);
    tcase_add_test(listing, no_class_folder_is_refused);
    tcase_add_test(listing, an_empty_class_folder_is_refused);
    tcase_add_test(listing, more_classes_than_the_model_has_are_refused);
    tcase_add_loop_test(listing, other_classes_in_test_are_refused, 0, sizeof others / sizeof *others);
    suite_add_tcase(suite, listing);
    TCase *bad = tcase_create("bad");
    tcase_add_checked_fixture(bad, set_up, data_close);
    tcase_add_test(bad, a_corrupt_image_among_good_ones_is_replaced_and_named_once);
    tcase_add_test(bad, an_undecodable_sample_is_named_once_in_two_passes);
    tcase_add_test(bad, a_bad_samples_place_goes_to_the_next_good_one);
    tcase_add_test(bad, a_vanished_or_strange_file_is_skipped);
    tcase_add_test(bad, a_file_that_may_not_be_read_is_skipped);
    tcase_add_test(bad, nothing_but_bad_samples_is_an_error);
    tcase_add_loop_test(bad, so_many_bad_samples_in_a_row_are_an_error, 0, 2);
    tcase_add_test(bad, evaluation_leaves_bad_samples_out);
    suite_add_tcase(suite, bad);
    return suite_run(suite);
}
