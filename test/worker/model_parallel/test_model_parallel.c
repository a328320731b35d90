/* Whole runs of the kind model-parallel: jobs that end well, the same numbers under every placement, the
 * use of their checkpoints, and the end of a job when a worker dies or a signal comes. Resuming:
 * test_model_parallel_resume.c. */
#include "test/until.h"
#include "test/worker/data_parallel/job_ends.h"
#include "test/worker/model_parallel/language_fixture.h"

#include <glob.h>
#include <sys/stat.h>

/* ---- jobs that end well ---- */

/* So often, and never otherwise, does a run's log tell of what was held when an epoch ended. */
static void expect_holdings(const char *dir, const char *wanted, unsigned times)
{
    char *json = run_text(dir, "episodes.jsonl");
    ck_assert_uint_eq(text_count(json, ",\"objects\":["), times);
    ck_assert_msg(text_count(json, wanted) == times, "expected %u times %s in: %s", times, wanted, json);
    free(json);
}

START_TEST(a_job_trains_logs_and_saves)
{
    server_run(workplace.run_dir, NULL, false);
    char *json = file_read(workplace.jsonl), *text = file_read(workplace.log);
    char *out = process_out(&daemon_process);
    ck_assert(strncmp(out, text, strlen(text)) == 0);
    ck_assert_ptr_eq(strstr(out, "\nfinished: 6 updates, perplexity "), out + strlen(text) - 1);
    ck_assert_uint_eq(text_count(out, "\n"), text_count(text, "\n") + 1);
    ck_assert_uint_eq(text_count(text, "Update "), 6);
    ck_assert_uint_eq(text_count(text, "Epoch "), 2);
    ck_assert_uint_eq(text_count(text, "\n"), 8);
    ck_assert_uint_eq(text_count(json, "\n"), 10);
    ck_assert_uint_eq(text_count(json, ",\"lr\":0.5,\"samples\":12,\"timing\":"), 6);
    ck_assert_uint_eq(text_count(json, ",\"held_out\":null,"), 2);
    ck_assert_ptr_nonnull(strstr(json, "\"servers\":1,\"trainers\":1,\"batch\":3,\"threads\":1,"
                                       "\"layer_threads\":[1,1,1]}}"));
    /* Between two epochs the parts and their parameters are there, and no context. */
    expect_holdings("run",
                    ",\"objects\":[6,10],\"references\":[0,16],\"users\":[6,0],\"users_of\":[{\"1\":6},{}],"
                    "\"contexts\":[0,0],\"pieces\":[0,0]}}\n",
                    2);
    ck_assert_ptr_nonnull(strstr(json, "{\"event\":\"finished\",\"updates\":6,"));
    expect_nothing_left("run", "finished");
    ck_assert(run_has("run", "checkpoints/00000002/manifest.json"));
    ck_assert(run_has("run", "checkpoints/00000006/manifest.json"));
    free(json);
    free(text);
    free(out);
}
END_TEST

/* Logs, model and momentum are the same bits wherever the parts lie and however their tensors travel. */
START_TEST(the_same_numbers_wherever_the_layers_lie)
{
    static const char *const ways[][WAY_SETS] = {
        {"/log/every=1"},
        {"/transport=inline"},
        {"/placement/lstm=server 0"},
        {"/placement/embedding=trainer", "/placement/decoder=trainer"},
        {"/server/count=3", "/placement/lstm=server 1", "/placement/decoder=server 2"},
        {"/server/count=2", "/placement/decoder=server 1", "/transport=inline"},
    };
    char name[16];
    expect_same_numbers(ways, sizeof ways / sizeof ways[0], 6);
    for (unsigned i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        snprintf(name, sizeof name, "way-%u", i);
        expect_nothing_left(name, "finished");
    }
}
END_TEST

/* Trainers in step sum their gradients in order, so that a run can be had again. */
START_TEST(several_trainers_share_the_layers)
{
    static const char *const all[] = {"/trainers/count=3", "/placement/lstm=server 0", NULL};
    static const char *const spread[] = {"/trainers/count=3", "/placement/lstm=server 1", "/server/count=2",
                                         "/transport=inline", NULL};
    static const char *const async[] = {"/trainers/count=3", "/placement/lstm=server 0",
                                        "/server/round=async", NULL};
    char dir[192];
    server_run(workplace.run_dir, all, false);
    server_run(place(dir, "spread", ""), spread, false);
    expect_same_logs("run", "spread");
    expect_same_checkpoint("run", "spread", 6);
    server_run(place(dir, "async", ""), async, false);
    /* Each trainer but the first has the object that stands for it; all three have the three parts and the
     * optimizers, and the first its two peers and the ten parameters. */
    expect_holdings("run",
                    ",\"objects\":[15,0,1,1],\"references\":[0,17,4,4],\"users\":[23,0,1,1],\"users_of\":"
                    "[{\"1\":15,\"2\":4,\"3\":4},{},{\"1\":1},{\"1\":1}],\"contexts\":[0,0,0,0],"
                    "\"pieces\":[0,0,0,0]}}\n",
                    2);
    expect_holdings("spread",
                    ",\"objects\":[6,10,0,1,1],\"references\":[0,0,18,5,5],\"users\":[12,14,0,1,1],"
                    "\"users_of\":[{\"2\":6,\"3\":3,\"4\":3},{\"2\":10,\"3\":2,\"4\":2},{},{\"2\":1},"
                    "{\"2\":1}],\"contexts\":[0,0,0,0,0],\"pieces\":[0,0,0,0,0]}}\n",
                    2);
    char *json = file_read(workplace.jsonl), *text = run_text("async", "episodes.log");
    ck_assert_uint_eq(text_count(json, ",\"samples\":36,"), 6);
    ck_assert_uint_eq(text_count(text, "Epoch "), 2);
    expect_nothing_left("run", "finished");
    expect_nothing_left("spread", "finished");
    expect_nothing_left("async", "finished");
    free(json);
    free(text);
}
END_TEST

/* ---- texts ---- */

/* The checkpoint of the run's last update. */
static const char *last_checkpoint(char path[192])
{
    char name[32];
    snprintf(name, sizeof name, "checkpoints/%08u", last_update());
    return place(path, "run", name);
}

/* Evaluates to a device that is full. */
static void expect_lost_evaluation(const char *checkpoint, const char *const *sets)
{
    const char *argv[4 + 2 * SETS_MAX + 1] = {daemon_path(), "evaluate", checkpoint, workplace.job_path};
    const struct process_options full = {.fifo = "/dev/full"};
    for (int argc = 4; *sets != NULL; sets++) {
        argv[argc++] = "--set";
        argv[argc++] = *sets;
    }
    process_start(&daemon_process, workplace.folder, argv, &full);
    expect_said(server_end(74), "cannot write to standard output: No space left on device");
}

/* What a run found out of the held-out lines, its checkpoint's model finds out again. */
START_TEST(epochs_are_evaluated_and_so_are_checkpoints)
{
    const char *sets[SETS_MAX];
    char wanted[128], path[192];
    text_sets(sets);
    server_run(workplace.run_dir, sets, false);
    char *text = file_read(workplace.log), *json = file_read(workplace.jsonl);
    float perplexity, unigram, loss;
    unsigned tokens;
    const char *epoch = strstr(text, "Epoch 2\t");
    ck_assert_ptr_nonnull(epoch);
    ck_assert_int_eq(sscanf(epoch,
                            "Epoch 2\tLoss: %*f\tPerplexity: %*f\tHeld-out loss: %f\tHeld-out perplexity: "
                            "%f\t(unigram: %f; %u tokens)",
                            &loss, &perplexity, &unigram, &tokens),
                     4);
    ck_assert_msg(unigram > 2 && unigram < 10, "%g", (double)unigram); /* ten words, <eos> among them */
    ck_assert_uint_eq(tokens, 2 * (LANGUAGE_LINES / 4 * (LANGUAGE_LINE_WORDS + 1) / 2 - 1));
    ck_assert_uint_eq(text_count(json, ",\"held_out\":{\"loss\":"), 2);
    snprintf(wanted, sizeof wanted, "Perplexity: %.2f (%u tokens)\tLoss: %.4f\n", (double)perplexity, tokens,
             (double)loss);
    char *said = evaluate(last_checkpoint(path), sets, 0);
    ck_assert_str_eq(said, wanted);
    expect_lost_evaluation(path, sets);
    free(said);
    sets[6] = "/trainers/batch=1000"; /* too few words to train on do not matter */
    sets[7] = NULL;
    said = evaluate(path, sets, 0);
    ck_assert_str_eq(said, wanted);
    free(said);
    free(text);
    free(json);
}
END_TEST

/* A text of more words than a message would have room for, none of which the model knows. */
START_TEST(an_evaluation_goes_by_the_checkpoints_words)
{
    const char *sets[SETS_MAX];
    static char text[1200 * 8];
    char path[192], set[256];
    size_t length = 0;
    for (unsigned i = 0; i < 1200; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "w%u%c", i, i % 5 == 4 ? '\n' : ' ');
    text_sets(sets);
    server_run(workplace.run_dir, sets, false);
    language_write("words.txt", text);
    snprintf(set, sizeof set, "/data/path=%s", language_path("words.txt"));
    sets[6] = set;
    sets[7] = "/data/steps=65536";
    sets[8] = NULL;
    free(evaluate(last_checkpoint(path), sets, 0));
    sets[6] = "/data/path=/nowhere/words.txt";
    free(evaluate(last_checkpoint(path), sets, 66));
}
END_TEST

/* The job need not be the run's own. */
START_TEST(an_evaluation_needs_a_text)
{
    const char *sets[SETS_MAX], *const none[] = {NULL};
    char path[192];
    text_sets(sets);
    server_run(workplace.run_dir, sets, false);
    free(evaluate(last_checkpoint(path), none, 78));
    expect_said(process_err(&daemon_process),
                "coalesced: synthetic data has none held out to evaluate: expected \"text\" in /data/kind\n");
}
END_TEST

/* The number behind `key` in a line of the log. */
static double number_of(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    ck_assert_msg(at != NULL, "no %s in %s", key, line);
    return strtod(at + strlen(key), NULL);
}

/* Up to the end of an epoch the lines take no longer than the epochs: what lies between two epochs, an
 * evaluation above all, is no part of the first line's round. */
START_TEST(evaluations_are_no_part_of_a_round)
{
    const char *sets[SETS_MAX];
    text_sets(sets);
    sets[6] = "/stop/epochs=3";
    sets[7] = "/checkpoint/every=null"; /* what saving takes is an epoch's, too, behind its last line */
    sets[8] = NULL;
    server_run(workplace.run_dir, sets, false);
    char *json = file_read(workplace.jsonl), *rest;
    unsigned lines = 0, epochs = 0;
    double rounds_s = 0, epochs_s = 0;
    for (char *line = strtok_r(json, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "{\"update\":", 10) == 0) {
            rounds_s += number_of(line, "\"round_s\":");
            lines++;
        } else if (strncmp(line, "{\"epoch\":", 9) == 0) {
            const double rounding_s = 1e-6 * (lines + 2 * ++epochs);
            epochs_s += number_of(line, "\"epoch_s\":");
            ck_assert_uint_eq(lines, 15 * epochs);
            ck_assert_msg(rounds_s <= epochs_s + rounding_s, "%u rounds of %g s in %u epochs of %g s", lines,
                          rounds_s, epochs, epochs_s);
        }
    }
    ck_assert_uint_eq(epochs, 3);
    free(json);
}
END_TEST

/* Every word is one of the text's, and as many come as were asked for; commas stand at a word's end. */
static void expect_words(const char *text, unsigned count)
{
    char *copy = strdup(text), *rest;
    unsigned found = (unsigned)(text_count(text, "\n") + text_count(text, ","));
    ck_assert_msg(strstr(text, " ,") == NULL, "a space before a comma in: %s", text);
    for (char *word = strtok_r(copy, ", \n", &rest); word != NULL; word = strtok_r(NULL, ", \n", &rest)) {
        ck_assert_msg(strstr("<unk> the river runs to fl\xC3\xBCss sea and", word) != NULL, "%s", word);
        found++;
    }
    ck_assert_msg(found == count || found == count + 1, "%u words in: %s", found,
                  text); /* the last newline */
    free(copy);
}

START_TEST(a_checkpoint_writes_text)
{
    const char *sets[SETS_MAX];
    char path[192];
    text_sets(sets);
    server_run(workplace.run_dir, sets, false);
    last_checkpoint(path);
    const char *plain[] = {"generate", path, NULL};
    const char *same[] = {"generate", path, "--words", "100", "--seed=1", "--temperature", "1.0", NULL};
    const char *other[] = {"generate", "--seed", "2", path, NULL};
    const char *few[] = {"generate", path, "--words", "7", "--temperature", "0.5", NULL};
    char *a = command(plain, NULL, 0), *b = command(same, NULL, 0), *c = command(other, NULL, 0),
         *d = command(few, NULL, 0);
    ck_assert_str_eq(a, b);
    ck_assert_str_ne(a, c);
    expect_words(a, 100);
    expect_words(d, 7);
    free(a);
    free(b);
    free(c);
    free(d);
}
END_TEST

START_TEST(text_that_cannot_be_written_is_told)
{
    const char *sets[SETS_MAX];
    char path[192], folder[192], shell[512];
    text_sets(sets);
    server_run(workplace.run_dir, NULL, false);
    place(path, "run", "checkpoints/00000006");
    place(folder, "run", "checkpoints");
    const char *synthetic[] = {"generate", path, NULL}, *none[] = {"generate", "/nowhere", NULL};
    const char *parent[] = {"generate", folder, NULL};
    const char *two[] = {"generate", path, path, NULL}, *words[] = {"generate", path, "--words", "-1", NULL};
    const char *hot[] = {"generate", path, "--temperature", "inf", NULL};
    free(command(synthetic, NULL, 78));
    free(command(none, NULL, 66));
    free(command(parent, NULL, 66));
    expect_said(
        process_err(&daemon_process),
        "run/checkpoints: there is no manifest.json in it, expected a run's folder, or a checkpoint's");
    free(command(two, NULL, 64));
    free(command(words, NULL, 64));
    free(command(hot, NULL, 64));
    free(evaluate(place(path, "run", "checkpoints/00000006/model.safetensors"), sets, 66));
    server_run(workplace.run_dir, sets, false);
    snprintf(shell, sizeof shell, "cd '%s/checkpoints' && mv 00000030 x && printf z >> x/vocabulary.txt",
             workplace.run_dir);
    ck_assert_int_eq(last_update(), 30);
    ck_assert_int_eq(system(shell), 0);
    const char *damaged[] = {"generate", place(path, "run", "checkpoints/x"), NULL};
    free(command(damaged, NULL, 65));
    workplace_write_job(TINY_JOB);
    snprintf(shell, sizeof shell, "cp '%s' '%s/job.json'", workplace.job_path, workplace.run_dir);
    ck_assert_int_eq(system(shell), 0);
    free(command(damaged, NULL, 78));
    snprintf(shell, sizeof shell, "echo '{' > '%s/job.json'", workplace.run_dir);
    ck_assert_int_eq(system(shell), 0);
    free(command(damaged, NULL, 65));
}
END_TEST

/* What `check` says of the job with settings. */
static char *check(const char *const *sets, int wanted)
{
    const char *arguments[] = {"check", workplace.job_path, NULL};
    free(command(arguments, sets, wanted));
    return process_err(&daemon_process);
}

START_TEST(nothing_is_said_of_a_good_text)
{
    const char *sets[SETS_MAX];
    text_sets(sets);
    sets[6] = "/data/steps=65536"; /* all of it in one batch */
    sets[7] = NULL;
    char *said = check(sets, 0);
    ck_assert_str_eq(said, "");
    free(said);
}
END_TEST

/* Whether the vocabulary makes a tensor too large for a message, and whether enough is held out for an
 * evaluation that is asked for, only the text says. */
START_TEST(what_a_text_is_too_large_and_too_small_for_is_told)
{
    static const struct {
        const char *more[3], *words;
    } cases[] = {
        {{"/data/steps=400", "/evaluation/batch=50000"},
         "tale.txt: expected at most 536870912 bytes in a message, got 800000000 for the logits: /data/steps "
         "400 * /evaluation/batch 50000 * 10 tokens * 4; a higher /data/minimum_count makes it smaller\n"},
        {{"/evaluation/batch=31", "/optimizer/schedule=constant"},
         "tale.txt: too little is held out to evaluate 31 columns: expected more in /data/held_out, less in "
         "/evaluation/batch, or null in /evaluation/every\n"},
        {{"/evaluation/batch=30", "/optimizer/schedule=constant"}, NULL},
        {{"/evaluation/batch=31", "/optimizer/schedule=constant", "/evaluation/every=null"}, NULL},
        {{"/evaluation/batch=31", "/optimizer/schedule=constant", "/data/held_out=0"}, NULL},
    };
    const char *sets[SETS_MAX] = {NULL};
    text_sets(sets);
    memcpy(sets + 6, cases[_i].more, sizeof cases[_i].more);
    sets[9] = NULL;
    char *said = check(sets, cases[_i].words != NULL ? 78 : 0);
    if (cases[_i].words == NULL)
        ck_assert_str_eq(said, "");
    else
        ck_assert_msg(strstr(said, cases[_i].words) != NULL, "%s", said);
    free(said);
}
END_TEST

/* Before anybody starts, and before a run directory is made. */
START_TEST(what_is_wrong_with_a_text_is_told_first)
{
    static const struct {
        const char *text; /* of bad.txt; NULL: it is not there */
        const char *set, *words;
        int code;
    } cases[] = {
        {NULL, "/data/path=%s/bad.txt", "bad.txt: ", 66},
        {NULL, "/data/path=%s/build/data/kjv.txt", "`scripts/data kjv` writes it", 66},
        {"one two\nthree \xFF four\n", "/data/path=%s/bad.txt",
         "bad.txt:2: not UTF-8 (byte 0xff at column 7)", 65},
        {"\n \n", "/data/path=%s/bad.txt", "bad.txt: no words", 78},
        {"one two three\n", "/data/path=%s/bad.txt", "bad.txt: ", 78},
        {NULL, "/trainers/batch=10000", "tale.txt: ", 78},
        {NULL, "/evaluation/batch=500", "tale.txt: too little is held out to evaluate 500 columns", 78},
        {NULL, "/init=/nowhere/model.safetensors", "/nowhere/model.safetensors: ", 66},
    };
    const char *sets[SETS_MAX];
    char set[192];
    text_sets(sets);
    if (cases[_i].text != NULL)
        language_write("bad.txt", cases[_i].text);
    const char *folder = strstr(cases[_i].set, "%s");
    snprintf(set, sizeof set, "/data/path=%s%s", workplace.folder, folder != NULL ? folder + 2 : "");
    sets[6] = folder != NULL ? set : cases[_i].set;
    sets[7] = NULL;
    expect_said(check(sets, cases[_i].code), cases[_i].words);
    server_start(workplace.run_dir, sets, false, NULL);
    expect_said(server_end(cases[_i].code), cases[_i].words);
    ck_assert(!run_has("run", ""));
}
END_TEST

/* Of a model's values only the worker that leads can say whether they fit; it is the job's fault all the
 * same. */
START_TEST(values_of_another_model_are_refused)
{
    char dir[192], set[256];
    server_run(workplace.run_dir, NULL, false);
    snprintf(set, sizeof set, "/init=%s/checkpoints/00000006/model.safetensors", workplace.run_dir);
    const char *same[] = {set, NULL}, *wider[] = {set, "/model/hidden=9", NULL};
    server_run(place(dir, "same", ""), same, false);
    server_start(place(dir, "wider", ""), wider, false, NULL);
    expect_said(server_end(78), "model.safetensors does not fit the model: ");
}
END_TEST

/* ---- jobs that end otherwise ---- */

/* Two servers and two trainers. */
static const char *const four[] = {"/server/count=2", "/trainers/count=2", "/placement/lstm=server 1", NULL};

static const char *const workers[] = {"pserver --index 0", "pserver --index 1", "trainer --index 2",
                                      "trainer --index 3"};

START_TEST(a_killed_worker_ends_a_job_without_restarts)
{
    const char *sets[] = {four[0], four[1], four[2], _i % 2 == 0 ? "/transport=shared" : "/transport=inline",
                          NULL};
    expect_death_ends(sets, workers[_i]);
}
END_TEST

static void record_undisturbed(void)
{
    language_open();
    undisturbed_record(four);
}

START_TEST(a_killed_worker_changes_nothing)
{
    const char *sets[] = {four[0], four[1], four[2], _i % 2 == 0 ? "/transport=shared" : "/transport=inline",
                          NULL};
    expect_death_changes_nothing(sets, workers[_i], SIGKILL,
                                 "was killed by signal 9 (Killed); all workers start again");
}
END_TEST

/* Everything is given back as well. */
START_TEST(ctrl_c_finishes_the_iteration_and_saves)
{
    expect_ctrl_c_saves(_i == 0 ? NULL : four);
    expect_nothing_left("run", "stopped");
}
END_TEST

START_TEST(a_second_signal_hurries)
{
    expect_second_signal_hurries(four, "trainer --index 3");
}
END_TEST

/* What may not be written is no fault of the job's. */
START_TEST(a_folder_that_may_not_be_written_is_told)
{
    static const char *const sets[] = {"/stop/updates=1000000000", "/checkpoint/every=20", NULL};
    const struct process_options nobody = {.unprivileged = true};
    char folder[192];
    ck_assert_int_eq(chmod(workplace.folder, 0777), 0);
    server_start(workplace.run_dir, sets, false, &nobody);
    ck_assert(file_wait_for(workplace.jsonl, "{\"update\":45,", 90));
    ck_assert_int_eq(chmod(place(folder, "run", "checkpoints"), 0555), 0);
    expect_said(server_end(77), "checkpoints/");
}
END_TEST

/* By the clock: whoever has begun one has the next one wait for its time, and not for the disk. */
START_TEST(checkpoints_by_the_clock_are_apart)
{
    static const char *const sets[] = {"/stop/updates=1000000000", "/checkpoint/every=null",
                                       "/checkpoint/every_s=1", NULL};
    glob_t found;
    char pattern[192];
    unsigned numbers[2];
    server_start(workplace.run_dir, sets, false, NULL);
    place(pattern, "run", "checkpoints/*[0-9]/manifest.json");
    UNTIL(glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc >= 2, (globfree(&found), sleep_ms(20)));
    for (unsigned i = 0; i < 2; i++)
        numbers[i] = (unsigned)atoi(strstr(found.gl_pathv[i], "checkpoints/") + strlen("checkpoints/"));
    globfree(&found);
    ck_assert_uint_gt(numbers[1], numbers[0] + 1);
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
}
END_TEST

/* In the midst of rounds: the trainer who reads the order first gives up what the others step with. */
START_TEST(a_second_signal_ends_running_rounds)
{
    static const char *const sets[] = {"/trainers/count=4", "/placement/lstm=server 0", NULL};
    for (unsigned i = 0; i < 12; i++) {
        unlink(workplace.jsonl); // of the run before
        server_start_endless(sets);
        kill(daemon_process.pid, SIGTERM);
        kill(daemon_process.pid, SIGINT);
        free(server_end(0));
    }
}
END_TEST

/* The means of its lines are the workers', so that nothing of the job changes now. */
START_TEST(sighup_changes_nothing)
{
    server_start_endless(NULL);
    kill(daemon_process.pid, SIGHUP);
    ck_assert(file_wait_for(daemon_process.err_path, "is read again: nothing changes now\n", 20));
    kill(daemon_process.pid, SIGTERM);
    free(server_end(0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_parallel");
    TCase *runs = tcase_create("runs");
    tcase_add_unchecked_fixture(runs, record_undisturbed, undisturbed_close);
    tcase_add_checked_fixture(runs, language_open, workplace_close);
    tcase_set_timeout(runs, 170);
    tcase_add_test(runs, a_job_trains_logs_and_saves);
    tcase_add_test(runs, the_same_numbers_wherever_the_layers_lie);
    tcase_add_test(runs, several_trainers_share_the_layers);
    tcase_add_test(runs, epochs_are_evaluated_and_so_are_checkpoints);
    tcase_add_test(runs, an_evaluation_goes_by_the_checkpoints_words);
    tcase_add_test(runs, an_evaluation_needs_a_text);
    tcase_add_test(runs, evaluations_are_no_part_of_a_round);
    tcase_add_test(runs, a_checkpoint_writes_text);
    tcase_add_test(runs, text_that_cannot_be_written_is_told);
    tcase_add_test(runs, nothing_is_said_of_a_good_text);
    tcase_add_loop_test(runs, what_a_text_is_too_large_and_too_small_for_is_told, 0, 5);
    tcase_add_loop_test(runs, what_is_wrong_with_a_text_is_told_first, 0, 8);
    tcase_add_test(runs, values_of_another_model_are_refused);
    tcase_add_loop_test(runs, a_killed_worker_ends_a_job_without_restarts, 0, 4);
    tcase_add_loop_test(runs, a_killed_worker_changes_nothing, 0, 4);
    tcase_add_loop_test(runs, ctrl_c_finishes_the_iteration_and_saves, 0, 2);
    tcase_add_test(runs, a_second_signal_hurries);
    tcase_add_test(runs, a_second_signal_ends_running_rounds);
    tcase_add_test(runs, a_folder_that_may_not_be_written_is_told);
    tcase_add_test(runs, checkpoints_by_the_clock_are_apart);
    tcase_add_test(runs, sighup_changes_nothing);
    suite_add_tcase(suite, runs);
    return suite_run(suite);
}
