/* The files of a model-parallel job's checkpoint that other checkpoints lack: the vocabulary, the
 * trainers' hidden state, and the state of the learning rate's schedule. */
#include "test/worker/checkpoint/checkpoint_fixture.h"

#include <math.h>
#include <unistd.h>

static const struct checkpoint_text text = {.tokens = 97, .sha256 = {0xC0, 0xC1, 0xC2}};
static const char words[] = "<unk>\n<eos>\nthe\ngr\xC3\xB6\xC3\x9F"
                            "e\n";
enum { WORDS_BYTES = sizeof words - 1, STATE_ELEMENTS = 6 };

static struct params *state_new(const char *name, float begin)
{
    struct params *state = NULL;
    struct parameter *parameter;
    float values[STATE_ELEMENTS];
    for (int i = 0; i < STATE_ELEMENTS; i++)
        values[i] = begin + (float)i / 3;
    CK_OK(params_new(&state, checkpoint_backend, &checkpoint_error));
    CK_OK(params_add(state, name, PARAMETER_BUFFER, SHAPE2(2, 3), (struct init){INIT_CONSTANT, 0}, &parameter,
                     &checkpoint_error));
    CK_OK(params_build(state, 1, &checkpoint_error));
    CK_OK(params_write(state, parameter, DTYPE_F32, values, &checkpoint_error));
    return state;
}

static struct checkpoint_counters counters_extra(double best_loss)
{
    struct checkpoint_counters counters = counters_of(7);
    counters.line_loss = 2.0 / 3;
    counters.lr = 20 * 0.25;
    counters.best_loss = best_loss;
    return counters;
}

static enum status write_checkpoint(const struct checkpoint_counters *counters,
                                    const struct checkpoint_extra *extra)
{
    struct member member;
    member_open(&member, 0, 1, false, true);
    member_write(&member, 40);
    enum status status = checkpoint_begin(path_of(workplace.run_dir), counters->update, &checkpoint_error);
    if (status == STATUS_OK)
        status = checkpoint_write(path_of(workplace.run_dir), counters, &checkpoint_place, &member.values,
                                  extra, &checkpoint_error);
    if (status == STATUS_OK)
        status = checkpoint_publish(path_of(workplace.run_dir), counters->update, 3, &checkpoint_error);
    member_close(&member);
    return status;
}

/* Checkpoint 7 with all there can be. */
static void make_whole(double best_loss)
{
    const struct checkpoint_counters counters = counters_extra(best_loss);
    struct checkpoint_extra extra = {
        .text = text, .vocabulary = {words, WORDS_BYTES}, .state = state_new("trainer0.h", 1)};
    CK_OK(write_checkpoint(&counters, &extra));
    params_free(extra.state);
}

START_TEST(all_of_it_comes_back)
{
    const double bests[] = {4.75, INFINITY, -0.0};
    for (size_t i = 0; i < sizeof bests / sizeof bests[0]; i++) {
        struct checkpoint_counters counters;
        struct checkpoint_text of_text;
        struct params *state = state_new("trainer0.h", -5);
        float values[STATE_ELEMENTS];
        char *vocabulary = NULL;
        size_t bytes;
        make_whole(bests[i]);
        expect_names("00000007", "manifest.json model.safetensors optimizer.safetensors state.safetensors "
                                 "vocabulary.txt");
        CK_OK(checkpoint_check(path_of(checkpoint_at("00000007")), &counters, &checkpoint_error));
        expect_counters(&counters, 7);
        ck_assert(counters.line_loss == 2.0 / 3 && counters.lr == 5);
        ck_assert_mem_eq(&counters.best_loss, &bests[i], sizeof bests[i]);
        CK_OK(checkpoint_facts(path_of(checkpoint_at("00000007")), &counters, &of_text, &checkpoint_error));
        ck_assert_uint_eq(of_text.tokens, 97);
        ck_assert_mem_eq(of_text.sha256, text.sha256, sizeof text.sha256);
        CK_OK(checkpoint_read(path_of(checkpoint_at("00000007")), CHECKPOINT_VOCABULARY, &vocabulary, &bytes,
                              &checkpoint_error));
        ck_assert_uint_eq(bytes, WORDS_BYTES);
        ck_assert_str_eq(vocabulary, words);
        CK_OK(checkpoint_load_state(path_of(checkpoint_at("00000007")), state, &checkpoint_error));
        CK_OK(params_read(state, params_at(state, 0), DTYPE_F32, values, &checkpoint_error));
        for (int j = 0; j < STATE_ELEMENTS; j++)
            ck_assert_float_eq(values[j], 1 + (float)j / 3);
        free(vocabulary);
        params_free(state);
    }
}
END_TEST

/* Synthetic data has no words, and a job whose trainers carry nothing on has no state. */
START_TEST(what_is_not_there_is_not_missed)
{
    const struct checkpoint_counters counters = counters_extra(INFINITY);
    const struct checkpoint_extra extra = {0};
    struct checkpoint_counters read;
    struct checkpoint_text of_text;
    char path[CHECKPOINT_PATH_BYTES], *vocabulary = NULL;
    size_t bytes;
    CK_OK(write_checkpoint(&counters, &extra));
    expect_names("00000007", "manifest.json model.safetensors optimizer.safetensors");
    CK_OK(find_newest(path, &read));
    ck_assert(read.lr == 5 && isinf(read.best_loss));
    CK_OK(checkpoint_read(path_of(path), CHECKPOINT_VOCABULARY, &vocabulary, &bytes, &checkpoint_error));
    ck_assert(vocabulary == NULL && bytes == 0);
    CK_OK(checkpoint_facts(path_of(path), &read, &of_text, &checkpoint_error));
    ck_assert_uint_eq(of_text.tokens, 0);
    struct params *state = state_new("trainer0.h", 1);
    expect_failure(checkpoint_load_state(path_of(path), state, &checkpoint_error), STATUS_NOT_FOUND,
                   "state.safetensors");
    params_free(state);
}
END_TEST

static void damage(const char *name, const char *bytes, size_t count)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", checkpoint_at("00000007"), name);
    FILE *file = fopen(path, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(a_damaged_one_is_found_out)
{
    struct checkpoint_counters counters;
    char path[256], *vocabulary = NULL;
    size_t bytes;
    make_whole(1);
    damage("vocabulary.txt", "<UNK>", 5);
    expect_failure(checkpoint_check(path_of(checkpoint_at("00000007")), &counters, &checkpoint_error),
                   STATUS_CORRUPT, "vocabulary.txt: its SHA-256 differs from the manifest's");
    expect_failure(checkpoint_read(path_of(checkpoint_at("00000007")), CHECKPOINT_VOCABULARY, &vocabulary,
                                   &bytes, &checkpoint_error),
                   STATUS_CORRUPT, "vocabulary.txt: its SHA-256 differs from the manifest's");
    ck_assert_ptr_null(vocabulary);
    make_whole(1);
    damage("state.safetensors", "\x7F", 1);
    expect_failure(checkpoint_check(path_of(checkpoint_at("00000007")), &counters, &checkpoint_error),
                   STATUS_CORRUPT, "state.safetensors: its SHA-256 differs from the manifest's");
    make_whole(1);
    snprintf(path, sizeof path, "%s/vocabulary.txt", checkpoint_at("00000007"));
    ck_assert_int_eq(truncate(path, 3), 0);
    expect_failure(checkpoint_read(path_of(checkpoint_at("00000007")), CHECKPOINT_VOCABULARY, &vocabulary,
                                   &bytes, &checkpoint_error),
                   STATUS_CORRUPT, "vocabulary.txt: 3 bytes, expected");
    ck_assert_int_eq(unlink(path), 0);
    expect_failure(checkpoint_check(path_of(checkpoint_at("00000007")), &counters, &checkpoint_error),
                   STATUS_NOT_FOUND, "vocabulary.txt");
    expect_failure(checkpoint_read(path_of(checkpoint_at("00000007")), CHECKPOINT_VOCABULARY, &vocabulary,
                                   &bytes, &checkpoint_error),
                   STATUS_NOT_FOUND, "vocabulary.txt");
}
END_TEST

START_TEST(another_state_changes_nothing)
{
    struct params *state = state_new("trainer1.h", -5);
    float values[STATE_ELEMENTS];
    make_whole(1);
    expect_failure(checkpoint_load_state(path_of(checkpoint_at("00000007")), state, &checkpoint_error),
                   STATUS_INVALID, "state.safetensors does not fit the model");
    CK_OK(params_read(state, params_at(state, 0), DTYPE_F32, values, &checkpoint_error));
    ck_assert_float_eq(values[0], -5);
    params_free(state);
}
END_TEST

START_TEST(what_is_not_finite_is_refused)
{
    const struct checkpoint_extra extra = {0};
    struct checkpoint_counters counters = counters_extra(1);
    counters.line_loss = NAN;
    expect_failure(write_checkpoint(&counters, &extra), STATUS_INVALID,
                   "checkpoint 00000007: the loss since the last line is nan");
    CK_OK(write_checkpoint(&counters, NULL)); /* of another kind of job, where it means nothing */
    counters = counters_extra(1);
    counters.lr = INFINITY;
    expect_failure(write_checkpoint(&counters, &extra), STATUS_INVALID, "the learning rate is inf");
    counters = counters_extra(-INFINITY);
    expect_failure(write_checkpoint(&counters, &extra), STATUS_INVALID, "the lowest loss is -inf");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint extra");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, checkpoint_open, checkpoint_close);
    tcase_add_test(files, all_of_it_comes_back);
    tcase_add_test(files, what_is_not_there_is_not_missed);
    tcase_add_test(files, a_damaged_one_is_found_out);
    tcase_add_test(files, another_state_changes_nothing);
    tcase_add_test(files, what_is_not_finite_is_refused);
    suite_add_tcase(suite, files);
    return suite_run(suite);
}
