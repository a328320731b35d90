/* Job files: golden pairs for every rule, overrides, files that cannot be read, the round trip, the schema,
 * and the jobs in config/. Runs in the repository's root. */
#include "kernels/base/text.h"
#include "test/workplace.h"
#include "worker/env/environment.h"
#include "worker/job/job.h"
#include "worker/job/job_table.h"

#include <check.h>
#include <float.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- helpers ---- */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is missing", path);
    char *text = calloc(1, 1 << 16);
    size_t length = fread(text, 1, (1 << 16) - 1, file);
    ck_assert_msg(feof(file), "%s is long", path);
    text[length] = '\0';
    fclose(file);
    return text;
}

/* Parses a text as `job.json`; the result is malloc'ed: the problems, or the job written out. */
static char *judge(const char *text, const char *const *overrides, size_t override_count)
{
    struct job job;
    struct job_problems problems;
    size_t bytes;
    enum status status =
        job_parse(&job, text, strlen(text), "job.json", overrides, override_count, &problems);
    ck_assert(status == STATUS_OK || status == STATUS_INVALID);
    ck_assert((status == STATUS_OK) == (problems.text == NULL));
    return status == STATUS_OK ? job_format(&job, &bytes) : problems.text;
}

static struct job parse(const char *text, const char *const *overrides, size_t override_count)
{
    struct job job;
    struct job_problems problems;
    enum status status =
        job_parse(&job, text, strlen(text), "job.json", overrides, override_count, &problems);
    ck_assert_msg(status == STATUS_OK, "%s", problems.text);
    return job;
}

/* ---- golden pairs: test/job/x.json, and what is said of it or made of it in test/job/x.expected ---- */

static void check_problems(const char *path, const struct job_problems *problems)
{
    ck_assert_uint_eq(strlen(problems->text), problems->bytes);
    unsigned lines = 0;
    for (const char *at = problems->text; *at != '\0'; at++)
        lines += *at == '\n';
    ck_assert_msg(lines == problems->count, "%s", path);
    ck_assert_int_eq(problems->text[problems->bytes - 1], '\n');
}

START_TEST(golden_pairs)
{
    glob_t inputs, outputs;
    ck_assert_int_eq(glob("test/job/*.json", 0, NULL, &inputs), 0);
    ck_assert_int_eq(glob("test/job/*.expected", 0, NULL, &outputs), 0);
    ck_assert_uint_ge(inputs.gl_pathc, 60);
    ck_assert_uint_eq(inputs.gl_pathc, outputs.gl_pathc);
    for (size_t i = 0; i < inputs.gl_pathc; i++) {
        const char *path = inputs.gl_pathv[i];
        char expected_path[256];
        snprintf(expected_path, sizeof expected_path, "%.*s.expected", (int)strlen(path) - 5, path);
        char *expected = read_text(expected_path);
        struct job job;
        struct job_problems problems;
        enum status status = job_read_file(&job, path, NULL, 0, &problems);
        bool good = strncmp(path, "test/job/good-", 14) == 0;
        ck_assert_msg(status == (good ? STATUS_OK : STATUS_INVALID), "%s: %s", path, status_name(status));
        size_t bytes;
        char *formatted = good ? job_format(&job, &bytes) : NULL;
        if (!good)
            check_problems(path, &problems);
        ck_assert_msg(strcmp(good ? formatted : problems.text, expected) == 0, "%s: expected\n%sgot\n%s",
                      path, expected, good ? formatted : problems.text);
        job_problems_fini(&problems);
        free(formatted);
        free(expected);
    }
    globfree(&inputs);
    globfree(&outputs);
}
END_TEST

/* ---- overrides ---- */

START_TEST(override_problems)
{
    static const struct {
        const char *override, *problem;
    } cases[] = {
        {"observers", "expected /pointer=value, at most 1048576 bytes"},
        {"", "expected /pointer=value, at most 1048576 bytes"},
        {"=1", "expected /pointer=value, at most 1048576 bytes"},
        {"/observers/count", "expected /pointer=value, at most 1048576 bytes"},
        {"/observers/count=0", "expected an integer in 1..1024, got 0"},
        {"/observers/count=", "expected an integer in 1..1024, got \"\""},
        {"/observers/count=four", "expected an integer in 1..1024, got \"four\""},
        {"/observers/count=007", "expected an integer in 1..1024, got \"007\""},
        {"/observers/count=1e999", "expected an integer in 1..1024, got \"1e999\""},
        {"/observers/count=[1", "expected an integer in 1..1024, got \"[1\""},
        {"/observers/cuont=4", "unknown key; did you mean \"count\"?"},
        {"/obsrevers/count=4", "/obsrevers: unknown key; did you mean \"observers\"?"},
        {"/count=4", "unknown key; did you mean /observers/count?"},
        {"/observers/count/x=4", "unknown key"},
        {"/policy/hidden/0=4", NULL},
        {"/policy/hidden/0=0", "expected an integer in 1..1024, got 0"},
        {"/policy/hidden/0=4,5", "expected an integer in 1..1024, got \"4,5\""},
        {"/policy/hidden/1=4", "unknown key"},
        {"/policy/hidden/0/0=4", "/policy/hidden/0: unknown key"},
        {"/observers/0=4", "unknown key"},
        {"/observers/=4", "unknown key"},
        {"/=4", "unknown key"},
        {"/a~1b~0c=4", "unknown key"},
        {"/checkpoint/every=4", "/checkpoint: unknown key; it is not a key of this version"},
        {"/observers/groups=4", "unknown key; it is not a key of this version"},
        {"/kind=model-parallel",
         "expected \"reinforce\", got \"model-parallel\"; it is not a kind of this version"},
        {"/observers=4", "expected an object, got 4"},
        {"/observers={\"count\":0}", "/observers/count: expected an integer in 1..1024, got 0"},
        {"/observers={\"count\":1,\"count\":2}", "/observers/count: duplicate key; it stands already at 1:2"},
        {"/observers={\"count\":007}", "007 is not a JSON number: a number has no leading zeros"},
        {"/policy/hidden=[4,]", "a comma behind the last element; JSON has commas only between elements"},
        {"/observers={\"conut\":1}", "/observers/conut: unknown key; did you mean \"count\"?"},
        {"/observers={\"count\":1024,\"environments\":17}",
         "expected at most 16384 environments in all, got 1024 * 17 = 17408"},
        {"/observers/environments=16384", NULL},
        {"/policy/hidden=64", "expected an array of exactly one element, an integer in 1..1024, got 64"},
        {"/policy/hidden=[0]", "/policy/hidden/0: expected an integer in 1..1024, got 0"},
        {"/stop/episodes=null",
         "/stop: expected a limit, got null for both episodes and running_reward: the job would never end"},
        {"/device=gup", "expected one of \"auto\", \"cpu\", \"gpu\", got \"gup\"; did you mean \"gpu\"?"},
        {"/_anything/at/all=4", NULL},
        {"/observers/_x=4", NULL},
        {"/$schema=4", NULL},
        {"/name=3",
         "expected 1 to 63 of the characters A-Z a-z 0-9 . _ - that begin with neither . nor -, got 3"},
        {"/name=\"3\"", NULL},
        {"/environment/name=Pong", "expected \"CartPole-v1\", got \"Pong\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[512];
        snprintf(expected, sizeof expected, "--set %s: %s\n", cases[i].override, cases[i].problem);
        char *got = judge("{\"kind\": \"reinforce\"}", &cases[i].override, 1);
        if (cases[i].problem == NULL)
            ck_assert_msg(got[0] == '{', "%s", got);
        else
            ck_assert_str_eq(got, expected);
        free(got);
    }
}
END_TEST

START_TEST(override_values_replace_what_was_there)
{
    static const char *const overrides[] = {"/observers/count=0",
                                            "/observers/count=7",
                                            "/seed=9",
                                            "/seed=8",
                                            "/name=from-the-command",
                                            "/returns/normalize=true",
                                            "/optimizer/lr=1e-3",
                                            "/policy/hidden=[16]",
                                            "/policy/hidden/0=17",
                                            "/stop/episodes=null",
                                            "/stop/running_reward=-2.5",
                                            "/rollout/mode=episode"};
    struct job job = parse("{\"kind\": \"reinforce\", \"observers\": {\"count\": \"wrong\"}, \"seed\": 1}",
                           overrides, sizeof overrides / sizeof overrides[0]);
    ck_assert_uint_eq(job.observers.count, 7);
    ck_assert_uint_eq(job.seed, 8);
    ck_assert_str_eq(job.name, "from-the-command");
    ck_assert(job.returns.normalize);
    ck_assert_double_eq(job.optimizer.lr, 1e-3);
    ck_assert_uint_eq(job.policy.hidden, 17);
    ck_assert(!job.stop.has_episodes && job.stop.has_running_reward);
    ck_assert_double_eq(job.stop.running_reward, -2.5);
    ck_assert_int_eq(job.rollout.mode, JOB_ROLLOUT_EPISODE);
}
END_TEST

START_TEST(override_of_an_object_replaces_the_object)
{
    static const char *const overrides[] = {"/observers={\"environments\": 3}", "/stop={}"};
    struct job job =
        parse("{\"kind\": \"reinforce\", \"observers\": {\"count\": 9}, \"stop\": 1}", overrides, 2);
    ck_assert_uint_eq(job.observers.count, 1);
    ck_assert_uint_eq(job.observers.environments, 3);
    ck_assert_uint_eq(job.stop.episodes, 10);
}
END_TEST

START_TEST(override_supplies_what_is_required_and_hides_nothing)
{
    static const char *const overrides[] = {"/kind=reinforce", "/seed=-1", "/seed=2", "/sede=1",
                                            "/log/every=0"};
    struct job job = parse("{}", overrides, 1);
    ck_assert_int_eq(job.kind, JOB_REINFORCE);
    /* File first, then the overrides in their order; the wrong one that a later one replaced is not told. */
    char *got = judge("{\"sed\": 1}", overrides, 5);
    ck_assert_str_eq(got, "job.json:1:2: /sed: unknown key; did you mean \"seed\"?\n"
                          "--set /sede=1: unknown key; did you mean \"seed\"?\n"
                          "--set /log/every=0: expected an integer in 1..1000000, got 0\n");
    free(got);
    got = judge("{\"kind\": ", overrides, 5);
    ck_assert_str_eq(got, "job.json:1:10: expected a value, got the end of the file\n"
                          "--set /sede=1: unknown key; did you mean \"seed\"?\n"
                          "--set /log/every=0: expected an integer in 1..1000000, got 0\n");
    free(got);
}
END_TEST

START_TEST(nothing_hostile_reaches_the_terminal)
{
    static const char *const overrides[] = {"/\x1B[2J=\x9B", "\x07", "/name=\xFF\xE2\x80\x8B",
                                            "/seed=\"\xC2\x85\""};
    struct job job;
    struct job_problems problems;
    ck_assert_int_eq(job_parse(&job, "{}", 2, "a\x1B]0;b\n.json", overrides, 4, &problems), STATUS_INVALID);
    for (size_t i = 0; i < problems.bytes; i++)
        ck_assert((unsigned char)problems.text[i] >= 0x20 || problems.text[i] == '\n');
    ck_assert_ptr_nonnull(strstr(problems.text, "a\\u001b]0;b\\u000a.json:1:1: /kind: "));
    ck_assert_ptr_nonnull(strstr(problems.text, "--set /\\u001b[2J=\\x9b: /\\u001b[2J: unknown key\n"));
    ck_assert_ptr_nonnull(strstr(problems.text, "got \"\\xff\\u200b\"\n"));
    ck_assert_ptr_nonnull(strstr(problems.text, "got \"\\u0085\"\n"));
    job_problems_fini(&problems);
}
END_TEST

/* ---- files ---- */

static void expect_file(const char *path, enum status expected, const char *problem)
{
    struct job job;
    struct job_problems problems;
    char line[512];
    enum status status = job_read_file(&job, path, NULL, 0, &problems);
    ck_assert_msg(status == expected, "%s: %s", path, status_name(status));
    snprintf(line, sizeof line, "%s: %s\n", path, problem);
    ck_assert_str_eq(problems.text, line);
    ck_assert_uint_eq(problems.count, 1);
    job_problems_fini(&problems);
}

START_TEST(files_that_cannot_be_read)
{
    char folder[] = "/tmp/test_job_XXXXXX", path[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chmod(folder, 0755), 0);
    expect_file(folder, STATUS_INVALID, "expected a regular file, got a directory");
    expect_file("/dev/null", STATUS_INVALID, "expected a regular file, got something else");
    snprintf(path, sizeof path, "%s/job.json", folder);
    expect_file(path, STATUS_NOT_FOUND, "cannot be opened: No such file or directory");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    expect_file(path, STATUS_INVALID, "expected a regular file, got something else");
    ck_assert_int_eq(unlink(path), 0);

    FILE *file = fopen(path, "w");
    fputs("{\"kind\": \"reinforce\"}", file);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0), 0);
    bool root = geteuid() == 0; /* root may read everything: look with other eyes */
    ck_assert_int_eq(root ? seteuid(65534) : 0, 0);
    expect_file(path, STATUS_PERMISSION, "cannot be opened: Permission denied");
    ck_assert_int_eq(root ? seteuid(0) : 0, 0);

    ck_assert_int_eq(chmod(path, 0600), 0);
    ck_assert_int_eq(truncate(path, JOB_TEXT_BYTES_MAX + 1), 0);
    expect_file(path, STATUS_INVALID, "longer than a job file may be (1048576 bytes)");
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

START_TEST(texts_at_the_limit_of_length)
{
    char *text = malloc(JOB_TEXT_BYTES_MAX + 1);
    memset(text, ' ', JOB_TEXT_BYTES_MAX + 1);
    memcpy(text, "{\"kind\": \"reinforce\"}", 21);
    struct job job;
    struct job_problems problems;
    ck_assert_int_eq(job_parse(&job, text, JOB_TEXT_BYTES_MAX, "a.json", NULL, 0, &problems), STATUS_OK);
    ck_assert_int_eq(job_parse(&job, text, JOB_TEXT_BYTES_MAX + 1, "a.json", NULL, 0, &problems),
                     STATUS_INVALID);
    ck_assert_str_eq(problems.text, "a.json: longer than a job file may be (1048576 bytes)\n");
    job_problems_fini(&problems);
    /* A megabyte of nothing but flaws costs no more than a hundred lines. */
    memset(text, '\xFF', JOB_TEXT_BYTES_MAX);
    for (size_t i = 0; i + 4 <= JOB_TEXT_BYTES_MAX; i += 4)
        memcpy(text + i, i == 0 ? "[\"\x01\"" : ",\"\x01\"", 4);
    ck_assert_int_eq(job_parse(&job, text, 100000, "a.json", NULL, 0, &problems), STATUS_INVALID);
    ck_assert_uint_eq(problems.count, 101);
    ck_assert_uint_lt(problems.bytes, 20000);
    job_problems_fini(&problems);
    free(text);
}
END_TEST

START_TEST(name_comes_from_the_file)
{
    static const char *const names[][2] = {
        {"cartpole.json", "cartpole"},
        {"/a/b.c/d.e.json", "d.e"},
        {"./x", "x"},
        {"a b.json", NULL},
        {".json", NULL},
        {"dir/", NULL},
        {"", NULL},
        {"-x.json", NULL},
        {"x.json/y", "y"},
        {"\xC3\xA9.json", NULL},
        {"a.b", "a"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct job job;
        struct job_problems problems;
        enum status status =
            job_parse(&job, "{\"kind\": \"reinforce\"}", 21, names[i][0], NULL, 0, &problems);
        ck_assert_msg(status == (names[i][1] == NULL ? STATUS_INVALID : STATUS_OK), "%s", names[i][0]);
        if (names[i][1] != NULL)
            ck_assert_str_eq(job.name, names[i][1]);
        else
            ck_assert_ptr_nonnull(strstr(problems.text, "/name: this key is required"));
        job_problems_fini(&problems);
    }
}
END_TEST

/* ---- the table ---- */

START_TEST(defaults)
{
    struct job job = parse("{\"kind\": \"reinforce\"}", NULL, 0);
    ck_assert_str_eq(job.name, "job");
    ck_assert_uint_eq(job.seed, 543);
    ck_assert_int_eq(job.device, JOB_DEVICE_AUTO);
    ck_assert(job.observers.count == 1 && job.observers.environments == 1);
    ck_assert_str_eq(job.environment.name, "CartPole-v1");
    ck_assert(job.rollout.mode == JOB_ROLLOUT_STEPS && job.rollout.steps == 500);
    ck_assert(job.coalesce.mode == JOB_COALESCE_BARRIER);
    ck_assert(job.coalesce.max_batch == 64 && job.coalesce.max_delay_us == 0);
    ck_assert(job.policy.hidden == 128 && job.policy.dropout == 0.6);
    ck_assert(job.returns.gamma == 1.0 && !job.returns.normalize);
    ck_assert_int_eq(job.loss.reduction, JOB_REDUCTION_SUM);
    ck_assert_str_eq(job.optimizer.name, "adam");
    ck_assert(job.optimizer.lr == 0.01 && job.optimizer.beta1 == 0.9 && job.optimizer.beta2 == 0.999);
    ck_assert(job.optimizer.epsilon == 1e-8);
    ck_assert(job.running_reward.of == JOB_OF_MEAN && job.running_reward.weight == 0.5);
    ck_assert(job.stop.has_episodes && job.stop.episodes == 10 && !job.stop.has_running_reward);
    ck_assert(job.log.every == 1 && job.supervise.hang_s == 10);
}
END_TEST

static bool accepts(const struct job_key *key, double value)
{
    char override[256], number[40];
    snprintf(number, sizeof number, key->type == JOB_INTEGER ? "%.0f" : "%.17g", value);
    snprintf(override, sizeof override, key->list_of_one ? "%s=[%s]" : "%s=%s", key->pointer, number);
    const char *overrides[] = {override};
    char *got = judge("{\"kind\": \"reinforce\"}", overrides, 1);
    bool accepted = got[0] == '{';
    free(got);
    return accepted;
}

START_TEST(every_bound_of_every_key_holds)
{
    unsigned keys = 0;
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        if ((key->type != JOB_INTEGER && key->type != JOB_NUMBER) || key->max == DBL_MAX)
            continue;
        keys++;
        double below = key->type == JOB_INTEGER ? key->min - 1 : nextafter(key->min, -INFINITY);
        double above = key->type == JOB_INTEGER ? key->max + 1 : nextafter(key->max, INFINITY);
        ck_assert_msg(accepts(key, key->min) == !key->min_open, "%s", key->pointer);
        ck_assert_msg(accepts(key, key->max) == !key->max_open, "%s", key->pointer);
        ck_assert_msg(!accepts(key, below) && !accepts(key, above), "%s", key->pointer);
        if (key->min_open)
            ck_assert(accepts(key, nextafter(key->min, INFINITY)));
        if (key->max_open)
            ck_assert(accepts(key, nextafter(key->max, -INFINITY)));
    }
    ck_assert_uint_eq(keys, 17);
}
END_TEST

START_TEST(every_name_of_every_key_is_taken)
{
    for (size_t i = 0; i < job_key_count; i++)
        for (size_t n = 0; job_keys[i].names != NULL && job_keys[i].names[n] != NULL; n++) {
            char override[128], quoted[128];
            snprintf(override, sizeof override, "%s=%s", job_keys[i].pointer, job_keys[i].names[n]);
            snprintf(quoted, sizeof quoted, "\"%s\": \"%s\"", job_key_name(&job_keys[i]),
                     job_keys[i].names[n]);
            const char *overrides[] = {override};
            char *got = judge("{\"kind\": \"reinforce\"}", overrides, 1);
            ck_assert_msg(strstr(got, quoted) != NULL, "%s: %s", override, got);
            free(got);
        }
}
END_TEST

START_TEST(table_is_sound)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        ck_assert_ptr_eq(job_key_member(job_key_parent(key), job_key_name(key)), key);
        ck_assert(key->description != NULL && !job_key_planned(key->pointer) &&
                  !job_key_ignored(job_key_name(key)));
        ck_assert((key->type == JOB_OBJECT) == (key->bytes == 0));
        ck_assert(job_key_parent(key) == NULL || job_key_parent(key)->type == JOB_OBJECT);
        if (key->type == JOB_ENVIRONMENT)
            for (size_t n = 0; key->names[n] != NULL; n++)
                ck_assert_ptr_nonnull(environment_find(key->names[n]));
    }
}
END_TEST

/* ---- the round trip ---- */

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state * 2685821657736338717u;
}

/* Any number that the key allows; every now and then a bound, or the smallest there is. */
static double draw_number(uint64_t *state, const struct job_key *key)
{
    for (;;) {
        uint64_t bits = draw(state);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (draw(state) % 4 != 0)
            value = key->min / 2 + (key->max / 2 - key->min / 2) * ((double)(bits >> 11) * 0x1p-53) * 2 +
                    key->min / 2;
        if (draw(state) % 16 == 0)
            value = draw(state) % 2 == 0 ? key->max : key->min;
        if (value >= key->min && value <= key->max && !(key->min_open && value == key->min) &&
            !(key->max_open && value == key->max))
            return value;
    }
}

static void draw_value(uint64_t *state, struct job *job, const struct job_key *key)
{
    char *at = (char *)job + key->offset;
    size_t names = 0;
    while (key->names != NULL && key->names[names] != NULL)
        names++;
    if (key->nullable)
        *(bool *)((char *)job + key->offset_present) = true;
    if (key->type == JOB_INTEGER && key->bytes == sizeof(uint32_t))
        *(uint32_t *)(void *)at = (uint32_t)draw_number(state, key);
    else if (key->type == JOB_INTEGER)
        *(uint64_t *)(void *)at = (uint64_t)draw_number(state, key);
    else if (key->type == JOB_NUMBER)
        *(double *)(void *)at = draw_number(state, key);
    else if (key->type == JOB_BOOLEAN)
        *(bool *)at = draw(state) % 2 == 0;
    else if (key->type == JOB_ENUM && names > 0)
        *(int *)(void *)at = (int)(draw(state) % names);
    else if (key->type == JOB_NAME)
        for (size_t i = 0, length = 1 + draw(state) % (JOB_NAME_BYTES - 1); i < length; i++)
            at[i] = "abcXYZ019_.-"[draw(state) % (i == 0 ? 10 : 12)];
}

/* Bit for bit, but for what lies between the members. */
static bool same_job(const struct job *a, const struct job *b)
{
    for (size_t i = 0; i < job_key_count; i++) {
        const struct job_key *key = &job_keys[i];
        const char *left = (const char *)a, *right = (const char *)b;
        if (memcmp(left + key->offset, right + key->offset, key->bytes) != 0 ||
            (key->nullable && left[key->offset_present] != right[key->offset_present]))
            return false;
    }
    return true;
}

START_TEST(any_job_survives_being_written_and_read)
{
    uint64_t state = 0x9E3779B97F4A7C15u;
    for (int round = 0; round < 3000; round++) {
        struct job job, again;
        job_defaults(&job);
        for (size_t i = 0; i < job_key_count; i++)
            draw_value(&state, &job, &job_keys[i]);
        job.observers.environments =
            1 + job.observers.environments % (JOB_ENVIRONMENTS_MAX / job.observers.count);
        job.rollout.steps = 1 + job.rollout.steps % (JOB_ROLLOUT_ROWS_MAX / JOB_ENVIRONMENTS_MAX);
        if (round % 3 == 0) {
            job.stop.has_episodes = false;
            job.stop.episodes = 0;
        } else if (round % 3 == 1) {
            job.stop.has_running_reward = false;
            job.stop.running_reward = 0;
        } else if (round % 5 == 0) {
            job.stop.running_reward = -0.0;
        }
        size_t bytes;
        char *text = job_format(&job, &bytes);
        ck_assert_uint_eq(strlen(text), bytes);
        struct job_problems problems;
        memset(&again, 0xA5, sizeof again);
        enum status status = job_parse(&again, text, bytes, "x", NULL, 0, &problems);
        ck_assert_msg(status == STATUS_OK, "%s%s", text, problems.text);
        ck_assert_msg(same_job(&job, &again), "%s", text);
        free(text);
    }
}
END_TEST

/* ---- config/ ---- */

START_TEST(committed_schema_is_the_tables)
{
    char *written = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&written, &bytes);
    ck_assert_int_eq(job_write_schema(stream), 0);
    fclose(stream);
    char *committed = read_text("config/job.schema.json");
    ck_assert_msg(strcmp(written, committed) == 0, "`make schema` writes another config/job.schema.json");
    free(written);
    free(committed);
    FILE *full = fopen("/dev/full", "w");
    ck_assert_int_eq(job_write_schema(full), EOF);
    fclose(full);
}
END_TEST

static struct job read_config(const char *path)
{
    struct job job;
    struct job_problems problems;
    ck_assert_msg(job_read_file(&job, path, NULL, 0, &problems) == STATUS_OK, "%s", problems.text);
    return job;
}

START_TEST(config_of_the_tutorials)
{
    struct job one = read_config("config/cartpole.json");
    ck_assert_str_eq(one.name, "cartpole");
    ck_assert(one.observers.count == 1 && one.rollout.mode == JOB_ROLLOUT_EPISODE);
    ck_assert(one.returns.gamma == 0.99 && one.returns.normalize && one.loss.reduction == JOB_REDUCTION_SUM);
    ck_assert(one.running_reward.of == JOB_OF_MIN && one.running_reward.weight == 0.05);
    ck_assert(!one.stop.has_episodes && one.stop.has_running_reward && one.stop.running_reward == 475);
    ck_assert(one.log.every == 10 && one.seed == 1);
    struct job two = read_config("config/cartpole-batch.json");
    ck_assert_str_eq(two.name, "cartpole-batch");
    ck_assert(two.observers.count == 10 && two.observers.environments == 1);
    ck_assert(two.rollout.mode == JOB_ROLLOUT_STEPS && two.rollout.steps == 500);
    ck_assert(two.coalesce.mode == JOB_COALESCE_BARRIER && two.returns.gamma == 1 && !two.returns.normalize);
    ck_assert_int_eq(two.loss.reduction, JOB_REDUCTION_MEAN_OVER_ENVIRONMENTS);
    ck_assert(two.running_reward.of == JOB_OF_MEAN && two.running_reward.weight == 0.5);
    ck_assert(two.stop.has_episodes && two.stop.episodes == 10 && !two.stop.has_running_reward);
    ck_assert_uint_eq(two.log.every, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("job");
    TCase *core = tcase_create("core");
    tcase_set_timeout(core, 60);
    tcase_add_test(core, golden_pairs);
    tcase_add_test(core, override_problems);
    tcase_add_test(core, override_values_replace_what_was_there);
    tcase_add_test(core, override_of_an_object_replaces_the_object);
    tcase_add_test(core, override_supplies_what_is_required_and_hides_nothing);
    tcase_add_test(core, nothing_hostile_reaches_the_terminal);
    tcase_add_test(core, files_that_cannot_be_read);
    tcase_add_test(core, texts_at_the_limit_of_length);
    tcase_add_test(core, name_comes_from_the_file);
    tcase_add_test(core, defaults);
    tcase_add_test(core, every_bound_of_every_key_holds);
    tcase_add_test(core, every_name_of_every_key_is_taken);
    tcase_add_test(core, table_is_sound);
    tcase_add_test(core, any_job_survives_being_written_and_read);
    tcase_add_test(core, committed_schema_is_the_tables);
    tcase_add_test(core, config_of_the_tutorials);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
