/* Runs of the kind model-parallel that are broken off and resumed: whatever stopped them, their logs and
 * their checkpoints are in the end those of a run that never stopped. */
#include "kernels/safetensors/safetensors.h"
#include "test/worker/data_parallel/job_goes_on.h"
#include "test/worker/model_parallel/language_fixture.h"
#include "worker/checkpoint/checkpoint_manifest.h"

#include <sodium.h>

enum { WAYS = 4 };

/* Random data; a text, whose state is carried on and whose learning rate falls on a plateau; parts on several
 * servers; several trainers. Three updates to a line, so that a line's mean spans checkpoints. */
static const char *const ways[WAYS][WAY_SETS] = {
    {"/log/every=3"},
    {"/log/every=3", "text"},
    {"/log/every=3", "text", "/server/count=2", "/placement/decoder=server 1", "/transport=inline"},
    {"/log/every=3", "text", "/trainers/count=2", "/placement/lstm=server 0"},
};

/* The settings of a way, with these in front; ended by NULL. */
static void way_sets(const char *sets[SETS_MAX], const char *const *way, const char *stop, const char *every)
{
    unsigned count = 0;
    sets[count] = NULL;
    for (; *way != NULL; way++) {
        if (strcmp(*way, "text") != 0) {
            sets[count++] = *way;
            continue;
        }
        text_sets(sets + count);
        while (sets[count] != NULL)
            count++;
    }
    sets[count++] = stop;
    sets[count++] = every;
    sets[count] = NULL;
}

/* An endless run whose supervisor is killed; its last update in the log. */
static unsigned kill_a_run(const char *const *way)
{
    const char *sets[SETS_MAX];
    way_sets(sets, way, "/stop={\"updates\":1000000000}", "/checkpoint/every=2");
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":6,", 90));
    kill(daemon_process.pid, SIGKILL);
    ck_assert_int_eq(process_wait(&daemon_process, 10), 128 + SIGKILL);
    sleep_ms(200); /* for those who end with it */
    return last_update();
}

/* Resumes `run` up to `updates`, and expects it to be what a run without a break is. */
static void resume_and_compare(const char *const *way, unsigned updates, const char *said)
{
    const char *sets[SETS_MAX];
    char stop[48], dir[192], *err;
    snprintf(stop, sizeof stop, "/stop={\"updates\":%u}", updates);
    way_sets(sets, way, stop, "/checkpoint/every=2");
    server_start(workplace.run_dir, sets, true, NULL);
    err = server_end(0);
    ck_assert_msg(said == NULL || strstr(err, said) != NULL, "expected \"%s\" in: %s", said, err);
    free(err);
    server_run(place(dir, "whole", ""), sets, false);
    expect_same_logs("run", "whole");
    expect_same_checkpoint("run", "whole", updates);
    expect_nothing_left("run", "finished");
}

static void read_manifest(struct manifest *manifest, const char *folder)
{
    char path[224];
    struct error error = {0};
    snprintf(path, sizeof path, "%s/" MANIFEST_NAME, folder);
    char *text = file_read(path);
    ck_assert_msg(manifest_parse(manifest, path, text, strlen(text), &error) == STATUS_OK, "%s", error.text);
    free(text);
}

/* The newest sound checkpoint may lie before a line that is logged, within a line, or within an epoch. */
START_TEST(a_killed_run_goes_on)
{
    unsigned last = kill_a_run(ways[_i]);
    resume_and_compare(ways[_i], last + 9 + last % 2, NULL);
}
END_TEST

START_TEST(a_stopped_run_goes_on)
{
    static const char *const way[] = {"/log/every=1", NULL};
    const char *sets[SETS_MAX];
    way_sets(sets, way, "/stop={\"updates\":1000000000}", "/checkpoint/every=2");
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":4,", 90));
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
    unsigned last = last_update();
    way_sets(sets, way, "/stop={\"updates\":1000000}", "/checkpoint/every=2");
    server_start(workplace.run_dir, sets, true, NULL); /* and once more on the way */
    char next[48];
    snprintf(next, sizeof next, "{\"update\":%u,", last + 2);
    ck_assert(file_wait_for(workplace.jsonl, next, 90));
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
    expect_nothing_left("run", "stopped");
}
END_TEST

/* A number of the line's, behind `name`. */
static double number_of(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    ck_assert_msg(at != NULL, "no %s in: %s", name, line);
    return strtod(at + strlen(name), NULL);
}

/* A line of three updates, two of them from before: its rate is that of the third, whose time it tells. */
START_TEST(a_rate_is_that_of_the_updates_since_the_resume)
{
    enum { UPDATE_TOKENS = 3 * 4 };
    static const char *const way[] = {"/log/every=3", NULL};
    const char *sets[SETS_MAX];
    way_sets(sets, way, "/stop={\"updates\":5}", "/checkpoint/every=5");
    server_run(workplace.run_dir, sets, false);
    way_sets(sets, way, "/stop={\"updates\":6}", "/checkpoint/every=5");
    server_run(workplace.run_dir, sets, true);
    char *json = file_read(workplace.jsonl);
    const char *lines[2] = {strstr(json, "{\"update\":3,"), strstr(json, "{\"update\":6,")};
    for (int i = 0; i < 2; i++) {
        const double wanted = i == 0 ? 3 * UPDATE_TOKENS : UPDATE_TOKENS;
        ck_assert_ptr_nonnull(lines[i]);
        ck_assert_double_eq(number_of(lines[i], "\"samples\":"), 3 * UPDATE_TOKENS);
        const double timed = number_of(lines[i], "\"samples_per_s\":") * number_of(lines[i], "\"round_s\":");
        ck_assert_double_eq_tol(timed, wanted, UPDATE_TOKENS / 2.0);
    }
    free(json);
}
END_TEST

/* Where the death of a worker ends the job, the command takes the run up again. */
START_TEST(a_run_whose_worker_died_goes_on)
{
    const char *sets[SETS_MAX];
    pid_t victim;
    unsigned count = 0;
    way_sets(sets, ways[1], "/stop={\"updates\":1000000000}", "/checkpoint/every=2");
    while (sets[count] != NULL)
        count++;
    sets[count++] = "/supervise/restart=false";
    sets[count] = NULL;
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":6,", 90));
    ck_assert_uint_eq(process_children(daemon_process.pid, "pserver --index 0", &victim, 1), 1);
    kill(victim, SIGKILL);
    free(server_end(70));
    unsigned last = last_update();
    resume_and_compare(ways[1], last + 5 + last % 2, "going on from ");
}
END_TEST

/* Who lost the vocabulary, or the state, lost the checkpoint. */
START_TEST(damaged_checkpoints_are_reported_and_left_out)
{
    static const char *const files[] = {"vocabulary.txt", "state.safetensors"};
    const char *sets[SETS_MAX];
    char shell[256];
    way_sets(sets, ways[1], "/stop={\"updates\":15}", "/checkpoint/every=2");
    server_run(workplace.run_dir, sets, false);
    snprintf(shell, sizeof shell, "printf x >> '%s/checkpoints/00000015/%s'", workplace.run_dir, files[_i]);
    ck_assert_int_eq(system(shell), 0);
    resume_and_compare(ways[1], 17, files[_i]);
}
END_TEST

static void edit_text(const char *edit)
{
    char shell[256];
    snprintf(shell, sizeof shell, "sed -i '%s' '%s'", edit, language_path("tale.txt"));
    ck_assert_int_eq(system(shell), 0);
}

static const char swap_lines[] = "3{h;d};4{G}";

/* Another text of the same words is another run: two of its lines changed places, or what is held out is
 * another, or less. */
START_TEST(another_text_is_refused)
{
    static const struct {
        const char *edit, *words;
    } edits[] = {
        {swap_lines, "holds other words, or in another order: expected the text that "},
        {"$s/.*/the the the the the/", "holds other words, or in another order: expected the text that "},
        {"$d", "holds 234 words and line ends: expected the 240 of the text that "},
    };
    const char *sets[SETS_MAX];
    char wanted[400];
    way_sets(sets, ways[1], "/stop={\"updates\":5}", "/checkpoint/every=2");
    server_run(workplace.run_dir, sets, false);
    edit_text(edits[_i].edit);
    way_sets(sets, ways[1], "/stop={\"updates\":7}", "/checkpoint/every=2");
    server_start(workplace.run_dir, sets, true, NULL);
    snprintf(wanted, sizeof wanted, "tale.txt %s%s/checkpoints/00000005 was made with", edits[_i].words,
             workplace.run_dir);
    expect_said(server_end(78), wanted);
}
END_TEST

/* One from before checkpoints told which text they are of. */
START_TEST(an_older_checkpoint_goes_on_with_any_text_of_its_words)
{
    const char *sets[SETS_MAX];
    char folder[192], path[224];
    struct manifest manifest;
    size_t bytes;
    way_sets(sets, ways[1], "/stop={\"updates\":5}", "/checkpoint/every=5");
    server_run(workplace.run_dir, sets, false);
    read_manifest(&manifest, place(folder, "run", "checkpoints/00000005"));
    ck_assert_uint_eq(manifest.text.tokens, 240);
    manifest.text.tokens = 0;
    char *text = manifest_format(&manifest, &bytes);
    snprintf(path, sizeof path, "%s/" MANIFEST_NAME, folder);
    text_write(path, text);
    free(text);
    edit_text(swap_lines);
    way_sets(sets, ways[1], "/stop={\"updates\":7}", "/checkpoint/every=5");
    server_start(workplace.run_dir, sets, true, NULL);
    expect_said(server_end(0), "going on from ");
}
END_TEST

/* Its lines are means over so many updates. */
START_TEST(other_lines_are_refused)
{
    const char *other[] = {"/log/every=2", NULL};
    server_run(workplace.run_dir, NULL, false);
    server_start(workplace.run_dir, other, true, NULL);
    expect_said(server_end(78), "/log/every (was 1, now 2); a resumed run may change /stop, /checkpoint, ");
}
END_TEST

/* ---- checkpoints during async training ---- */

enum { ASYNC_TRAINERS = 3, ASYNC_BEGIN = 2, ASYNC_UPDATES = 20 };

static struct safetensors *open_weights(const char *folder, int file)
{
    char path[224];
    struct safetensors *weights;
    struct error error = {0};
    snprintf(path, sizeof path, "%s/%s", folder, checkpoint_file_names[file]);
    ck_assert_msg(safetensors_open(&weights, path_of(path), &error) == STATUS_OK, "%s", error.text);
    return weights;
}

/* Every value of both files: all parameters 0, all momentum 1. */
static void level_checkpoint(const char *folder, struct manifest *manifest)
{
    char path[224];
    size_t bytes;
    for (int file = 0; file < CHECKPOINT_FILES; file++) {
        struct safetensors *weights = open_weights(folder, file);
        char *text = file_read(weights->path);
        const float value = file == CHECKPOINT_OPTIMIZER ? 1 : 0;
        for (uint64_t at = weights->data; at < weights->data + weights->data_bytes; at += sizeof value)
            memcpy(text + at, &value, sizeof value);
        bytes = weights->data + weights->data_bytes;
        FILE *out = fopen(weights->path, "w");
        ck_assert(out != NULL && fwrite(text, 1, bytes, out) == bytes && fclose(out) == 0);
        crypto_hash_sha256(manifest->files[file].sha256, (const unsigned char *)text, bytes);
        free(text);
        safetensors_close(weights);
    }
    char *text = manifest_format(manifest, &bytes);
    snprintf(path, sizeof path, "%s/" MANIFEST_NAME, folder);
    text_write(path, text);
    free(text);
}

/* The steps that all trainers have taken together. */
static uint64_t steps_of(struct manifest *manifest, const char *folder)
{
    uint64_t steps = 0;
    read_manifest(manifest, folder);
    for (uint32_t i = 0; i < ASYNC_TRAINERS; i++)
        steps += manifest->counters.steps[i];
    return steps;
}

static void expect_all(const char *folder, int file, float expected)
{
    struct safetensors *weights = open_weights(folder, file);
    char *text = file_read(weights->path);
    float value;
    for (uint64_t at = weights->data; at < weights->data + weights->data_bytes; at += sizeof value) {
        memcpy(&value, text + at, sizeof value);
        ck_assert_msg(value == expected, "%s: expected %a in all parameters, got %a", weights->path,
                      (double)expected, (double)value);
    }
    free(text);
    safetensors_close(weights);
}

/* With one token no loss depends on any parameter, so that all gradients are zero. From equal values on, each
 * step then does the same to every value of every parameter: the momentum m becomes 0.96875 m and the
 * parameter p becomes p - m. So a value says how many steps its parameter has had, and a checkpoint between
 * whose parameters a step lies would show two values. */
START_TEST(a_checkpoint_of_async_training_is_of_one_version)
{
    const char *sets[] = {"/stop={\"updates\":2}",
                          "/model/tokens=1",
                          "/trainers/count=3",
                          "/server/count=2",
                          "/placement/lstm=server 1",
                          "/server/round=async",
                          "/optimizer/lr=1",
                          "/optimizer/momentum=0.96875",
                          "/checkpoint/every=1",
                          "/checkpoint/keep=1000",
                          NULL};
    char folder[192], name[64];
    struct manifest manifest;
    server_run(workplace.run_dir, sets, false);
    place(folder, "run", "checkpoints/00000002");
    const uint64_t begin = steps_of(&manifest, folder);
    level_checkpoint(folder, &manifest);
    sets[0] = "/stop={\"updates\":20}";
    server_run(workplace.run_dir, sets, true);
    for (unsigned update = ASYNC_BEGIN; update <= ASYNC_UPDATES; update++) {
        snprintf(name, sizeof name, "checkpoints/%08u", update);
        place(folder, "run", name);
        const uint64_t steps = steps_of(&manifest, folder) - begin;
        float momentum = 1, parameter = 0;
        for (uint64_t i = 0; i < steps; i++) {
            momentum *= 0.96875f;
            parameter -= momentum;
        }
        expect_all(folder, CHECKPOINT_MODEL, parameter);
        expect_all(folder, CHECKPOINT_OPTIMIZER, momentum);
    }
}
END_TEST

/* ---- another end ---- */

START_TEST(a_finished_run_gets_a_later_end)
{
    const char *sets[SETS_MAX];
    text_sets(sets);
    expect_later_end(sets, TEXT_EPOCH_UPDATES);
}
END_TEST

START_TEST(a_run_gets_an_earlier_end)
{
    const char *sets[SETS_MAX];
    text_sets(sets);
    sets[6] = "/checkpoint/every=15";
    sets[7] = NULL;
    expect_earlier_end(sets, TEXT_EPOCH_UPDATES);
}
END_TEST

START_TEST(an_unusable_folder_is_found_at_the_start)
{
    expect_unusable_checkpoints_at_the_start();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_parallel_resume");
    TCase *runs = tcase_create("runs");
    tcase_add_checked_fixture(runs, language_open, workplace_close);
    tcase_set_timeout(runs, 170);
    tcase_add_loop_test(runs, a_killed_run_goes_on, 0, WAYS);
    tcase_add_test(runs, a_stopped_run_goes_on);
    tcase_add_test(runs, a_rate_is_that_of_the_updates_since_the_resume);
    tcase_add_test(runs, a_run_whose_worker_died_goes_on);
    tcase_add_loop_test(runs, damaged_checkpoints_are_reported_and_left_out, 0, 2);
    tcase_add_loop_test(runs, another_text_is_refused, 0, 3);
    tcase_add_test(runs, a_checkpoint_of_async_training_is_of_one_version);
    tcase_add_test(runs, an_older_checkpoint_goes_on_with_any_text_of_its_words);
    tcase_add_test(runs, other_lines_are_refused);
    tcase_add_test(runs, a_finished_run_gets_a_later_end);
    tcase_add_test(runs, a_run_gets_an_earlier_end);
    tcase_add_test(runs, an_unusable_folder_is_found_at_the_start);
    suite_add_tcase(suite, runs);
    return suite_run(suite);
}
