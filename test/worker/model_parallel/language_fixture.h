/* Tiny jobs of the kind model-parallel, run by the real daemon, for the tests that look at whole runs. */
#ifndef TEST_WORKER_MODEL_PARALLEL_LANGUAGE_FIXTURE_H
#define TEST_WORKER_MODEL_PARALLEL_LANGUAGE_FIXTURE_H

#include "test/worker/data_parallel/server_fixture.h"

/* Two epochs of three updates, with dropout, clipping and momentum. */
#define LANGUAGE_JOB                                                                                         \
    "{\"kind\":\"model-parallel\",\"device\":\"cpu\",\"model\":{\"embedding\":4,\"hidden\":5,\"layers\":2,"  \
    "\"dropout\":0.25},\"threads\":{\"embedding\":1,\"lstm\":1,\"decoder\":1},"                              \
    "\"trainers\":{\"batch\":3,\"threads\":1},\"data\":{\"steps\":4,\"updates\":3},"                         \
    "\"optimizer\":{\"lr\":0.5,\"momentum\":0.5,\"max_norm\":0.5},\"stop\":{\"updates\":6},"                 \
    "\"checkpoint\":{\"every\":2},\"supervise\":{\"hang_s\":30}}"

enum { LANGUAGE_LINES = 40, LANGUAGE_LINE_WORDS = 5, TEXT_EPOCH_UPDATES = 15 };

/* A file of the test's folder; malloc'ed by nobody: valid until the next call. */
static inline const char *language_path(const char *name)
{
    static char path[192];
    return place(path, name, "");
}

static inline void language_write(const char *name, const char *text)
{
    text_write(language_path(name), text);
}

/* Lines of words, each of which says something of the next: 240 tokens, line ends included. */
static inline void language_write_text(void)
{
    static const char *const words[] = {"the", "river", "runs", "to", "fl\xC3\xBCss", "sea", ",", "and"};
    static char text[LANGUAGE_LINES * LANGUAGE_LINE_WORDS * 10];
    size_t length = 0;
    unsigned word = 3;
    for (unsigned i = 0; i < LANGUAGE_LINES * LANGUAGE_LINE_WORDS; i++) {
        word = (3 * word + i % 5 + i / 7) % 8;
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", words[word],
                                   i % LANGUAGE_LINE_WORDS == LANGUAGE_LINE_WORDS - 1 ? "\n" : " ");
    }
    language_write("tale.txt", text);
}

static inline void language_open(void)
{
    workplace_open();
    workplace_write_job(LANGUAGE_JOB);
    language_write_text();
    setenv("XDG_RUNTIME_DIR", workplace.folder, 1);
    unsetenv("RUNTIME_DIRECTORY");
}

/* Settings that make the tiny job one of two epochs of a text, TEXT_EPOCH_UPDATES each; sets[0..5], ended by
 * NULL. */
static inline void text_sets(const char *sets[SETS_MAX])
{
    static char path[224];
    static const char *const all[] = {"/data/kind=text",
                                      path,
                                      "/data/held_out=0.25",
                                      "/optimizer/schedule=plateau",
                                      "/evaluation/batch=2",
                                      "/stop={\"epochs\":2}",
                                      NULL};
    snprintf(path, sizeof path, "/data/path=%s", language_path("tale.txt"));
    memcpy(sets, all, sizeof all);
}

/* The last line of the run's log says that nothing was left anywhere. */
static inline void expect_nothing_left(const char *dir, const char *event)
{
    char *json = run_text(dir, "episodes.jsonl"), wanted[64];
    snprintf(wanted, sizeof wanted, "{\"event\":\"%s\",\"updates\":", event);
    char *last = strstr(json, wanted);
    ck_assert_msg(last != NULL && strstr(last, ",\"objects\":0,\"references\":0,\"users\":0,\"contexts\":0,"
                                               "\"pieces\":0,\"") != NULL,
                  "no %s without anything left in: %s", event, json);
    free(json);
}

#endif
