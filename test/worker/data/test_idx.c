/* The MNIST family's files: read as they are, plain and packed, and every way in which they can be wrong. */
#include "test/worker/data/data_fixture.h"
#include "test/workplace.h"

#include <sched.h>
#include <sys/wait.h>

static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
enum { TRAIN_IMAGES, TRAIN_LABELS, EVALUATION_IMAGES, EVALUATION_LABELS, FILES, SAMPLES = 12 };

static struct idx_file files[FILES];

static void set_up(void)
{
    data_open();
    files[TRAIN_IMAGES] = files[EVALUATION_IMAGES] = idx_images(SAMPLES, 4, 4);
    files[TRAIN_LABELS] = files[EVALUATION_LABELS] = idx_labels(SAMPLES);
    for (int i = 0; i < FILES; i++)
        data_write(names[i], files[i].bytes, files[i].count);
}

static struct error error;

static enum status probe(void)
{
    struct dataset_info info;
    error = (struct error){0};
    return dataset_probe(&info, &data.job, &error);
}

/* Of both splits, the first failure. */
static enum status open_both(void)
{
    enum status status = STATUS_OK;
    error = (struct error){0};
    for (int split = 0; split < 2 && status == STATUS_OK; split++) {
        struct dataset *dataset = NULL;
        status = dataset_open(&dataset, &data.job, split, &error);
        dataset_free(dataset);
    }
    return status;
}

/* That both say the same, which has `text` and names the file. */
static void expect_refusal(enum status expected, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s", data_path(name));
    for (int i = 0; i < 2; i++) {
        enum status status = i == 0 ? probe() : open_both();
        ck_assert_msg(status == expected, "status %d: %s", status, error.text);
        ck_assert_msg(strstr(error.text, path) != NULL, "expected %s in: %s", path, error.text);
        ck_assert_msg(strstr(error.text, text) != NULL, "expected \"%s\" in: %s", text, error.text);
    }
}

/* That only reading finds it. */
static void expect_late_refusal(const char *name, const char *text)
{
    ck_assert_msg(probe() == STATUS_OK, "%s", error.text);
    ck_assert_msg(open_both() == STATUS_CORRUPT, "%s", error.text);
    ck_assert_msg(strstr(error.text, data_path(name)) != NULL, "expected the name in: %s", error.text);
    ck_assert_msg(strstr(error.text, text) != NULL, "expected \"%s\" in: %s", text, error.text);
}

static void pack(int i)
{
    char name[64];
    snprintf(name, sizeof name, "%s.gz", names[i]);
    unlink(data_path(names[i]));
    data_write_packed(name, files[i].bytes, files[i].count);
}

/* ---- good files ---- */

static void check_samples(uint32_t height, uint32_t width)
{
    struct image image = {0};
    for (int split = 0; split < 2; split++) {
        struct dataset *dataset = NULL;
        ck_assert_msg(dataset_open(&dataset, &data.job, split, &error) == STATUS_OK, "%s", error.text);
        ck_assert_uint_eq(dataset_count(dataset), SAMPLES);
        for (uint32_t i = 0; i < SAMPLES; i++) {
            int32_t label;
            ck_assert_int_eq(dataset_read(dataset, i, &image, &label, &error), STATUS_OK);
            ck_assert_int_eq(label, i % 10);
            ck_assert(image.width == width && image.height == height && image.channels == 1);
            for (uint32_t p = 0; p < height * width; p++)
                ck_assert_uint_eq(image.pixels[p], 7 * i + p);
        }
        dataset_free(dataset);
    }
    image_fini(&image);
}

START_TEST(plain_and_packed_files_are_read_alike)
{
    struct dataset_info info;
    if (_i == 1)
        for (int i = 0; i < FILES; i++)
            pack(i);
    ck_assert_int_eq(dataset_probe(&info, &data.job, &error), STATUS_OK);
    ck_assert_uint_eq(info.train, SAMPLES);
    ck_assert_uint_eq(info.evaluation, SAMPLES);
    check_samples(4, 4);
}
END_TEST

START_TEST(images_may_have_any_shape)
{
    files[TRAIN_IMAGES] = idx_images(SAMPLES, 3, 5);
    data_write(names[TRAIN_IMAGES], files[TRAIN_IMAGES].bytes, files[TRAIN_IMAGES].count);
    data_write(names[EVALUATION_IMAGES], files[TRAIN_IMAGES].bytes, files[TRAIN_IMAGES].count);
    check_samples(3, 5);
}
END_TEST

/* RFC 1952 lets a file be several members. */
START_TEST(a_packed_file_of_two_members_is_one_file)
{
    const struct idx_file *file = &files[TRAIN_IMAGES];
    uint8_t packed[2 * IDX_BYTES_MAX];
    size_t bytes = data_pack(packed, IDX_BYTES_MAX, file->bytes, 50);
    bytes += data_pack(packed + bytes, IDX_BYTES_MAX, file->bytes + 50, file->count - 50);
    unlink(data_path(names[TRAIN_IMAGES]));
    data_write("train-images-idx3-ubyte.gz", packed, bytes);
    check_samples(4, 4);
}
END_TEST

START_TEST(a_plain_file_goes_before_a_packed_one)
{
    data_write("train-images-idx3-ubyte.gz", "no gzip", 7);
    check_samples(4, 4);
}
END_TEST

/* ---- missing ones ---- */

START_TEST(a_missing_file_is_named)
{
    unlink(data_path(names[_i]));
    expect_refusal(STATUS_NOT_FOUND, names[_i], "no such file");
}
END_TEST

/* Where another folder is the root of all, whatever is installed here is not there. */
static bool leave_this_root(void)
{
    return chroot(data.folder) == 0 || (unshare(CLONE_NEWUSER) == 0 && chroot(data.folder) == 0);
}

START_TEST(a_missing_fashion_mnist_names_the_package)
{
    static const char *const paths[] = {"/usr/share/datasets/fashion-mnist",
                                        "/usr/share/datasets/fashion-mnist/", "/usr/share/datasets/other"};
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (!leave_this_root())
            _exit(77);
        snprintf(data.job.data.path, sizeof data.job.data.path, "%s", paths[_i]);
        bool named = probe() == STATUS_NOT_FOUND &&
                     strstr(error.text, ": install the Debian package dataset-fashion-mnist") != NULL;
        _exit(named == (_i < 2) ? 0 : 1);
    }
    int state;
    ck_assert_int_eq(waitpid(pid, &state, 0), pid);
    ck_assert(WIFEXITED(state));
    if (WEXITSTATUS(state) == 77)
        puts("test_idx: the missing package's name is not tested: chroot is not permitted");
    else
        ck_assert_int_eq(WEXITSTATUS(state), 0);
}
END_TEST

START_TEST(what_is_no_file_is_refused)
{
    unlink(data_path(names[TRAIN_IMAGES]));
    if (_i == 0)
        data_make_folder(names[TRAIN_IMAGES]);
    else
        ck_assert_int_eq(mkfifo(data_path(names[TRAIN_IMAGES]), 0600), 0);
    expect_refusal(STATUS_IO, names[TRAIN_IMAGES], "expected a regular file");
}
END_TEST

START_TEST(a_file_that_may_not_be_read_is_named)
{
    if (geteuid() == 0) {
        puts("test_idx: unreadable files are not tested: root reads them all");
        return;
    }
    ck_assert_int_eq(chmod(data_path(names[TRAIN_LABELS]), 0), 0);
    expect_refusal(STATUS_PERMISSION, names[TRAIN_LABELS], "ermission");
}
END_TEST

/* ---- cut and overlong ones ---- */

START_TEST(a_file_cut_anywhere_is_corrupt)
{
    for (size_t count = 0; count < files[_i].count; count++) {
        char text[64];
        data_write(names[_i], files[_i].bytes, count);
        snprintf(text, sizeof text, "ends at offset %zu, expected ", count);
        expect_refusal(STATUS_CORRUPT, names[_i], text);
    }
}
END_TEST

START_TEST(an_overlong_file_is_corrupt)
{
    char text[64];
    snprintf(text, sizeof text, "goes on at offset %zu, expected its end at offset %zu", files[_i].count,
             files[_i].count);
    data_write(names[_i], files[_i].bytes, files[_i].count + 1);
    expect_refusal(STATUS_CORRUPT, names[_i], text);
}
END_TEST

/* The size of a packed file says nothing: what is inflated is counted. */
START_TEST(packed_contents_of_another_length_are_corrupt)
{
    char text[64], name[64];
    snprintf(name, sizeof name, "%s.gz", names[_i]);
    unlink(data_path(names[_i]));
    data_write_packed(name, files[_i].bytes, files[_i].count - 1);
    snprintf(text, sizeof text, "ends at inflated offset %zu, expected 1 more", files[_i].count - 1);
    expect_late_refusal(name, text);
    data_write_packed(name, files[_i].bytes, files[_i].count + 1);
    snprintf(text, sizeof text, "goes on at inflated offset %zu, where it should end", files[_i].count);
    expect_late_refusal(name, text);
}
END_TEST

START_TEST(a_packed_file_cut_anywhere_is_corrupt)
{
    uint8_t packed[IDX_BYTES_MAX];
    const size_t bytes = data_pack(packed, sizeof packed, files[_i].bytes, files[_i].count);
    char name[64];
    snprintf(name, sizeof name, "%s.gz", names[_i]);
    unlink(data_path(names[_i]));
    for (size_t count = 0; count < bytes; count++) {
        data_write(name, packed, count);
        ck_assert_msg(open_both() == STATUS_CORRUPT, "cut to %zu bytes", count);
        ck_assert_ptr_nonnull(strstr(error.text, data_path(name)));
        ck_assert_ptr_nonnull(strstr(error.text, count < 2 ? "ends at offset" : "inflated offset"));
    }
}
END_TEST

START_TEST(damaged_packed_data_is_corrupt)
{
    uint8_t packed[IDX_BYTES_MAX];
    const size_t bytes = data_pack(packed, sizeof packed, files[0].bytes, files[0].count);
    unlink(data_path(names[0]));
    packed[bytes - 5] ^= 1; // the check sum's last byte
    data_write("train-images-idx3-ubyte.gz", packed, bytes);
    expect_refusal(STATUS_CORRUPT, "train-images-idx3-ubyte.gz",
                   "packed data damaged behind inflated offset 0");
}
END_TEST

/* ---- headers ---- */

static const struct {
    int file, at;
    uint32_t word;
    const char *text;
} words[] = {
    {TRAIN_IMAGES, 0, 0x801, "offset 0: expected the magic number 00000803, got 00000801"},
    {TRAIN_IMAGES, 0, 0x08030000, "offset 0: expected the magic number"},
    {TRAIN_IMAGES, 0, 0x903, "offset 0: expected the magic number"}, // signed bytes
    {TRAIN_LABELS, 0, 0x803, "offset 0: expected the magic number 00000801, got 00000803"},
    {EVALUATION_LABELS, 0, 0x1801, "offset 0: expected the magic number"},
    {TRAIN_IMAGES, 4, 0, "offset 4: expected 1..2147483647 samples, got 0"},
    {TRAIN_IMAGES, 4, 0x80000000, "offset 4: expected 1..2147483647 samples, got 2147483648"},
    {TRAIN_IMAGES, 4, 11, "goes on at offset 192, expected its end at offset 192"},
    {TRAIN_IMAGES, 4, 13, "ends at offset 208, expected its end at offset 224"},
    {TRAIN_IMAGES, 4, 0x7fffffff, "ends at offset 208, expected its end at offset 34359738368"},
    {TRAIN_LABELS, 4, 11, "offset 4: 11 labels, where "},
    {EVALUATION_LABELS, 4, 13, "offset 4: 13 labels, where "},
    {TRAIN_IMAGES, 8, 0, "offset 8: expected images of 1..16384 x 1..16384 pixels, got 0 x 4"},
    {TRAIN_IMAGES, 12, 0, "offset 8: expected images of"},
    {TRAIN_IMAGES, 8, 16385, "offset 8: expected images of"},
    {TRAIN_IMAGES, 12, 0xffffffff, "offset 8: expected images of"},
};

START_TEST(a_wrong_word_in_a_header_is_named)
{
    struct idx_file *file = &files[words[_i].file];
    const char *name = names[words[_i].file];
    idx_word(file->bytes + words[_i].at, words[_i].word);
    data_write(name, file->bytes, file->count);
    expect_refusal(STATUS_CORRUPT, name, words[_i].text);
}
END_TEST

/* A few packed bytes that promise 2 GB are not believed, and nothing is allocated for them. */
START_TEST(a_packed_header_that_promises_too_much_is_refused)
{
    idx_word(files[0].bytes + 4, 0x7fffffff);
    unlink(data_path(names[0]));
    data_write_packed("train-images-idx3-ubyte.gz", files[0].bytes, files[0].count);
    expect_refusal(STATUS_CORRUPT, "train-images-idx3-ubyte.gz", "announces 34359738368 bytes");
}
END_TEST

START_TEST(a_label_beyond_the_classes_is_named)
{
    files[EVALUATION_LABELS].bytes[IDX_LABELS_HEADER + 5] = 10;
    data_write(names[EVALUATION_LABELS], files[EVALUATION_LABELS].bytes, files[EVALUATION_LABELS].count);
    expect_late_refusal(names[EVALUATION_LABELS], "offset 13: label 10, where /model/classes is 10");
    data.job.model.classes = 9;
    expect_late_refusal(names[TRAIN_LABELS], "offset 17: label 9, where /model/classes is 9");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("idx");
    TCase *reading = tcase_create("reading");
    tcase_add_checked_fixture(reading, set_up, data_close);
    tcase_add_loop_test(reading, plain_and_packed_files_are_read_alike, 0, 2);
    tcase_add_test(reading, images_may_have_any_shape);
    tcase_add_test(reading, a_packed_file_of_two_members_is_one_file);
    tcase_add_test(reading, a_plain_file_goes_before_a_packed_one);
    tcase_add_loop_test(reading, a_missing_file_is_named, 0, FILES);
    tcase_add_loop_test(reading, a_missing_fashion_mnist_names_the_package, 0, 3);
    tcase_add_loop_test(reading, what_is_no_file_is_refused, 0, 2);
    tcase_add_test(reading, a_file_that_may_not_be_read_is_named);
    tcase_add_loop_test(reading, a_file_cut_anywhere_is_corrupt, 0, FILES);
    tcase_add_loop_test(reading, an_overlong_file_is_corrupt, 0, FILES);
    tcase_add_loop_test(reading, packed_contents_of_another_length_are_corrupt, 0, FILES);
    tcase_add_loop_test(reading, a_packed_file_cut_anywhere_is_corrupt, 0, FILES);
    tcase_add_test(reading, damaged_packed_data_is_corrupt);
    tcase_add_loop_test(reading, a_wrong_word_in_a_header_is_named, 0, sizeof words / sizeof *words);
    tcase_add_test(reading, a_packed_header_that_promises_too_much_is_refused);
    tcase_add_test(reading, a_label_beyond_the_classes_is_named);
    suite_add_tcase(suite, reading);
    return suite_run(suite);
}
