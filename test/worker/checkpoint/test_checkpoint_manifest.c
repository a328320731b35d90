/* The manifest of a checkpoint: a written manifest is read again, and any other text is refused with its
 * place. */
#include "test/workplace.h"
#include "worker/checkpoint/checkpoint_manifest.h"

#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct manifest manifest_sound(void)
{
    struct manifest manifest = {.place = {.run = {.id = {1, 2}, .seed = 543, .numbers = {3}},
                                          .logs = {{.lines = 4, .bytes = 500, .sha256 = {6}},
                                                   {.lines = 3, .bytes = 100, .sha256 = {7}}}},
                                .counters = {.update = 120, .trainers = 2, .steps = {120, 119}, .late = 3},
                                .entries = 9,
                                .elements = 9500,
                                .momentum = true};
    manifest.counters.epoch_loss = 0.25;
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        manifest.files[i].bytes = 1000 + (uint64_t)i;
        memset(manifest.files[i].sha256, 0xA0 + i, sizeof manifest.files[i].sha256);
    }
    return manifest;
}

/* One of a model-parallel job. */
static struct manifest manifest_extra(void)
{
    struct manifest manifest = manifest_sound();
    manifest.extra = true;
    manifest.counters.line_loss = 0.5;
    manifest.counters.lr = 20;
    manifest.counters.best_loss = 4.75;
    manifest.files[CHECKPOINT_VOCABULARY].bytes = 2000;
    memset(manifest.files[CHECKPOINT_VOCABULARY].sha256, 0xB0, crypto_hash_sha256_BYTES);
    manifest.files[CHECKPOINT_STATE].bytes = 2001;
    memset(manifest.files[CHECKPOINT_STATE].sha256, 0xB1, crypto_hash_sha256_BYTES);
    manifest.text.tokens = 240;
    memset(manifest.text.sha256, 0xC0, sizeof manifest.text.sha256);
    return manifest;
}

static void refuse_text(const char *text, size_t length, const char *words)
{
    struct manifest manifest;
    struct error error = {0};
    enum status status = manifest_parse(&manifest, "m.json", text, length, &error);
    ck_assert_msg(status == STATUS_CORRUPT && error.status == STATUS_CORRUPT,
                  "%s\nexpected corrupt, got %s: %s", text, status_name(status), error.text);
    ck_assert_msg(strncmp(error.text, "m.json:", 7) == 0 && strstr(error.text, words) != NULL,
                  "\"%s\" does not say \"%s\"", error.text, words);
}

START_TEST(what_is_written_is_read)
{
    struct manifest manifest = manifest_sound(), again;
    struct error error = {0};
    size_t bytes;
    char *text = manifest_format(&manifest, &bytes);
    ck_assert_msg(manifest_parse(&again, "m.json", text, bytes, &error) == STATUS_OK, "%s", error.text);
    ck_assert(again.counters.update == 120 && again.counters.trainers == 2 && again.counters.late == 3);
    ck_assert_mem_eq(&again.place, &manifest.place, sizeof again.place);
    ck_assert_mem_eq(again.counters.steps, manifest.counters.steps, sizeof again.counters.steps);
    ck_assert_double_eq(again.counters.epoch_loss, 0.25);
    ck_assert_mem_eq(again.files, manifest.files, sizeof again.files);
    ck_assert(again.entries == 9 && again.elements == 9500 && again.momentum);
    free(text);
}
END_TEST

static void expect_read_extra(const struct manifest *manifest)
{
    const struct checkpoint_counters *counters = &manifest->counters;
    struct manifest again;
    struct error error = {0};
    size_t bytes;
    char *text = manifest_format(manifest, &bytes);
    ck_assert_msg(manifest_parse(&again, "m.json", text, bytes, &error) == STATUS_OK, "%s", error.text);
    ck_assert(again.extra);
    ck_assert_mem_eq(&again.counters.line_loss, &counters->line_loss, sizeof(double));
    ck_assert_mem_eq(&again.counters.lr, &counters->lr, sizeof(double));
    ck_assert_mem_eq(&again.counters.best_loss, &counters->best_loss, sizeof(double));
    ck_assert_mem_eq(again.files, manifest->files, sizeof again.files);
    ck_assert_uint_eq(again.text.tokens, manifest->text.tokens);
    ck_assert_mem_eq(again.text.sha256, manifest->text.sha256, sizeof again.text.sha256);
    ck_assert_int_eq(strstr(text, "\"text\"") != NULL, manifest->text.tokens > 0);
    ck_assert_int_eq(strstr(text, "vocabulary.txt") != NULL, manifest_has(manifest, CHECKPOINT_VOCABULARY));
    ck_assert_int_eq(strstr(text, "state.safetensors") != NULL, manifest_has(manifest, CHECKPOINT_STATE));
    free(text);
}

START_TEST(what_is_written_of_a_model_parallel_job_is_read)
{
    struct manifest manifest = manifest_extra();
    expect_read_extra(&manifest);
    manifest.counters.best_loss = INFINITY;
    manifest.counters.line_loss = -0.0;
    manifest.counters.lr = 5e-324;
    memset(&manifest.files[CHECKPOINT_VOCABULARY], 0, sizeof manifest.files[0]);
    expect_read_extra(&manifest);
    memset(&manifest.files[CHECKPOINT_STATE], 0, sizeof manifest.files[0]);
    expect_read_extra(&manifest);
    manifest.text = (struct checkpoint_text){0}; /* as older ones are */
    expect_read_extra(&manifest);
}
END_TEST

/* What stands in a sound manifest, what is put there instead, and what is said of it. */
static const struct {
    const char *from, *to, *words;
} changes[] = {
    /* not JSON, or more than one reading of it */
    {"{\n  \"format\"", "\xEF\xBB\xBF{\n  \"format\"", "m.json:1:1: "},
    {"120,", "0120,", "m.json:3:13: "},
    {"0.25", "1e999", "too large"},
    {"0.25", "NaN", "m.json:6:17: "},
    {"\n}\n", "\n", "m.json:"},
    {"\n}\n", "\n} x\n", "m.json:"},
    {"\"late\": 3", "\"late\": 3, \"late\": 3", "/late: duplicate key; it stands already at 5:3"},
    {"\"late\": 3", "\"late\": 3, \"l\\u0061te\": 3", "/late: duplicate key"},
    {"\"late\"", "\"lat\xC3\"", "m.json:5:"},
    /* another text of the same values */
    {"\n}\n", "\n}\n ", "m.json:21: expected the end of the file"},
    {"\n}\n", "\n}", "m.json:20: expected }"},
    {"\"late\": 3", "\"late\":  3", "m.json:5: expected \"late\": 3,"},
    {"120,", "12e1,", "m.json:3: expected \"update\": 12,"},
    {"0.25", "0.250", "m.json:6: expected \"epoch_loss\": 0.25,"},
    {"\"sha256\": \"a0", "\"sha256\": \"A0", "m.json:16: expected \"model.safetensors\": {\"bytes\": 1000, "},
    /* keys */
    {"\"late\": 3", "\"Late\": 3", "m.json:5: expected \"late\": 0,"},
    {"  \"late\": 3,\n", "", "m.json:5: expected \"late\": 0,"},
    {"\"late\": 3", "\"late\": 3, \"time\": 1", "m.json:5: expected \"late\": 3,"},
    {"\"bytes\": 1001, ", "", "m.json:17: expected \"optimizer.safetensors\": {\"bytes\": 0, "},
    {"\"optimizer.safetensors\"", "\"../../secret\"", "m.json:17: expected \"optimizer.safetensors\""},
    /* values */
    {"\"format\": 2", "\"format\": 3", "m.json:2: expected \"format\": 2,"},
    {"120,", "\"120\",", "m.json:3: expected \"update\": 0,"},
    {"120,", "-1,", "m.json:3: expected \"update\": 18446744073709551615,"},
    {"120,", "18446744073709551616,", "m.json:3: expected \"update\": 18446744073709551615,"},
    {"[120, 119]", "120", "m.json:4: expected \"steps\": [],"},
    {"[120, 119]", "{\"a\": 120}", "m.json:4: expected \"steps\": [120],"},
    {"[120, 119]", "[120, [119]]", "m.json:4: expected \"steps\": [120, 0],"},
    {"0.25", "\"0.25\"", "m.json:6: expected \"epoch_loss\": 0,"},
    {"9,\n", "4294967296,\n", "m.json:7: expected \"entries\": 0,"},
    {"true", "1", "m.json:9: expected \"momentum\": false,"},
    {"\"sha256\": \"a1", "\"sha256\": \"a1a1", "m.json:17: expected \"optimizer.safetensors\""},
    {"\"seed\": 543", "\"seed\": \"543\"", "m.json:10: expected \"run\": {\"id\": \"0102"},
    {"\"numbers\": \"03", "\"numbers\": \"03x", "m.json:10: expected \"run\": "},
    {"\"lines\": 4, ", "", "m.json:12: expected \"episodes.jsonl\": {\"lines\": 0, "},
    {"\"episodes.log\"", "\"episodes.txt\"", "m.json:13: expected \"episodes.log\""},
    /* sound, but not what was written */
    {"\"bytes\": 500", "\"bytes\": 501", "m.json:19: expected \"sha256\": \""},
    {"\"late\": 3", "\"late\": 4", "m.json:19: expected \"sha256\": \""},
    {"0.25", "0.25000000000000006", "m.json:19: expected \"sha256\": \""},
    {"120,", "121,", "m.json:19: expected \"sha256\": \""},
    {"119]", "119, 0]", "m.json:19: expected \"sha256\": \""},
    {"true", "false", "m.json:19: expected \"sha256\": \""},
    {"\"sha256\": \"a0", "\"sha256\": \"a1", "m.json:19: expected \"sha256\": \""},
};

/* The same of a model-parallel job's. */
static const struct {
    const char *from, *to, *words;
} extra_changes[] = {
    {"  \"lr\": 20,\n", "", "m.json:8: expected \"lr\": 0,"},
    {"  \"line_loss\": 0.5,\n", "", "m.json:7: expected \"entries\": 9,"},
    {"  \"best_loss\": 4.75,\n", "", "m.json:9: expected \"best_loss\": "},
    {"0.5,", "null,", "m.json:7: expected \"line_loss\": 0,"},
    {"4.75", "false", "m.json:9: expected \"best_loss\": 0,"},
    {"4.75", "null", "m.json:25: expected \"sha256\": \""},
    {"\"tokens\": 240", "\"tokens\": 0", "m.json:10: expected \"entries\": 9,"},
    {"\"tokens\": 240", "\"tokens\": 241", "m.json:25: expected \"sha256\": \""},
    {"\"bytes\": 2000", "\"bytes\": 0", "m.json:22: expected \"state.safetensors\""},
    {"\"vocabulary.txt\"", "\"vocabulary\"", "m.json:22: expected \"state.safetensors\""},
    {"\"state.safetensors\"", "\"model.safetensors\"", "duplicate key"},
    {"\"sha256\": \"b1", "\"sha256\": \"b2", "m.json:25: expected \"sha256\": \""},
};

static char *change(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *changed = NULL;
    ck_assert_msg(at != NULL, "\"%s\" is not in the manifest", from);
    ck_assert_int_ge(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)), 0);
    return changed;
}

/* A double that needs all of its digits. */
START_TEST(a_score_is_read_by_its_measures_name)
{
    struct manifest manifest = manifest_sound(), again;
    struct error error = {0};
    size_t bytes;
    manifest.counters.score = (struct checkpoint_score){CHECKPOINT_RUNNING_REWARD, 1 / 3.0};
    char *text = manifest_format(&manifest, &bytes);
    ck_assert_ptr_nonnull(strstr(text, "\n  \"running_reward\": 0.33333333333333331,\n"));
    ck_assert_msg(manifest_parse(&again, "m.json", text, bytes, &error) == STATUS_OK, "%s", error.text);
    ck_assert_int_eq(again.counters.score.measure, CHECKPOINT_RUNNING_REWARD);
    ck_assert_double_eq(again.counters.score.value, 1 / 3.0);
    char *other = change(text, "running_reward", "running_rewart");
    refuse_text(other, bytes, "m.json:7: expected \"entries\": 9,");
    free(other);
    free(text);
}
END_TEST

START_TEST(anything_else_is_refused_with_its_place)
{
    const struct manifest manifest = manifest_sound();
    size_t bytes;
    char *text = manifest_format(&manifest, &bytes);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *changed = change(text, changes[i].from, changes[i].to);
        refuse_text(changed, strlen(changed), changes[i].words);
        free(changed);
    }
    refuse_text("", 0, "m.json:1:1: ");
    refuse_text("[]", 2, "m.json:1: expected {");
    refuse_text("12", 2, "m.json:1: expected {");
    refuse_text("{}\0", 3, "m.json:1:3: ");
    free(text);
}
END_TEST

START_TEST(anything_else_of_a_model_parallel_job_is_refused)
{
    const struct manifest manifest = manifest_extra();
    size_t bytes;
    char *text = manifest_format(&manifest, &bytes);
    for (size_t i = 0; i < sizeof extra_changes / sizeof extra_changes[0]; i++) {
        char *changed = change(text, extra_changes[i].from, extra_changes[i].to);
        refuse_text(changed, strlen(changed), extra_changes[i].words);
        free(changed);
    }
    free(text);
}
END_TEST

START_TEST(no_changed_bit_and_no_cut_passes)
{
    const struct manifest manifest = _i == 0 ? manifest_sound() : manifest_extra();
    size_t bytes;
    char *text = manifest_format(&manifest, &bytes);
    for (size_t at = 0; at < bytes; at++)
        for (unsigned bit = 0; bit < 8; bit++) {
            text[at] ^= (char)(1u << bit);
            refuse_text(text, bytes, "");
            text[at] ^= (char)(1u << bit);
        }
    while (bytes-- > 0) {
        text[bytes] = '\0';
        refuse_text(text, bytes, "");
    }
    free(text);
}
END_TEST

START_TEST(the_trainers_are_bounded)
{
    struct manifest manifest;
    struct error error = {0};
    struct manifest full = manifest_sound();
    full.counters.trainers = JOB_TRAINERS_MAX;
    full.counters.epoch_loss = -DBL_MAX;
    memset(full.counters.steps, 0xFF, sizeof full.counters.steps);
    size_t bytes;
    char *largest = manifest_format(&full, &bytes);
    ck_assert_uint_le(bytes, MANIFEST_BYTES_MAX);
    ck_assert_int_eq(manifest_parse(&manifest, "m.json", largest, bytes, &error), STATUS_OK);
    char *more = change(largest, "[", "[0, ");
    refuse_text(more, bytes + 3, "m.json:4: expected \"steps\": [0, ");
    struct manifest none = manifest_sound();
    none.counters.trainers = 0;
    char *without = manifest_format(&none, &bytes);
    refuse_text(without, bytes, "expected the steps of at least one trainer");
    free(without);
    free(largest);
    free(more);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint manifest");
    TCase *text = tcase_create("text");
    tcase_add_test(text, what_is_written_is_read);
    tcase_add_test(text, a_score_is_read_by_its_measures_name);
    tcase_add_test(text, what_is_written_of_a_model_parallel_job_is_read);
    tcase_add_test(text, anything_else_is_refused_with_its_place);
    tcase_add_test(text, anything_else_of_a_model_parallel_job_is_refused);
    tcase_add_loop_test(text, no_changed_bit_and_no_cut_passes, 0, 2);
    tcase_add_test(text, the_trainers_are_bounded);
    suite_add_tcase(suite, text);
    return suite_run(suite);
}
