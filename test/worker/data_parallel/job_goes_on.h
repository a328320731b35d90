/* How whole jobs that evaluate every other epoch are taken up again with another end, whatever their kind: a
 * job's last epoch is evaluated in any case, so that another end is another evaluation. After
 * server_fixture.h or what stands on it. */
#ifndef TEST_WORKER_DATA_PARALLEL_JOB_GOES_ON_H
#define TEST_WORKER_DATA_PARALLEL_JOB_GOES_ON_H

#include "test/worker/data_parallel/server_fixture.h"

/* Runs the job for so many epochs, `sets` (ended by NULL) in front of what is set here. */
static inline void run_epochs(const char *dir, const char *const *sets, unsigned epochs, bool resume)
{
    const char *all[SETS_MAX];
    char stop[48], path[192];
    unsigned count = 0;
    for (; sets[count] != NULL; count++)
        all[count] = sets[count];
    snprintf(stop, sizeof stop, "/stop={\"epochs\":%u}", epochs);
    all[count++] = stop;
    all[count++] = "/evaluation/every=2";
    all[count] = NULL;
    server_run(place(path, dir, ""), all, resume);
}

/* The epochs that a log of the run tells of, in its order, each with a + if it tells of an evaluation. */
static inline void expect_epochs_of(const char *name, const char *wanted)
{
    static const char *const signs[] = {"\"held_out\":{", "\"correct\":0",     "\"correct\":1",
                                        "\"correct\":2",  "\tHeld-out loss: ", "\tTest loss: "};
    char *text = run_text("run", name), *rest, found[64] = "";
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        unsigned epoch;
        const size_t length = strlen(found);
        bool evaluated = false;
        if (sscanf(line, "{\"epoch\":%u", &epoch) != 1 && sscanf(line, "Epoch %u", &epoch) != 1)
            continue;
        for (unsigned i = 0; i < sizeof signs / sizeof signs[0]; i++)
            evaluated = evaluated || strstr(line, signs[i]) != NULL;
        snprintf(found + length, sizeof found - length, " %u%s", epoch, evaluated ? "+" : "");
    }
    ck_assert_str_eq(found, wanted);
    free(text);
}

static inline void expect_epochs(const char *wanted)
{
    expect_epochs_of("episodes.jsonl", wanted);
    expect_epochs_of("episodes.log", wanted);
}

/* An epoch that was the last one ends again, and as in a run that did not end there. */
static inline void expect_later_end(const char *const *sets, unsigned epoch_updates)
{
    run_epochs("run", sets, 3, false);
    expect_epochs(" 1 2+ 3+");
    run_epochs("run", sets, 5, true);
    expect_epochs(" 1 2+ 3 4+ 5+");
    run_epochs("whole", sets, 5, false);
    expect_same_checkpoint("run", "whole", 5 * epoch_updates);
}

/* An epoch that has become the last one is evaluated, until it is no longer the last one. */
static inline void expect_earlier_end(const char *const *sets, unsigned epoch_updates)
{
    char command[224], path[192], name[32];
    run_epochs("run", sets, 4, false);
    expect_epochs(" 1 2+ 3 4+");
    snprintf(name, sizeof name, "checkpoints/%08u", 4 * epoch_updates);
    snprintf(command, sizeof command, "rm -r '%s'", place(path, "run", name));
    ck_assert_int_eq(system(command), 0);
    for (unsigned i = 0; i < 2; i++) {
        run_epochs("run", sets, 3, true);
        expect_epochs(" 1 2+ 3+");
    }
    run_epochs("run", sets, 5, true);
    expect_epochs(" 1 2+ 3 4+ 5+");
    run_epochs("whole", sets, 5, false);
    expect_same_checkpoint("run", "whole", 5 * epoch_updates);
}

/* A run whose RUN/checkpoints has become unusable is not resumed: no worker starts, and no line is logged. */
static inline void expect_unusable_checkpoints_at_the_start(void)
{
    const char *sets[] = {"/stop/updates=1000000000", "/checkpoint/every=1000000000", NULL};
    char path[192], command[256];
    server_run(workplace.run_dir, NULL, false);
    char *before = file_read(workplace.jsonl);
    snprintf(command, sizeof command, "rm -r '%s'", place(path, "run", "checkpoints"));
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(symlink("/nowhere/at/all", path), 0);
    server_start(workplace.run_dir, sets, true, NULL);
    expect_said(server_end(74), "run/checkpoints: found a symbolic link, expected a directory\n");
    ck_assert_int_eq(unlink(path), 0);
    text_write(path, "a file");
    server_start(workplace.run_dir, sets, true, NULL);
    expect_said(server_end(74), "run/checkpoints: found a regular file, expected a directory\n");
    char *after = file_read(workplace.jsonl);
    ck_assert_str_eq(after, before);
    free(before);
    free(after);
}

#endif
