/* Small jobs of the kind reinforce, run by the real daemon, for the tests of their checkpoints. After
 * server_fixture.h's helpers, which know no kind of job. */
#ifndef TEST_WORKER_REINFORCE_REINFORCE_FIXTURE_H
#define TEST_WORKER_REINFORCE_REINFORCE_FIXTURE_H

#include "test/worker/data_parallel/server_fixture.h"

/* An episode takes milliseconds. */
#define REINFORCE_JOB                                                                                        \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":2,\"environments\":2},"             \
    "\"rollout\":{\"steps\":50},\"stop\":{\"episodes\":7},\"checkpoint\":{\"every\":3,\"every_s\":null}}"

static inline void reinforce_open(void)
{
    server_open();
    workplace_write_job(REINFORCE_JOB);
}

/* The highest episode that the run's log tells of. */
static inline unsigned last_episode(void)
{
    char *json = file_read(workplace.jsonl);
    unsigned last = 0;
    for (char *at = json; (at = strstr(at, "\n{\"episode\":")) != NULL; at++)
        last = (unsigned)atoi(at + strlen("\n{\"episode\":"));
    free(json);
    return last;
}

/* "/stop/episodes=N", until the next call. */
static inline const char *stop_after(unsigned episodes)
{
    static char stop[48];
    snprintf(stop, sizeof stop, "/stop/episodes=%u", episodes);
    return stop;
}

/* Starts the job without an end in the run directory and waits for its fifth episode. */
static inline void reinforce_start_endless(const char *const *more)
{
    const char *sets[SETS_MAX] = {"/stop/episodes=1000000000"};
    for (unsigned i = 0; more != NULL && more[i] != NULL; i++)
        sets[1 + i] = more[i];
    server_start(workplace.run_dir, sets, false, NULL);
    ck_assert(file_wait_for(workplace.jsonl, "{\"episode\":5,", 90));
}

static inline void expect_checkpoint(unsigned episode, bool there)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoints/%08u/manifest.json", episode);
    ck_assert_msg(run_has("run", name) == there, "there is %s %s", there ? "no" : "a", name);
}

#endif
