/* Models whose training loss is finite, and whose loss on held-out data is not. The job goes on, its line has
 * null, and a warning names the epoch; `coalesced evaluate` and `coalesced generate` end with an error. The
 * test makes such a model by hand, from one that a job has saved. */
#include "kernels/safetensors/safetensors.h"
#include "test/worker/model_parallel/language_fixture.h"
#include "worker/data/vocabulary.h"

#include <fcntl.h>

/* Overwrites `count` values of an entry, from value `first` on. 0: all of them. */
static void overwrite(const char *path, const char *name, size_t first, size_t count, float value)
{
    struct safetensors *file;
    struct error error = {0};
    ck_assert_msg(safetensors_open(&file, path_of(path), &error) == STATUS_OK, "%s", error.text);
    const struct safetensors_entry *entry = safetensors_find(file, name);
    ck_assert_msg(entry != NULL, "%s has no %s", path, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    if (count == 0)
        count = entry->bytes / sizeof value;
    for (size_t i = first; i < first + count; i++)
        ck_assert_int_eq(pwrite(fd, &value, sizeof value, (off_t)(entry->offset + i * sizeof value)),
                         sizeof value);
    close(fd);
    safetensors_close(file);
}

/* The setting that has a job begin with a copy of this checkpoint's model. */
static const char *copy_model(const char *checkpoint, char path[192])
{
    static char set[224];
    char command[448], from[192];
    snprintf(command, sizeof command, "cp '%s/model.safetensors' '%s'", place(from, "first", checkpoint),
             place(path, "init.safetensors", ""));
    ck_assert_int_eq(system(command), 0);
    snprintf(set, sizeof set, "/init=%s", path);
    return set;
}

static const char *run_from(const char *const *sets, const char *init, const char *stop, bool resume)
{
    static char said[4096];
    const char *all[SETS_MAX];
    unsigned count = 0;
    for (; sets[count] != NULL; count++)
        all[count] = sets[count];
    all[count++] = stop;
    if (init != NULL)
        all[count++] = init;
    all[count] = NULL;
    server_start(workplace.run_dir, all, resume, NULL);
    char *err = server_end(0);
    snprintf(said, sizeof said, "%s", err);
    free(err);
    return said;
}

static void expect_words(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words) != NULL, "expected \"%s\" in: %s", words, text);
}

/* Runs a command on the run's newest checkpoint, and expects it to fail with these words. */
static void expect_refused(const char *command, const char *checkpoint, const char *const *sets,
                           const char *words)
{
    static struct process process;
    char path[192];
    const char *argv[8 + 2 * SETS_MAX] = {daemon_path(), command, place(path, "run", checkpoint)};
    int argc = 3;
    if (sets != NULL)
        argv[argc++] = workplace.job_path;
    for (; sets != NULL && *sets != NULL; sets++) {
        argv[argc++] = "--set";
        argv[argc++] = *sets;
    }
    process_start(&process, workplace.folder, argv, NULL);
    const int code = process_wait(&process, 100);
    char *err = process_err(&process), named[256];
    ck_assert_msg(code == 65, "exit %d: %s", code, err);
    snprintf(named, sizeof named, "%s: ", path);
    expect_words(err, named);
    expect_words(err, words);
    free(err);
}

static void expect_null(const char *wanted, unsigned times)
{
    char *json = file_read(workplace.jsonl), *text = file_read(workplace.log);
    ck_assert_msg(text_count(json, wanted) == times, "expected \"%s\" %u times in: %s", wanted, times, json);
    ck_assert_uint_eq(text_count(text, "-nan"), 0);
    free(json);
    free(text);
}

/* In training a batch norm uses the batch's mean, in an evaluation the running mean. */
START_TEST(a_classifier_trains_on)
{
    const char *sets[SETS_MAX];
    char path[192];
    server_open();
    data_sets(sets);
    server_run(place(path, "first", ""), sets, false);
    const char *init = copy_model("checkpoints/00000004", path);
    overwrite(path, "bn1.running_mean", 0, 0, -3e38F);
    overwrite(path, "bn1.running_var", 0, 0, 0);
    const char *said = run_from(sets, init, "/stop={\"epochs\":2}", false);
    expect_words(said, "epoch 1, update 2: the loss on held-out data is ");
    expect_words(said, "epoch 2, update 4: the loss on held-out data is ");
    expect_null("\"test_loss\":null,\"accuracy\":0", 2);
    ck_assert(run_has("run", "checkpoints/00000004"));
    sets[4] = init;
    sets[5] = NULL;
    run_from(sets, NULL, "/stop={\"epochs\":3}", true);
    expect_null("\"test_loss\":null,\"accuracy\":0", 3);
    expect_refused("evaluate", "checkpoints/00000006", sets, "its loss is not finite from sample 1 of ");
    server_close();
}
END_TEST

/* The held-out lines have a word that no other line has: its logit is minus infinity now and then. */
START_TEST(a_language_model_trains_on)
{
    const char *sets[SETS_MAX];
    char path[192];
    language_open();
    FILE *text = fopen(language_path("tale.txt"), "a");
    ck_assert_ptr_nonnull(text);
    for (int i = 0; i < 4; i++)
        fputs("a zebra and a zebra and a zebra\n", text);
    ck_assert_int_eq(fclose(text), 0);
    text_sets(sets);
    sets[5] = "/evaluation/every=1";
    sets[6] = NULL;
    server_run(place(path, "first", ""), sets, false);
    const char *init = copy_model("checkpoints/00000006", path);
    overwrite(path, "decoder.weight", (size_t)VOCABULARY_UNKNOWN * 5, 5, -1e38F);
    overwrite(path, "decoder.bias", VOCABULARY_UNKNOWN, 1, -3.4e38F);
    const char *said = run_from(sets, init, "/stop={\"epochs\":2}", false);
    expect_words(said, "epoch 1, update ");
    expect_words(said, ": the loss on held-out data is infinite");
    expect_null("\"held_out\":{\"loss\":null,\"perplexity\":null,\"unigram_perplexity\":", 2);
    char *json = file_read(workplace.jsonl), *end = strstr(json, "{\"epoch\":2,\"update\":");
    ck_assert_ptr_nonnull(end);
    char checkpoint[64];
    snprintf(checkpoint, sizeof checkpoint, "checkpoints/%08d",
             atoi(end + strlen("{\"epoch\":2,\"update\":")));
    free(json);
    ck_assert(run_has("run", checkpoint));
    sets[6] = init;
    sets[7] = NULL;
    run_from(sets, NULL, "/stop={\"epochs\":2}", true);
    expect_refused("evaluate", checkpoint, sets, "its loss on batch ");
    expect_refused("generate", checkpoint, NULL, "the logit of \"<unk>\" is not finite");
    workplace_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("held-out loss not finite");
    TCase *tests = tcase_create("held-out loss not finite");
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, a_classifier_trains_on);
    tcase_add_test(tests, a_language_model_trains_on);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
